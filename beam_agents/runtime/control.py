"""The control cell: a key's seq, clock, expiry and suspensions, as bytes and as decisions about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from google.protobuf.message import DecodeError

from beam_agents.errors import StateUndecodable, StateVersionUnsupported, hash_entity_key
from beam_agents.runtime.refusals import Refused, refusal
from beam_agents.signals.types import Reason
from beam_agents.wire.beam_agents_pb2 import ControlState, SettledIntent

if TYPE_CHECKING:
    from beam_agents.runtime.cells import Cells, StateCell
    from beam_agents.wire.beam_agents_pb2 import Suspension, ToolResult

__all__ = [
    "CONTROL_VERSION",
    "MAX_CONTROL_BYTES",
    "MAX_SETTLED_INTENTS",
    "MAX_TIMER_MS",
    "MAX_TIMESTAMP",
    "decode_control",
    "in_order",
    "read_control",
    "set_ttl",
    "settle",
    "take_result",
    "write_cell",
    "write_control",
]

CONTROL_VERSION: Final = 1
MAX_CONTROL_BYTES: Final = 4_194_304
"""What suspensions may take in a key's control cell, which every activation of the key reads and writes."""
MAX_SETTLED_INTENTS: Final = 64
"""Intents remembered per key after they were answered or given up."""

MAX_TIMESTAMP: Final = GlobalWindow().max_timestamp()
MAX_TIMER_MS: Final = MAX_TIMESTAMP.micros // 1000


def read_control(key: bytes, cell: StateCell) -> ControlState:
    """Return what the cell holds; a new one for an empty cell.

    Raises:
        Refused: It does not decode, or a newer version wrote it.
    """
    stored = cell.read()
    if stored is None:
        return ControlState()
    try:
        return decode_control(key, stored)
    except (StateUndecodable, StateVersionUnsupported) as error:
        raise refusal(error) from error


def decode_control(key: bytes, stored: bytes) -> ControlState:
    """Return the message that the cell's bytes are.

    Raises:
        StateUndecodable: They do not decode.
        StateVersionUnsupported: A newer version wrote them.
    """
    try:
        control = ControlState.FromString(stored)
    except DecodeError as error:
        raise StateUndecodable("control", hash_entity_key(key)) from error
    version = control.state_schema_version
    if version > CONTROL_VERSION:
        raise StateVersionUnsupported("control", version, CONTROL_VERSION, hash_entity_key(key))
    if version == 0:
        # No version of the runtime writes a control cell without its version.
        raise StateUndecodable("control", hash_entity_key(key))
    return control


def write_control(cells: Cells, control: ControlState) -> None:
    """Write the cell and set the timer of the key's expiry."""
    write_cell(cells, control)
    set_ttl(cells, control)


def write_cell(cells: Cells, control: ControlState) -> None:
    """Write the cell alone."""
    control.state_schema_version = CONTROL_VERSION
    cells.control.write(control.SerializeToString(deterministic=True))


def set_ttl(cells: Cells, control: ControlState) -> None:
    """Set the timer of the key's expiry."""
    cells.ttl.set(Timestamp(micros=min(control.expires_at_ms, MAX_TIMER_MS) * 1000))


def take_result(control: ControlState, result: ToolResult) -> Suspension:
    """Put an answer to the suspension that waits for it and return that.

    Raises:
        Refused: Nobody waits for it.
    """
    for suspension in control.suspensions:
        if result.intent_id in suspension.waiting_for:
            if any(result.intent_id == kept.intent_id for kept in suspension.results):
                raise _orphan("twice: the same intent was answered before")
            suspension.results.append(result)
            return suspension
    for settled in control.settled:
        if settled.intent_id == result.intent_id:
            if settled.answered:
                raise _orphan("twice: the same intent was answered before")
            raise _orphan("late: its suspension had timed out")
    raise _orphan("unknown: this key waits for no such intent (or was wiped since)")


def _orphan(why: str) -> Refused:
    return Refused(Reason.ORPHANED_RESULT, why)


def in_order(resumed: Suspension | None) -> tuple[ToolResult, ...]:
    """Return the answers in the order in which the suspension named their intents."""
    if resumed is None:
        return ()
    by_id = {result.intent_id: result for result in resumed.results}
    return tuple(by_id[intent_id] for intent_id in resumed.waiting_for)


def settle(control: ControlState, suspension: Suspension, *, answered: bool) -> None:
    """Remember how a suspension's intents ended; the oldest are forgotten."""
    came = {result.intent_id for result in suspension.results}
    for intent_id in suspension.waiting_for:
        control.settled.append(SettledIntent(intent_id=intent_id, answered=answered or intent_id in came))
    excess = len(control.settled) - MAX_SETTLED_INTENTS
    if excess > 0:
        del control.settled[:excess]
