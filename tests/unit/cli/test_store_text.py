"""Keys and places as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.cli.store_text import (
    cursor_of,
    from_base64,
    given_bytes,
    place_of,
    shown_bytes,
    shown_size,
    shown_time,
)
from beam_agents.memory.stores.contract import RowId


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"ada", "ada"),
        ("naïve ☕".encode(), "naïve ☕"),
        (b"[red]x[/red]", "[red]x[/red]"),
        (b"", ""),
        (b"\x00\xff", "base64:AP8="),
        (b"two\nlines", "base64:dHdvCmxpbmVz"),
        (b"base64:x", "base64:YmFzZTY0Ong="),
    ],
)
def test_bytes_are_shown_as_text_only_where_they_are_printable(value: bytes, shown: str) -> None:
    assert shown_bytes(value) == shown


@given(st.binary(max_size=40))
def test_what_is_shown_names_one_value(value: bytes) -> None:
    shown = shown_bytes(value)
    assert (from_base64(shown) if shown.startswith("base64:") else shown.encode()) == value


@given(st.binary(max_size=40), st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_a_cursor_names_its_place(entity_key: bytes, key: str) -> None:
    place = RowId(entity_key, key)
    assert place_of(cursor_of(place)) == place
    assert cursor_of(place).isascii()


@pytest.mark.parametrize("cursor", ["", "61", "6:61", "61:ff", "x:y"])
def test_what_is_no_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        place_of(cursor)


def test_bytes_are_given_as_text_or_as_base64() -> None:
    assert given_bytes(None, None) is None
    assert given_bytes("", None) == b""
    assert given_bytes("a\udcff", None) == b"a\xff"
    assert given_bytes(None, "AP8=") == given_bytes(None, "base64:AP8=") == b"\x00\xff"
    with pytest.raises(ValueError, match="not both"):
        given_bytes("a", "YQ==")
    with pytest.raises(ValueError, match="no base64"):
        given_bytes(None, "a b")


def test_sizes_and_times() -> None:
    assert [shown_size(size) for size in (1023, 1024, 3 * 1024**2, 5 * 1024**3)] == [
        "1023 B",
        "1.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
    assert shown_time(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert shown_time(2**63 - 1) == "9223372036854775807 ms"
