"""From what went wrong to one record on the errors output, without content."""

from __future__ import annotations

import os
import sysconfig
import traceback
from typing import TYPE_CHECKING, Final

from apache_beam.pvalue import TaggedOutput

from beam_agents.errors import (
    BeamAgentsError,
    BudgetExceeded,
    InvalidOutcome,
    MemoryOverflow,
    StateUndecodable,
    StateVersionUnsupported,
    StoreError,
)
from beam_agents.runtime.elements import ERRORS
from beam_agents.runtime.measures import measure_ended
from beam_agents.runtime.summarize import SummaryFailed
from beam_agents.signals import catalogue
from beam_agents.signals.types import Outcome as OutcomeLabel
from beam_agents.signals.types import Reason
from beam_agents.wire.beam_agents_pb2 import ActivationError

if TYPE_CHECKING:
    from beam_agents.signals.observer import Record
    from beam_agents.wire.beam_agents_pb2 import AgentEnvelope, ToolIntent

_RUNTIME: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 - as frames have it
_PYTHON: Final = (_RUNTIME, "<", *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")))
_INSTALLED: Final = tuple(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib"))

__all__ = ["AgentExited", "Refused", "refusal", "refuse"]


class Refused(Exception):
    """Ends an element with one record on the errors output."""

    def __init__(self, reason: Reason, detail: str, error_type: str = "") -> None:
        self.reason = reason
        self.detail = detail
        self.error_type = error_type or reason.value
        super().__init__(reason, detail)


class AgentExited(Exception):
    """The agent called sys.exit(), or raised KeyboardInterrupt."""


def refuse(
    record: Record, envelope: AgentEnvelope, event_time_ms: int | None, refusal: Refused
) -> TaggedOutput[str, ToolIntent | ActivationError]:
    """Note a refusal and return its record for the errors output."""
    record.outcome = OutcomeLabel.FAILED.value
    record.reason = refusal.reason.value
    record.error_type = refusal.error_type
    if refusal.reason is Reason.ORPHANED_RESULT:
        record.measure(catalogue.ORPHANED_RESULTS, 1)
    else:
        record.measure(catalogue.ACTIVATION_ERRORS, 1, record.reason)
        if record.span is catalogue.SPAN_INVOKE_AGENT:
            measure_ended(record, record.outcome)
    record.happened(
        catalogue.EVENT_ACTIVATION_FAILED, reason=record.reason, error_type=record.error_type, seq=record.seq
    )
    error = ActivationError(
        entity_key=record.entity_key,
        reason=record.reason,
        detail=refusal.detail,
        event_time_ms=event_time_ms,
        event_id=envelope.event_id,
        seq=record.seq,
    )
    return TaggedOutput(ERRORS, error)


_REASONS: Final[tuple[tuple[type[Exception], Reason], ...]] = (
    (BudgetExceeded, Reason.BUDGET_EXCEEDED),
    (InvalidOutcome, Reason.INVALID_OUTCOME),
    (MemoryOverflow, Reason.MEMORY_OVERFLOW),
    (StateUndecodable, Reason.STATE_UNDECODABLE),
    (StateVersionUnsupported, Reason.STATE_VERSION_UNSUPPORTED),
    (StoreError, Reason.LONGTERM_READ_FAILED),
)


def refusal(error: BaseException, entity: str = "") -> Refused:
    """Return what an exception means: a reason and a detail that hold no content.

    The text of an exception of ours is built from types, sizes and ids, so it may be shown; of any other
    exception only the class and the place may.
    """
    by_default = Reason.ACTIVATION_ERROR
    error = _leaf(error)
    if isinstance(error, SummaryFailed) and error.__cause__ is not None:
        by_default = Reason.SUMMARY_FAILED
        error = error.__cause__
    if isinstance(error, AgentExited) and error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, StateUndecodable | StateVersionUnsupported):
        error.entity = error.entity or entity
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), by_default)
    error_type = type(error).__name__
    detail = f"{error_type}: {error}" if isinstance(error, BeamAgentsError) else error_type
    place = _place(error)
    return Refused(reason, f"{detail} (at {place})" if place else detail, error_type)


def _leaf(error: BaseException) -> BaseException:
    """Return what a group of exceptions is about: the first with a reason of its own, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_leaf(each) for each in error.exceptions]
    return next((each for each in leaves if isinstance(each, tuple(kind for kind, _ in _REASONS))), leaves[0])


def _place(error: BaseException) -> str:
    """Return where an exception came from, as file name, line and function: code, not content.

    That is the innermost frame of the user's own code, if there is any: what went wrong deeper, in a library
    or in the runtime, is named by the exception's class.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    # Packages are installed below Python's own library, and may be the user's.
    foreign = [each for each in frames if each.filename.startswith(_INSTALLED)]
    own = [each for each in frames if not each.filename.startswith((*_PYTHON, *_INSTALLED))]
    places = own or [each for each in foreign if not each.filename.startswith(_RUNTIME)]
    if not places and isinstance(error, BeamAgentsError):
        # Its text says all that there is to say; where in the runtime it was raised helps nobody.
        return ""
    frame = (places or frames)[-1]
    return f"{os.path.basename(frame.filename)}:{frame.lineno} in {frame.name}"  # noqa: PTH119 - no path is touched
