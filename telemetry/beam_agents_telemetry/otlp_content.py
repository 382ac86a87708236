"""Content on spans, for development: an operator's explicit option, with a hook that may redact it."""

from __future__ import annotations

import json
import re
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from beam_agents.errors import PluginUnusable
from beam_agents.signals import Content, catalogue, count_lost
from beam_agents.signals import conventions as otel

if TYPE_CHECKING:
    from collections.abc import Callable

    from beam_agents.signals import Record, Step
    from beam_agents_telemetry.options import OptionChecks

__all__ = ["ContentAttributes", "Redact", "check_redact", "load_redact"]

Redact: TypeAlias = "Callable[[str, bytes], str | None]"
"""Takes the attribute's name and the first bytes of the data; returns what may be shown, None for nothing."""

_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MESSAGES: Final = {
    Content.INPUT: (otel.GEN_AI_INPUT_MESSAGES, {"role": "user"}),
    Content.OUTPUT: (otel.GEN_AI_OUTPUT_MESSAGES, {"role": "assistant", "finish_reason": "stop"}),
}
_TOOL: Final = {Content.INPUT: otel.GEN_AI_TOOL_CALL_ARGUMENTS, Content.OUTPUT: otel.GEN_AI_TOOL_CALL_RESULT}


def check_redact(checks: OptionChecks, given: object) -> str:
    """Return the name of a redaction hook, ``package.module:function``; empty for none.

    Raises:
        InvalidArgument: It is no such name.
    """
    name = checks.text("redact", given)
    if name and not _NAME.fullmatch(name):
        raise checks.refused("redact", "a name like package.module:function", given)
    return name


def load_redact(name: str) -> Redact:
    """Return the hook of a name that :func:`check_redact` passed; without one, bytes are shown as UTF-8.

    Raises:
        PluginUnusable: It is not there, or cannot be called.
    """
    if not name:
        return _as_text
    module, _, function = name.partition(":")
    try:
        redact: object = getattr(import_module(module), function, None)
    except Exception as error:
        # What a module raises at its import may be anything.
        raise PluginUnusable(
            f"redact: the module {module} cannot be imported: {type(error).__name__}"
        ) from error
    if not callable(redact):
        raise PluginUnusable(f"redact: the module {module} has no function {function}")
    return cast("Redact", redact)


def _as_text(_: str, data: bytes) -> str:
    return data.decode(errors="replace")


class ContentAttributes:
    """What a record captured, as attributes of its spans.

    Args:
        redact: The hook. What it raises leaves the content out, and is counted.
        plugin: The plugin's name, for the count.
    """

    def __init__(self, redact: Redact, plugin: str) -> None:
        self._redact = redact
        self._plugin = plugin

    def of(self, record: Record) -> dict[int, dict[str, str]]:
        """Return attributes by the step's identity; 0 is the activation itself."""
        found: dict[int, dict[str, str]] = {}
        for step, content, data in record.contents:
            if data:
                named = self._attribute(step, content, data)
                if named is not None:
                    found.setdefault(id(step) if step is not None else 0, {}).update([named])
        return found

    def _attribute(self, step: Step | None, content: Content, data: bytes) -> tuple[str, str] | None:
        tool = step is not None and step.span is catalogue.SPAN_EXECUTE_TOOL
        key, message = (_TOOL[content], None) if tool else _MESSAGES[content]
        try:
            shown = self._redact(key, data)
            if shown is None:
                return None
            if not isinstance(shown, str):
                raise TypeError("redact must return a str or None")  # noqa: TRY301 - one handler for all faults
            # What UTF-8 cannot hold would cost the whole request.
            shown = shown.encode(errors="replace").decode()
        except BaseException as error:  # noqa: BLE001 - what cannot be redacted is not shown; the thread lives
            count_lost(self._plugin, "redact", type(error).__name__)
            return None
        if message is None:
            return key, shown
        return key, json.dumps([{**message, "parts": [{"type": "text", "content": shown}]}])
