"""What an error says of an argument: its name, what it is and what it should be; never a content."""

from __future__ import annotations

import pytest

from beam_agents.checks import check_int, check_text, check_texts, kind_of
from beam_agents.errors import InvalidArgument, InvalidArgumentType


class Named:
    __name__ = "of the user's making"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, "int"),
        (None, "NoneType"),
        (Named, "Named"),
        (Named(), "Named"),
        (len, "len"),
        (kind_of, "kind_of"),
    ],
)
def test_a_value_is_called_by_its_type_and_code_by_its_name(value: object, kind: str) -> None:
    assert kind_of(value) == kind


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_int(value: object) -> None:
    with pytest.raises(InvalidArgumentType, match=rf"^size must be an int, not {type(value).__name__}$"):
        check_int("size", value, 0)


@pytest.mark.parametrize(
    ("value", "highest", "wanted"), [(0, None, "at least 1"), (0, 9, "from 1 to 9"), (10, 9, "from 1 to 9")]
)
def test_an_int_out_of_its_range(value: int, highest: int | None, wanted: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^size must be {wanted}, not {value}$"):
        check_int("size", value, 1, highest)


@pytest.mark.parametrize("value", [1, 9])
def test_both_bounds_are_in_the_range(value: int) -> None:
    assert check_int("size", value, 1, 9) == value


def test_texts() -> None:
    assert check_text("name", "a\n😀") == "a\n😀"
    check_texts("names", ("a", "b"))
    for wrong in (["a"], "a", (b"a",)):
        with pytest.raises(InvalidArgumentType):
            check_texts("names", wrong)
    with pytest.raises(InvalidArgument, match=r"^each of names must not be empty$"):
        check_texts("names", ("a", ""))


def test_half_a_surrogate_pair_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_text("name", "secret\ud800")
    assert "secret" not in str(raised.value)
    assert raised.value.__cause__ is None
