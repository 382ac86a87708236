"""Two hours of a pipeline that never ran, in OpenMetrics: healthy, then with a store down, then healthy."""

from __future__ import annotations

import math
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from beam_agents.signals import catalogue as c
from beam_agents.signals.types import Reason

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from beam_agents.signals.types import Metric

STEP_S = 30
HOURS = 2
DOWN_FROM, DOWN_UNTIL = 0.55, 0.75
INSTANCES = ("10.0.0.11:9464", "10.0.0.12:9464")
AGENTS = (("delays", "redis", 6.0), ("crews", "postgresql", 2.5))


@dataclass
class Ledger:
    """Every series' samples."""

    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(
        default_factory=lambda: defaultdict(float)
    )
    kinds: dict[str, str] = field(default_factory=dict)

    def add(self, metric: Metric, amount: float, **labels: str) -> None:
        self.kinds[metric.prometheus_name] = "counter"
        self.values[metric.prometheus_name, tuple(labels.items())] += amount

    def set(self, metric: Metric, value: float, **labels: str) -> None:
        self.kinds[metric.prometheus_name] = "gauge"
        self.values[metric.prometheus_name, tuple(labels.items())] = value

    def raw(self, name: str, kind: str, value: float, **labels: str) -> None:
        self.kinds[name] = kind
        self.values[name, tuple(labels.items())] = value

    def observe(self, metric: Metric, count: float, middle: float, **labels: str) -> None:
        """Spread measurements around a middle: most below, a tail above."""
        name = metric.prometheus_name
        self.kinds[name] = "histogram"
        for bound in (*metric.buckets, math.inf):
            share = 1.0 if math.isinf(bound) else 1 / (1 + (middle / bound) ** 3)
            key = (("le", "+Inf" if math.isinf(bound) else repr(bound)),)
            self.values[f"{name}_bucket", (*labels.items(), *key)] += count * share
        self.values[f"{name}_count", tuple(labels.items())] += count
        self.values[f"{name}_sum", tuple(labels.items())] += count * middle * 1.2


def _step(  # noqa: C901, PLR0915 - a list of all that a worker tells
    ledger: Ledger, instance: str, at: float, outage_s: float, *, down: bool
) -> None:
    process = {"job": "beam-agents", "instance": instance}
    wave = 1 + 0.3 * math.sin(at / 900) + 0.1 * math.sin(at / 70)
    for agent, backend, rate in AGENTS:
        who = {**process, "pipeline": "flights", "agent": agent}
        mine = down and backend == "redis"
        done = rate * wave * STEP_S / 2
        failed = 0.8 * done if mine else 0.0004 * done
        slow = 3.0 if mine else 1.0
        for outcome, count in (
            ("complete", 0.9 * (done - failed)),
            ("suspend", 0.1 * (done - failed)),
            ("failed", failed),
        ):
            ledger.add(c.ACTIVATIONS, count, **who, outcome=outcome)
            ledger.observe(c.ACTIVATION_DURATION_SECONDS, count, 0.3 * slow * wave, **who, outcome=outcome)
        for reason in Reason:
            share = {Reason.LONGTERM_FLUSH_FAILED: 0.9, Reason.ACTIVATION_TIMEOUT: 0.1}.get(reason, 0.0)
            ledger.add(c.ACTIVATION_ERRORS, failed * share, **who, reason=reason)
        ledger.add(c.ORPHANED_RESULTS, 0.0001 * done, **who)
        ledger.observe(c.RUNTIME_OVERHEAD_SECONDS, done, 0.0012, **who)
        ledger.set(c.ACTIVATIONS_IN_FLIGHT, round(rate * wave * (4 if mine else 0.5)), **who)
        ledger.set(c.OLDEST_ACTIVATION_AGE_SECONDS, 28.0 if mine else 0.6 * wave, **who)
        ledger.add(c.EVENT_LOOP_STALLS, 0, **who)
        ledger.add(c.MODEL_CALLS, 1.4 * done, **who, model="small-1", outcome="ok")
        ledger.add(c.MODEL_CALLS, 0.002 * done, **who, model="small-1", outcome="error")
        ledger.observe(c.MODEL_CALL_DURATION_SECONDS, 1.4 * done, 0.18 * wave, **who, model="small-1")
        ledger.add(c.TOKENS, 900 * done, **who, model="small-1", direction="prompt")
        ledger.add(c.TOKENS, 120 * done, **who, model="small-1", direction="completion")
        ledger.add(c.REPLAY_CACHE_REQUESTS, failed, **who, result="hit")
        ledger.add(c.REPLAY_CACHE_REQUESTS, 1.4 * done, **who, result="miss")
        ledger.add(c.REPLAY_CACHE_DRIFTS, 0, **who)
        ledger.add(c.TOOL_CALLS, 0.7 * done, **who, tool="timetable")
        ledger.add(c.INTENTS_EMITTED, 0.1 * done, **who, tool="notify")
        ledger.observe(c.MEMORY_SIZE_BYTES, done, 60_000 if agent == "delays" else 9_000, **who)
        ledger.observe(c.MEMORY_ENTRIES, done, 40, **who)
        ledger.add(c.MEMORY_SOFT_CAP_CROSSINGS, 0.02 * done, **who)
        ledger.add(c.MEMORY_OVERFLOWS, 0, **who)
        ledger.add(c.COMPACTION_RUNS, 0.02 * done, **who, trigger="soft_cap")
        ledger.add(c.COMPACTION_RUNS, 0, **who, trigger="hard_cap")
        ledger.add(c.COMPACTION_EVICTIONS, 0.3 * done, **who)
        ledger.add(c.COMPACTION_EVICTED_BYTES, 2_000 * done, **who)
        ledger.add(c.MEMORY_COMPACTION_COOLDOWN_BREACHES, 0.0005 * done, **who)
        for outcome, share in (("ok", 0.01), ("error", 0.0001), ("not_smaller", 0.0003)):
            ledger.add(c.SUMMARIES, share * done, **who, outcome=outcome)
        ledger.add(c.SUMMARY_BYTES_RECLAIMED, 400 * done, **who)
        store = {**who, "backend": backend}
        ledger.add(c.LONGTERM_STAGED, 2 * done, **store)
        ledger.add(c.LONGTERM_UPSERTS, 2 * (done - failed), **store, result="applied")
        ledger.add(c.LONGTERM_UPSERTS, 0.002 * done, **store, result="stale")
        if failed > 1:
            ledger.add(c.LONGTERM_FLUSH_FAILURES, failed, **store, error_type="StoreUnavailable")
        for outcome, count in (("ok", done - failed), ("error", failed if mine else 0), ("timeout", 0)):
            ledger.observe(
                c.LONGTERM_FLUSH_DURATION_SECONDS,
                count,
                0.004 * (200 if mine else 1),
                **store,
                outcome=outcome,
            )
            ledger.observe(c.LONGTERM_FLUSH_ROWS, count, 2, **store, outcome=outcome)
            ledger.observe(c.LONGTERM_FLUSH_BYTES, count, 700, **store, outcome=outcome)
        due = 0.05 * done
        ledger.add(c.EXPIRE_FLUSHES, 0 if mine else due, **store, outcome="ok")
        ledger.add(c.EXPIRE_FLUSHES, due * 3 if mine else 0, **store, outcome="error")
        ledger.add(c.EXPIRE_FLUSHES, 0, **store, outcome="timeout")
        ledger.set(c.EXPIRE_WEDGED_TIMERS, round(outage_s / 40) if mine else 0, **store)
        ledger.set(c.EXPIRE_WEDGED_OLDEST_SECONDS, outage_s if mine else 0, **store)
        ledger.add(c.EXPIRE_REARMS, due * 3 if mine else 0, **store)
        ledger.add(c.EXPIRE_WEDGES_LOST_SIGHT, 0, **store)
        for flushed, share in (("true", 0.0 if mine else 1.0), ("false", 0.0), ("empty", 0.1)):
            ledger.add(c.TTL_WIPES, share * due, **who, flushed=flushed)
        ledger.add(c.TTL_WIPED_SUSPENSIONS, 0, **who)
        ledger.add(c.TIMERS_EARLY, 0.3 * due, **who)
        ledger.observe(c.TIMER_LATENESS_SECONDS, due, 8, **who)
        ledger.add(c.BUNDLES, done / 4, **who)
        ledger.add(c.BUNDLE_FAILURES, 0, **who, phase="process")
        ledger.add(c.BUNDLE_FAILURES, due if mine else 0, **who, phase="timer")
        which = {**process, "backend": backend}
        for operation, count in (
            ("load", done),
            ("search", 0.2 * done),
            ("flush", done),
            ("expire_flush", due),
            ("ping", 1),
        ):
            ledger.observe(
                c.STORE_OPERATION_DURATION_SECONDS,
                count,
                0.8 if mine else 0.003,
                **which,
                operation=operation,
                outcome="error" if mine else "ok",
            )
        if mine:
            ledger.add(c.STORE_RETRIES, 2 * done, **which, operation="flush", error_type="ConnectionError")
        ledger.set(c.STORE_UP, 0 if mine else 1, **which)
        ledger.set(c.STORE_LAST_SUCCESS_TIMESTAMP_SECONDS, at - (outage_s if mine else 2), **which)
    for plugin in ("prometheus", "logs"):
        ledger.set(c.TELEMETRY_INITIALISED, 1, **process, plugin=plugin)
    ledger.add(c.TELEMETRY_DROPPED, 0.01 if down else 0, **process, plugin="otlp", reason="timeout")
    ledger.set(c.BUILD_INFO, 1, **process, version="0.1.0", beam_version="2.77.0")
    ledger.raw("up", "gauge", 1, **process)
    busy = ledger.values["process_cpu_seconds", tuple(process.items())] + 0.4 * wave * STEP_S
    ledger.raw("process_cpu_seconds", "counter", busy, **process)
    ledger.raw("process_resident_memory_bytes", "gauge", 3.2e8 + 1e7 * wave, **process)
    ledger.raw("process_open_fds", "gauge", round(60 + 5 * wave), **process)
    ledger.raw("process_start_time_seconds", "gauge", 1_700_000_000, **process)


def _rules(ledger: Ledger, *, down: bool, alerting: bool) -> None:
    """Set what Prometheus's own rules would have made of it."""
    for name in ("beam_agents_activations", "beam_agents_longterm_flushes"):
        ledger.raw(f"slo:{name}:objective", "gauge", 0.999)
    for agent, backend, _ in AGENTS:
        ratio = 0.8 if down and backend == "redis" else 0.0004
        for window, share in (("5m", 1.0), ("1h", 0.3)):
            who = {"job": "beam-agents", "pipeline": "flights", "agent": agent}
            ledger.raw(
                f"pipeline_agent:beam_agents_activations_failed:ratio_rate{window}",
                "gauge",
                ratio * share,
                **who,
            )
            ledger.raw(
                f"pipeline_agent_backend:beam_agents_longterm_flushes_failed:ratio_rate{window}",
                "gauge",
                ratio * share,
                **who,
                backend=backend,
            )
    for alert, labels in (
        ("BeamAgentsStoreDown", {"backend": "redis", "severity": "page"}),
        ("BeamAgentsExpireTimersWedged", {"agent": "delays", "backend": "redis", "severity": "page"}),
    ):
        key = ("ALERTS", (("alertname", alert), ("alertstate", "firing"), *labels.items()))
        ledger.kinds["ALERTS"] = "gauge"
        ledger.values.pop(key, None)
        if alerting:
            ledger.values[key] = 1


def samples(end_s: int) -> Iterator[str]:
    """Return the lines of an OpenMetrics file that ends at a moment."""
    ledger = Ledger()
    kept: dict[str, list[str]] = defaultdict(list)
    count = HOURS * 3_600 // STEP_S
    for step in range(count + 1):
        at = end_s - (count - step) * STEP_S
        down = DOWN_FROM <= step / count < DOWN_UNTIL
        outage_s = max(0.0, (step / count - DOWN_FROM) * count * STEP_S) + STEP_S
        for instance in INSTANCES:
            _step(ledger, instance, at, outage_s, down=down)
        _rules(ledger, down=down, alerting=down and outage_s > 90)
        for (name, labels), value in ledger.values.items():
            family = next(
                (
                    name[: -len(end)]
                    for end in ("_bucket", "_count", "_sum")
                    if ledger.kinds.get(name[: -len(end)]) == "histogram" and name.endswith(end)
                ),
                name,
            )
            shown = (
                name + "_total" if ledger.kinds[family] == "counter" and not name.endswith("_total") else name
            )
            inside = ",".join(f'{label}="{text}"' for label, text in labels)
            kept[family].append(f"{shown}{{{inside}}} {value!r} {at}")
    for family, lines in kept.items():
        kind = ledger.kinds[family]
        yield f"# TYPE {family.removesuffix('_total') if kind == 'counter' else family} {kind}"
        yield from lines
    yield "# EOF"


def write_blocks(folder: pathlib.Path, end_s: int) -> pathlib.Path:
    """Write the samples as blocks that Prometheus opens; return their folder."""
    text = folder / "samples.txt"
    text.write_text("\n".join(samples(end_s)) + "\n")
    blocks = folder / "data"
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(blocks)],
        check=True,
        capture_output=True,
    )
    return blocks


def everything() -> set[Metric]:
    """Return the metrics that the samples have: a test compares them with the catalogue."""
    ledger = Ledger()
    _step(ledger, INSTANCES[0], 0.0, 60.0, down=True)
    return {metric for metric in c.METRICS if metric.prometheus_name in ledger.kinds}
