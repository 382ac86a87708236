"""Alerting rules: a symptom pages, a cause is a ticket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from beam_agents.signals import catalogue
from beam_agents_dashboards.names import Dashboard
from beam_agents_dashboards.promql import Selectors, duration, shown_duration
from beam_agents_dashboards.recording import (
    ACTIVATIONS,
    AGENT,
    AGENT_BACKEND,
    EVICTED_BYTES,
    FLUSH_P99,
    FLUSHES,
    RATE_WINDOW_S,
)
from beam_agents_dashboards.rules import Alert, Group

if TYPE_CHECKING:
    from beam_agents_dashboards.recording import Budget
    from beam_agents_dashboards.settings import Settings

__all__ = ["BURN_WINDOWS", "FAILING_SCRAPES", "BurnWindow", "alert_groups"]

FAILING_SCRAPES: Final = 5
"""In so many scrapes of three minutes a worker's timer bundles must have failed anew."""

FAILING_TRIES: Final = 3
"""Or so many of them in six minutes, some of these in either half."""

_STORE: Final = ("job", "backend")
_STORE_DOWN: Final = 'ALERTS{alertname="BeamAgentsStoreDown", alertstate="firing"}'
_ON: Final = "agent {{ $labels.agent }} of pipeline {{ $labels.pipeline }} (job {{ $labels.job }})"
_COUNT: Final = '{{ $value | printf "%.0f" }}'
_AT: Final = f"store {{{{ $labels.backend }}}}, {_ON}"


@dataclass(frozen=True, slots=True)
class BurnWindow:
    """A pair of windows over which a budget may burn too fast.

    Attributes:
        factor: How many times faster than the objective allows.
        long_s: The window that shows that it matters, in seconds.
        short_s: The one that shows that it still goes on, in seconds.
        pages: Whether it wakes someone.
        hold_s: The alert's ``for``, in seconds.
    """

    factor: float
    long_s: float
    short_s: float
    pages: bool
    hold_s: float


BURN_WINDOWS: Final = (
    BurnWindow(14.4, 3_600, 300, pages=True, hold_s=120),
    BurnWindow(6, 21_600, 1_800, pages=True, hold_s=900),
    BurnWindow(3, 86_400, 7_200, pages=False, hold_s=3_600),
    BurnWindow(1, 259_200, 21_600, pages=False, hold_s=10_800),
)

_LONGEST_COUNT_S: Final = 21_600.0
"""Over how long failures are counted at most: a raw increase over days would be dear."""


def alert_groups(settings: Settings) -> tuple[Group, ...]:
    """Return all alerting rules that rest on our own metrics."""
    select = Selectors(settings)
    return (
        Group("beam-agents-stores", _stores(settings, select)),
        Group("beam-agents-expiry", _expiry(settings, select)),
        Group("beam-agents-memory", _memory(settings, select)),
        Group("beam-agents-activations", _activations(settings, select)),
        Group("beam-agents-workers", _workers(select)),
    )


def _stores(settings: Settings, select: Selectors) -> tuple[Alert, ...]:
    stale, rows = (
        f"sum by ({AGENT_BACKEND}) ({select.rate(catalogue.LONGTERM_UPSERTS, *matchers, window=600)})"
        for matchers in (('result="stale"',), ())
    )
    # The window is shorter than the rule's "for": a burst, as after a restart, is no trickle.
    counted = select.increase(catalogue.LONGTERM_UPSERTS, 'result="stale"', window=600)
    return (
        Alert(
            "BeamAgentsStoreDown",
            pages=True,
            # Of no recording rule: another group's may be evaluated a whole interval earlier.
            expression=f"avg by (job, backend) ({select.watched(select.of(catalogue.STORE_UP))}) < 0.5",
            hold_s=60,
            # A worker that restarts meanwhile has not probed yet: its silence is no recovery.
            keep_s=60,
            summary="A long-term store does not answer most workers.",
            description="Store {{ $labels.backend }} answers only {{ $value | humanizePercentage }} of the "
            "workers of job {{ $labels.job }}. Activations that save to it fail, and keys that expire wait.",
            dashboard=Dashboard.STORES,
            variables=_STORE,
        ),
        *_burn_alerts(
            "BeamAgentsStoreFlushErrorBudgetBurn",
            FLUSHES,
            select,
            summary="Too many flushes to a long-term store fail.",
            what=f"flushes fail: {_AT}. Their activations fail with them and can be sent again.",
            dashboard=Dashboard.STORES,
            variables=("job", "pipeline", "agent", "backend"),
            # Alertmanager's inhibition ends with the store's alert, and the windows still remember.
            told_already=f"max_over_time({_STORE_DOWN}[{select.window(420)}])",
        ),
        Alert(
            "BeamAgentsStoreLatencyHigh",
            pages=False,
            expression=f"{FLUSH_P99} > {settings.flush_latency_s:.15g}",
            hold_s=600,
            summary="Flushes to a long-term store are slow.",
            description="99 % of the flushes to store {{ $labels.backend }} of job {{ $labels.job }} take up "
            "to {{ $value | humanizeDuration }}; the objective is "
            f"{shown_duration(settings.flush_latency_s)}.",
            dashboard=Dashboard.STORES,
            variables=_STORE,
        ),
        Alert(
            "BeamAgentsStaleUpserts",
            pages=False,
            expression=f"{stale}\n/\n({rows} > 0)\n> {settings.stale_ratio:.15g}\n"
            f"and\nsum by ({AGENT_BACKEND}) ({counted}) >= {settings.min_failures:.15g}",
            hold_s=900,
            summary="A long-term store refuses rows because it has newer ones.",
            description=f"{{{{ $value | humanizePercentage }}}} of the rows are stale: {_AT}.",
            dashboard=Dashboard.STORES,
            variables=("job", "pipeline", "agent", "backend"),
        ),
    )


def _expiry(settings: Settings, select: Selectors) -> tuple[Alert, ...]:
    wedged = f"max by ({AGENT_BACKEND}) ({select.of(catalogue.EXPIRE_WEDGED_OLDEST_SECONDS)})"
    timers = f"sum by ({AGENT_BACKEND}) ({select.of(catalogue.EXPIRE_WEDGED_TIMERS)})"
    bundles = select.of(catalogue.BUNDLE_FAILURES, 'phase="timer"')
    short, long = select.window(180), select.window(360)
    failing = f"sum by ({AGENT}) (increase({bundles}[{short}])) > 0"
    # A runner that tries at once shows in a minute whether it goes on; one that waits takes longer.
    quick = f"max by ({AGENT}) (changes({bundles}[{short}])) >= {FAILING_SCRAPES}"
    slow = (
        f"sum by ({AGENT}) (increase({bundles}[{short}] offset {short})) > 0\n"
        f"  and sum by ({AGENT}) (increase({bundles}[{long}])) >= {FAILING_TRIES}"
    )
    return (
        Alert(
            "BeamAgentsExpireTimersWedged",
            pages=True,
            expression=f"{wedged} > {settings.wedged_s:.15g}\nand\n{timers} > 0",
            # The age is the hold.
            hold_s=0,
            # A worker that restarts has forgotten which timers failed until they fail again.
            keep_s=120,
            summary="Expiring memory can't be flushed.",
            description="An expiry timer has failed for {{ $value | humanizeDuration }}: "
            f"{_AT}. Its memory is kept, and its watermark may be held.",
            dashboard=Dashboard.EXPIRY,
            variables=("job", "pipeline", "agent", "backend"),
        ),
        Alert(
            "BeamAgentsTimerBundlesFailing",
            pages=True,
            expression=f"{failing}\nand (\n  {quick}\n  or {slow}\n)",
            hold_s=0,
            summary="Bundles of timers fail again and again.",
            description=f"{_COUNT} timer bundles failed in "
            f"{select.window(180)}, and it goes on: {_ON}. Nothing is lost; the watermark is held.",
            dashboard=Dashboard.EXPIRY,
        ),
        Alert(
            "BeamAgentsSuspensionsWiped",
            pages=False,
            expression=f"sum by ({AGENT}) "
            f"({select.increase(catalogue.TTL_WIPED_SUSPENSIONS, window=900)}) > 0",
            hold_s=60,
            summary="Keys expired while they waited for answers.",
            description=f"{_COUNT} suspensions were lost in "
            f"{select.window(900)}: {_ON}. Their answers come too late.",
            dashboard=Dashboard.EXPIRY,
        ),
    )


def _memory(settings: Settings, select: Selectors) -> tuple[Alert, ...]:
    week, hour = select.window(604_800), select.window(3_600)
    bad, all_ = (
        f"sum by ({AGENT}) ({select.rate(catalogue.SUMMARIES, *matchers, window=900)})"
        for matchers in (('outcome!="ok"',), ())
    )
    # Counted over longer than the share is: where there are few summaries, all of them may fail.
    counted = select.increase(catalogue.SUMMARIES, 'outcome!="ok"', window=3_600)
    return (
        Alert(
            "BeamAgentsEvictionStorm",
            pages=False,
            # The week ends before the storm begins; without a week there is nothing to compare with.
            expression=f"{EVICTED_BYTES} > {settings.eviction_floor_bytes_per_s:.15g}\n"
            f"and\n{EVICTED_BYTES} > {settings.eviction_factor:.15g} * "
            f"avg_over_time({EVICTED_BYTES}[{week}] offset {hour})",
            hold_s=900,
            summary="Far more memory is evicted than in the week before.",
            description=f"{{{{ $value | humanize1024 }}}}B of working memory are evicted a second: {_ON}. "
            f"That is over {settings.eviction_factor:g} times the week's average.",
            dashboard=Dashboard.MEMORY,
        ),
        Alert(
            "BeamAgentsMemoryOverflow",
            pages=False,
            expression=f"sum by ({AGENT}) ({select.increase(catalogue.MEMORY_OVERFLOWS, window=900)}) > 0",
            hold_s=60,
            summary="Writes to working memory are refused at the hard cap.",
            description=f"{_COUNT} writes were refused in {select.window(900)}: {_ON}. "
            "The same key fails again.",
            dashboard=Dashboard.MEMORY,
        ),
        Alert(
            "BeamAgentsSummariesFailing",
            pages=False,
            expression=f"{bad}\n/\n({all_} > 0)\n> {settings.summary_failure_ratio:.15g}\n"
            f"and\nsum by ({AGENT}) ({counted}) >= {settings.min_failures:.15g}",
            hold_s=900,
            summary="Summaries of old memory fail.",
            description=f"{{{{ $value | humanizePercentage }}}} of the summaries fail: {_ON}. "
            "Their activations fail with them.",
            dashboard=Dashboard.MEMORY,
        ),
    )


def _activations(settings: Settings, select: Selectors) -> tuple[Alert, ...]:
    age = f"max by ({AGENT}, instance) ({select.of(catalogue.OLDEST_ACTIVATION_AGE_SECONDS)})"
    # Timers call no model: what is tried again when they fail looks nothing up.
    bundles = select.increase(catalogue.BUNDLE_FAILURES, 'phase="process"', window=1_800)
    failed = f"sum by ({AGENT}) ({bundles})"
    hits, misses = (
        f"sum by ({AGENT}) ({select.increase(catalogue.REPLAY_CACHE_REQUESTS, matcher, window=1_800)})"
        for matcher in ('result="hit"', 'result="miss"')
    )
    drifts = f"sum by ({AGENT}) ({select.increase(catalogue.REPLAY_CACHE_DRIFTS, window=1_800)})"
    missing = "Retries do not find the answers that models gave before."
    return (
        *_burn_alerts(
            "BeamAgentsActivationErrorBudgetBurn",
            ACTIVATIONS,
            select,
            summary="Too many activations fail.",
            what=f"activations fail: {_ON}. Each is a record on the errors output and can be sent again.",
            dashboard=Dashboard.ACTIVATIONS,
            variables=("job", "pipeline", "agent"),
        ),
        Alert(
            "BeamAgentsActivationStuck",
            pages=True,
            expression=f"{age} > {2 * settings.activation_timeout_s:.15g}",
            hold_s=60,
            summary="An activation runs far longer than it may.",
            description="An activation has run for {{ $value | humanizeDuration }} on "
            f"{{{{ $labels.instance }}}}: {_ON}. It should have ended after "
            f"{shown_duration(settings.activation_timeout_s)}.",
            dashboard=Dashboard.ACTIVATIONS,
            variables=("job", "pipeline", "agent", "instance"),
        ),
        Alert(
            "BeamAgentsReplayCacheMissing",
            pages=False,
            expression=f"({misses} > 0 unless {hits} > 0)\nand\n{failed} >= {settings.min_failures:.15g}",
            hold_s=900,
            labels={"cause": "no_hits"},
            summary=missing,
            description=f"{_COUNT} look-ups found nothing and none found something in "
            f"{select.window(1_800)} in which bundles were retried: {_ON}. Model calls are paid again.",
            dashboard=Dashboard.ACTIVATIONS,
        ),
        Alert(
            "BeamAgentsReplayCacheMissing",
            pages=False,
            expression=f"{drifts} > 0",
            hold_s=60,
            labels={"cause": "drift"},
            summary=missing,
            description=f"{_COUNT} repeated model calls were answered differently in "
            f"{select.window(1_800)}: {_ON}.",
            dashboard=Dashboard.ACTIVATIONS,
        ),
    )


def _workers(select: Selectors) -> tuple[Alert, ...]:
    lost = select.watched(select.increase(catalogue.TELEMETRY_DROPPED, window=900))
    works = select.watched(select.of(catalogue.TELEMETRY_INITIALISED))
    dropping = "Telemetry is lost: what dashboards show is incomplete."
    here = select.always_on()
    hour = select.window(3_600)
    return (
        Alert(
            "BeamAgentsTelemetryDropping",
            pages=False,
            expression=f"sum by (job, plugin, reason) ({lost}) > 0",
            hold_s=600,
            labels={"cause": "dropped"},
            summary=dropping,
            description=f"Plugin {{{{ $labels.plugin }}}} of job {{{{ $labels.job }}}} lost {_COUNT} "
            f"signals in {select.window(900)} ({{{{ $labels.reason }}}}).",
            dashboard=Dashboard.WORKERS,
            variables=("job",),
        ),
        Alert(
            "BeamAgentsTelemetryDropping",
            pages=False,
            expression=f"count by (job, plugin) ({works} == 0)",
            hold_s=300,
            labels={"cause": "not_built"},
            summary=dropping,
            description="Plugin {{ $labels.plugin }} of job {{ $labels.job }} could not be built in "
            "{{ $value }} workers: it tells nothing there.",
            dashboard=Dashboard.WORKERS,
            variables=("job",),
        ),
        Alert(
            "BeamAgentsWorkersAbsent",
            pages=True,
            expression=f"count by (job, pipeline) (count by (job, pipeline, instance) ({here} offset {hour}))"
            f"\nunless\ncount by (job, pipeline) ({here})",
            hold_s=300,
            summary="No worker of a pipeline reports.",
            description="Pipeline {{ $labels.pipeline }} (job {{ $labels.job }}) has no worker. It had "
            f"{{{{ $value }}}} {hour} ago. This alert ends by itself {hour} after they went.",
            dashboard=Dashboard.WORKERS,
            variables=("job", "pipeline"),
        ),
    )


def _burn_alerts(
    name: str,
    budget: Budget,
    select: Selectors,
    *,
    summary: str,
    what: str,
    dashboard: Dashboard,
    variables: tuple[str, ...],
    told_already: str = "",
) -> tuple[Alert, ...]:
    """Return the alerts of one budget.

    Args:
        name: Their name.
        budget: Which.
        select: How series are selected.
        summary: What is wrong, in constant words.
        what: What fails where.
        dashboard: Where to look first.
        variables: The dashboard's variables that the alerts' labels set.
        told_already: Of which job and store somebody was woken a moment ago: nobody is woken twice for that.
    """
    settings = select.settings
    news = f"\nunless on (job, backend) {told_already}" if told_already else ""
    allowed = 1 - getattr(settings, budget.objective)
    counted = f"sum by ({budget.by}) ({{}})"
    alerts = []
    for window in BURN_WINDOWS:
        # The share is bounded by 1, whatever the objective: a constant failure is always above.
        limit = min(window.factor * allowed, 0.99)
        failures = counted.format(
            select.increase(
                budget.metric,
                budget.failed,
                window=min(window.long_s, _LONGEST_COUNT_S),
                suffix=budget.suffix,
            )
        )
        # Half an hour remembers an outage that is over: nobody is woken for that.
        goes_on = window.pages and window.short_s > RATE_WINDOW_S
        alerts.append(
            Alert(
                name,
                pages=window.pages,
                expression=f"{budget.ratio(window.long_s)} > {limit:.10g}\n"
                f"and\n{budget.ratio(window.short_s)} > {limit:.10g}\n"
                + (f"and\n{budget.ratio(RATE_WINDOW_S)} > 0\n" if goes_on else "")
                + f"and\n{failures} >= {settings.min_failures:.15g}"
                + (news if window.pages else ""),
                hold_s=window.hold_s,
                labels={"window": duration(window.long_s)},
                summary=summary,
                description=f"{{{{ $value | humanizePercentage }}}} of {select.window(window.long_s)}'s "
                f"{what} The objective allows {allowed:.3%}, and this is over {window.factor:g} times that.",
                dashboard=dashboard,
                variables=variables,
            )
        )
    # Where there is little traffic, few failures are still all there is.
    failures = counted.format(select.increase(budget.metric, budget.failed, window=600, suffix=budget.suffix))
    alerts.append(
        Alert(
            name,
            pages=True,
            expression=f"{budget.ratio(RATE_WINDOW_S)} >= 0.999\nand\n{failures} >= 2{news}",
            hold_s=300,
            labels={"window": duration(300)},
            summary=summary,
            description=f"{{{{ $value | humanizePercentage }}}} of {select.window(300)}'s {what}",
            dashboard=dashboard,
            variables=variables,
        )
    )
    return tuple(alerts)
