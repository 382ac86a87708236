"""What an activation emits: the main output's bytes, and what goes to the other two outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from apache_beam.pvalue import TaggedOutput

    from beam_agents.wire.beam_agents_pb2 import ActivationError, ToolIntent

__all__ = ["ERRORS", "INTENTS", "Element"]

# Quoted: TaggedOutput of Beam 2.70 takes no parameters at run time.
Element: TypeAlias = "bytes | TaggedOutput[str, ToolIntent | ActivationError]"

INTENTS: Final = "intents"
ERRORS: Final = "errors"
