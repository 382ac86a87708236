"""Which traces are kept: a share of all, decided at the start; and what turned out to matter, at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beam_agents.signals import Outcome, catalogue

if TYPE_CHECKING:
    from beam_agents.signals import Record

__all__ = ["Sampling", "did_something", "worth_keeping"]

_LOW_64_BITS: Final = (1 << 64) - 1

# Two str are compared faster than a str and a member of a StrEnum.
_FAILED: Final = Outcome.FAILED.value

# What somebody will want to look into, whatever the sampler said.
_TELLING_EVENTS: Final = frozenset(
    {
        catalogue.EVENT_ACTIVATION_FAILED,
        catalogue.EVENT_MEMORY_OVERFLOW,
        catalogue.EVENT_SUMMARY_FAILED,
        catalogue.EVENT_LONGTERM_FLUSH_FAILED,
        catalogue.EVENT_LONGTERM_UPSERT_STALE,
        catalogue.EVENT_STORE_DOWN,
        catalogue.EVENT_STORE_RECOVERED,
        catalogue.EVENT_EXPIRE_WEDGED,
        catalogue.EVENT_EXPIRE_RECOVERED,
        catalogue.EVENT_SUSPENSION_WIPED,
    }
)


class Sampling:
    """What is decided at the start: as whoever sent the event did, else by the trace's id.

    All workers and all attempts decide alike, and as any other service with the same ratio does.

    Args:
        ratio: Which share of the traces is kept.
        parent_based: Whether a ``traceparent`` that the event brought decides before that.

    Attributes:
        ratio: As given.
        parent_based: As given.
    """

    def __init__(self, ratio: float, *, parent_based: bool = True) -> None:
        self.ratio = ratio
        self.parent_based = parent_based
        # What the low 64 bits of a kept trace's id are below: OpenTelemetry's TraceIdRatioBased.
        self._bound = round(ratio * (_LOW_64_BITS + 1))

    def keeps(self, record: Record) -> bool:
        """Decide for the trace of what has begun."""
        # Of every activation it is asked, and most events carry nothing.
        if record.traceparent and self.parent_based and (parent := record.parent) is not None:
            return parent.sampled
        bound = self._bound
        # Worked out only where they decide something.
        return bound > 0 and (bound > _LOW_64_BITS or record.sampling_bits < bound)


def worth_keeping(record: Record) -> bool:
    """Decide at the end: whether something went wrong, or was tried again, or was refused as stale."""
    return (
        record.outcome == _FAILED
        or bool(record.error_type)
        or record.attempt > 1
        # Nothing happens to most.
        or (bool(record.happenings) and any(each.event in _TELLING_EVENTS for each in record.happenings))
    )


def did_something(record: Record) -> bool:
    """Tell whether there is anything to show: not of a probe that succeeded, nor a timer that was early."""
    if record.span is catalogue.SPAN_INVOKE_AGENT:
        return True
    if record.error_type or record.outcome == Outcome.FAILED:
        return True
    if record.span is catalogue.SPAN_STORE_PROBE:
        return False
    return any(
        metric in (catalogue.TTL_WIPES, catalogue.ACTIVATION_ERRORS) for metric, _, _ in record.measurements
    )
