"""Checks of what users hand over: each names the argument, what it is and what it should be."""

from __future__ import annotations

import inspect

from beam_agents.errors import InvalidArgument, InvalidArgumentType

__all__ = ["check_int", "check_text", "check_texts", "kind_of"]


def kind_of(value: object) -> str:
    """Return what a value is called in an error: a class's or function's own name, else its type's."""
    if isinstance(value, type) or inspect.isroutine(value):
        return str(getattr(value, "__name__", type(value).__name__))
    return type(value).__name__


def check_int(name: str, value: object, lowest: int, highest: int | None = None) -> int:
    """Return a number if it is one within its range; True and False are none.

    Raises:
        TypeError: It is no int.
        ValueError: It is out of its range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgumentType(f"{name} must be an int, not {kind_of(value)}")
    if value < lowest or (highest is not None and value > highest):
        wanted = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"
        raise InvalidArgument(f"{name} must be {wanted}, not {value}")
    return value


def check_text(name: str, value: object) -> str:
    """Return a text if it is one, not empty, that UTF-8 can hold.

    Raises:
        TypeError: It is no str.
        ValueError: It is empty, or has a lone surrogate.
    """
    if not isinstance(value, str):
        raise InvalidArgumentType(f"{name} must be a str, not {kind_of(value)}")
    if not value:
        raise InvalidArgument(f"{name} must not be empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        # Without the cause, whose text has the value in it.
        raise InvalidArgument(f"{name} must be text that UTF-8 can hold (no lone surrogates)") from None
    return value


def check_texts(name: str, value: object) -> None:
    """Check a tuple of texts, each as :func:`check_text` does; raise as it does."""
    if not isinstance(value, tuple):
        raise InvalidArgumentType(f"{name} must be a tuple of str, not {kind_of(value)}")
    for each in value:
        check_text(f"each of {name}", each)
