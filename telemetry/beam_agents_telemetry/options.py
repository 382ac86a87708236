"""What an operator may write as a plugin's option, checked where it is written.

Each check takes what was given, a text of ``"name?option=value"`` or a Python value, and returns what is
meant. What it refuses, it tells in one form: the plugin, the option, what would be right, and of what was
given only its type or its length, as that may be anything.
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from beam_agents.errors import InvalidArgument, InvalidArgumentType

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OptionChecks"]

_SWITCHES: Final = {
    "true": True, "1": True, "yes": True, "on": True,
    "false": False, "0": False, "no": False, "off": False,
}  # fmt: skip
# What Python reads as a number is more: digits of all scripts, underscores, nan.
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class OptionChecks:
    """The checks of one plugin's options. All raise InvalidArgument and InvalidArgumentType alone.

    Attributes:
        plugin: The plugin's name.
    """

    plugin: str

    def problem(self, what: str) -> InvalidArgument:
        """Return the error of options that do not fit each other."""
        return InvalidArgument(f"{self.plugin}: {what}")

    def refused(self, option: str, wanted: str, given: object) -> InvalidArgument:
        """Return the error of a value that an option may not have, without that value."""
        if not isinstance(given, str):
            return self.problem(f"{option} must be {wanted}; this one is not")
        told = f"a text of {len(given):,} characters" if given else "an empty text"
        return self.problem(f"{option} must be {wanted}, not {told}")

    def switch(self, option: str, given: object) -> bool:
        """Return the state of something that is on or off."""
        if isinstance(given, bool):
            return given
        if not isinstance(given, str):
            raise self._mistyped(option, "true or false", given)
        word = given.lower()
        if word not in _SWITCHES:
            raise self.refused(option, "true or false", given)
        return _SWITCHES[word]

    def whole(self, option: str, given: object, least: int, most: int) -> int:
        """Return a whole number within its range."""
        wanted = f"a whole number from {least:,} to {most:,}"
        if isinstance(given, bool) or not isinstance(given, str | int):
            raise self._mistyped(option, wanted, given)
        value = int(given) if isinstance(given, str) and _WHOLE.fullmatch(given) else given
        if isinstance(value, str) or not least <= value <= most:
            raise self.refused(option, wanted, value)
        return value

    def number(self, option: str, given: object, least: float, most: float) -> float:
        """Return a number within its range."""
        wanted = f"a number from {least:,} to {most:,}"
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            raise self._mistyped(option, wanted, given)
        value = float(given) if isinstance(given, str) and _NUMBER.fullmatch(given) else given
        # Compared before it is made a float: an int may be too long for one.
        if isinstance(value, str) or not least <= value <= most:
            raise self.refused(option, wanted, value)
        return float(value)

    def choice(self, option: str, given: object, choices: Iterable[str]) -> str:
        """Return which of some words is meant."""
        wanted = f"one of {', '.join(choices)}"
        if not isinstance(given, str):
            raise self._mistyped(option, wanted, given)
        word = given.lower()
        if word not in choices:
            raise self.refused(option, wanted, given)
        return word

    def text(self, option: str, given: object) -> str:
        """Return a text that UTF-8 can hold; empty for none."""
        if not isinstance(given, str):
            raise self._mistyped(option, "a text", given)
        if "\0" in given or not _encodable(given):
            raise self.refused(option, "a text without a NUL and that UTF-8 can hold", given)
        return given

    def path(self, option: str, given: object) -> str:
        """Return the path of a file or folder on the worker; empty for none."""
        path: object = os.fspath(given) if isinstance(given, os.PathLike) else given
        if not isinstance(path, str):
            raise self._mistyped(option, "a path, of text", path)
        if "\0" in path or not _encodable(path):
            raise self.refused(option, "a path without a NUL and that UTF-8 can hold", path)
        return path

    def host(self, option: str, given: object) -> str:
        """Return an IP address in its shortest form, or a host's name."""
        text = self.text(option, given)
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            if _HOST.fullmatch(text):
                return text
        wanted = "an IP address or a host name, without a port (0.0.0.0, ::1, worker-7)"
        raise self.refused(option, wanted, given)

    def _mistyped(self, option: str, wanted: str, given: object) -> InvalidArgumentType:
        return InvalidArgumentType(
            f"{self.plugin}: {option} must be {wanted}, not of the type {type(given).__name__}"
        )


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
