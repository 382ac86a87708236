"""Entity keys, row keys and places as text: on a command line, in a table, in a cursor."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Final

from beam_agents.memory.stores.contract import RowId

__all__ = [
    "cursor_of",
    "from_base64",
    "given_bytes",
    "place_of",
    "shown_bytes",
    "shown_size",
    "shown_time",
]

_BASE64: Final = "base64:"


def shown_bytes(value: bytes) -> str:
    """Return bytes as text where they are printable UTF-8, else as ``base64:…``."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    # Text that looks like the other form is shown in it, so that each form means one thing.
    if text.isprintable() and not text.startswith(_BASE64) and bool(text) == bool(value):
        return text
    return _BASE64 + base64.b64encode(value).decode()


def from_base64(text: str) -> bytes:
    """Return the bytes of base64, also as it is shown, ``base64:…``.

    Raises:
        ValueError: It is no base64.
    """
    try:
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    except binascii.Error:
        raise ValueError("it is no base64") from None


def given_bytes(text: str | None, encoded: str | None) -> bytes | None:
    """Return what was given as text or as base64; None if neither was.

    Raises:
        ValueError: Both were, or the base64 is none.
    """
    if text is not None and encoded is not None:
        raise ValueError("give it as text or as base64, not both")
    if encoded is not None:
        return from_base64(encoded)
    # A shell hands over bytes; Python has those that are no UTF-8 as lone surrogates.
    return None if text is None else text.encode("utf-8", "surrogateescape")


def cursor_of(place: RowId) -> str:
    """Return a place among rows as a word that a command line takes back."""
    return f"{place.entity_key.hex()}:{place.key.encode().hex()}"


def place_of(cursor: str) -> RowId:
    """Return the place that a cursor names.

    Raises:
        ValueError: :func:`cursor_of` did not write it.
    """
    entity, colon, key = cursor.partition(":")
    try:
        if colon:
            return RowId(bytes.fromhex(entity), bytes.fromhex(key).decode())
    except ValueError:
        pass
    raise ValueError("it is no cursor: give the one that an interrupted copy printed, whole")


_KIB: Final = 1024


def shown_size(size: int) -> str:
    """Return a number of bytes for people."""
    if size < _KIB:
        return f"{size} B"
    if size < _KIB**2:
        return f"{size / _KIB:.1f} KiB"
    if size < _KIB**3:
        return f"{size / _KIB**2:.1f} MiB"
    return f"{size / _KIB**3:,.1f} GiB"


def shown_time(at_ms: int) -> str:
    """Return milliseconds since the Unix epoch as ISO 8601, in UTC."""
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        # Beyond the year 9999, which is what a poisoned row may say.
        return f"{at_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
