"""The page for people: what is wrong with this worker process, at a glance, on a phone."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from beam_agents.signals import hub, losses
from beam_agents.signals.aggregates import process_aggregates
from beam_agents.signals.in_flight import in_flight
from beam_agents.signals.stores import store_table
from beam_agents.signals.wedges import wedge_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from beam_agents.signals.observer import Worker
    from beam_agents.signals.stores import StoreHealth
    from beam_agents.signals.wedges import Wedge

__all__ = ["SHOWN", "Activation", "Status", "read_status", "status_page"]

SHOWN: Final = 20
"""Rows of a table; the oldest are shown, and the others counted."""


@dataclass(frozen=True, slots=True)
class Activation:
    """One activation in flight.

    Attributes:
        pipeline: The pipeline's name.
        agent: The agent's name.
        entity: The key's hash.
        attempt: Which attempt it is.
        age_s: How long it has been running, seconds.
    """

    pipeline: str
    agent: str
    entity: str
    attempt: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Status:
    """What the page tells.

    Attributes:
        host: The machine's name.
        pid: The process's id.
        version: The version of beam-agents.
        beam_version: The version of Apache Beam.
        counting_since_s: Since when this process counts, seconds since the Unix epoch.
        at_s: When this was read, likewise.
        workers: The agents that came up here.
        stores: The long-term stores in use.
        wedges: The wedged timers, the oldest first.
        activations: What runs, the oldest first.
        plugins: By name, whether each works.
        dropped: Signals lost, by (plugin, reason).
    """

    host: str
    pid: int
    version: str
    beam_version: str
    counting_since_s: float
    at_s: float
    workers: Sequence[Worker]
    stores: Sequence[StoreHealth]
    wedges: Sequence[Wedge]
    activations: Sequence[Activation]
    plugins: Mapping[str, bool]
    dropped: Mapping[tuple[str, str], int]

    @property
    def troubles(self) -> list[str]:
        """What is wrong, the worst first; empty for nothing."""
        down = sum(store.up is False for store in self.stores)
        broken = sum(not works for works in self.plugins.values())
        lost = sum(self.dropped.values())
        found = []
        if down:
            found.append(f"{_many(down, 'store')} down")
        if self.wedges:
            found.append(f"{_many(len(self.wedges), 'wedged timer')}")
        if broken:
            found.append(f"{_many(broken, 'telemetry plugin')} not working")
        if lost:
            found.append(f"{_many(lost, 'signal')} lost")
        return found


def read_status() -> Status:
    """Return this process's status."""
    activations = [
        Activation(record.pipeline, record.agent, record.entity, record.attempt, record.elapsed_s)
        for record in in_flight().running()
    ]
    return Status(
        host=socket.gethostname(),
        pid=os.getpid(),
        version=version("beam-agents"),
        beam_version=version("apache-beam"),
        counting_since_s=process_aggregates().started_s,
        at_s=time.time(),
        workers=hub.workers(),
        stores=store_table().all(),
        wedges=wedge_table().wedged(),
        activations=activations,
        plugins=hub.initialised(),
        dropped=losses.dropped(),
    )


_STYLE: Final = """
:root{color-scheme:light dark}
body{font:16px/1.45 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:60rem}
h1{font-size:1.25rem;margin:0}
h2{font-size:1.05rem;margin:1.6rem 0 .3rem}
.state{border-radius:.4rem;padding:.6rem .8rem;margin:.8rem 0;font-weight:600;color:#fff;background:#1a7f37}
.state.bad{background:#b42318}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid #8884;white-space:nowrap}
th{font-weight:600;opacity:.75}
td.bad{color:#d92d20;font-weight:600}
.none,footer{opacity:.75}
"""


def status_page(status: Status) -> str:
    """Return the page as HTML. It needs nothing but itself."""
    troubles = status.troubles
    state = " · ".join(troubles) if troubles else "Nothing is known to be wrong"
    now_s = status.at_s
    title = f"beam-agents on {status.host}, process {status.pid}"
    sections = [
        _section(
            "Long-term stores",
            ("state", "error", "last answer", "down since", "backend", "URI"),
            [_store_cells(store, now_s) for store in status.stores],
            "No store is in use.",
        ),
        _section(
            "Wedged expiry timers",
            ("failing for", "attempts", "error", "agent", "pipeline", "backend", "entity (hash)"),
            [
                (
                    age(each.age_s),
                    str(each.attempts),
                    each.error_type,
                    each.agent,
                    each.pipeline,
                    each.backend,
                    each.entity,
                )
                for each in status.wedges
            ],
            "No timer is wedged.",
        ),
        _section(
            "Activations in flight",
            ("running for", "agent", "pipeline", "attempt", "entity (hash)"),
            [
                (age(each.age_s), each.agent, each.pipeline, str(each.attempt), each.entity)
                for each in status.activations
            ],
            "None is running.",
        ),
        _section(
            "Agents",
            ("agent", "pipeline", "long-term store"),
            [(each.agent, each.pipeline, each.backend or "none") for each in status.workers],
            "No agent has come up in this process.",
        ),
        _section(
            "Telemetry plugins",
            ("plugin", "state"),
            [(name, "works" if works else "could not be built") for name, works in status.plugins.items()],
            "None is in use.",
        ),
        _section(
            "Signals lost",
            ("plugin", "reason", "how many"),
            [(plugin, reason, str(count)) for (plugin, reason), count in sorted(status.dropped.items())],
            "None.",
        ),
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p class="state{" bad" if troubles else ""}">{escape(state)}</p>
<p>Counting for {age(now_s - status.counting_since_s)}, since {_time(status.counting_since_s)}.
beam-agents {escape(status.version)}, Apache Beam {escape(status.beam_version)}.</p>
{"".join(sections)}
<footer><p><a href="/metrics">metrics</a> · <a href="/healthz">healthz</a> · <a href="/">reload</a>
· as of {_time(now_s)}</p></footer>
</body></html>
"""


def _store_cells(store: StoreHealth, now_s: float) -> tuple[str, ...]:
    state, since = "up" if store.up else "not asked yet", ""
    if store.up is False:
        state, since = f"DOWN for {age(now_s - store.down_since_s)}", _time(store.down_since_s)
    answered = f"{age(now_s - store.last_success_s)} ago" if store.last_success_s else "never"
    return state, store.error_type, answered, since, store.backend, store.shown


def _section(title: str, head: Iterable[str], rows: Sequence[tuple[str, ...]], nothing: str) -> str:
    count = f" ({len(rows)})" if rows else ""
    if not rows:
        return f'<h2>{title}</h2><p class="none">{nothing}</p>'
    heads = "".join(f"<th>{escape(each)}</th>" for each in head)
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:SHOWN])
    more = f'<p class="none">… and {len(rows) - SHOWN} more</p>' if len(rows) > SHOWN else ""
    return (
        f'<h2>{title}{count}</h2><div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>{more}"
    )


def _cell(text: str) -> str:
    bad = ' class="bad"' if text.startswith("DOWN ") or text == "could not be built" else ""
    return f"<td{bad}>{escape(text)}</td>"


def age(seconds: float) -> str:
    """Return a span of time in its two largest units: ``"2 h 5 min"``."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    if minutes:
        return f"{minutes} min {whole % 60} s"
    return f"{whole} s"


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
