"""Rows of JSONL and CSV files, read one at a time, as envelopes or as a report of what is wrong with them."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Final, NoReturn, TypeAlias

from beam_agents.transform import envelope_from_mapping, event_time_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

__all__ = [
    "Fields",
    "Input",
    "InputError",
    "LineReader",
    "Malformed",
    "RowFormat",
    "check_fields",
    "read_rows",
]

MAX_LINE_BYTES: Final = 16_777_216
"""Longer lines are malformed: reading stays bounded whatever the file holds."""
SAMPLE_ROWS: Final = 1_000
"""How many rows of a JSONL file are looked at for its fields before the run starts."""
_MAX_TIME_DIGITS: Final = 18

Row: TypeAlias = "dict[str, object]"


class RowFormat(StrEnum):
    """The formats of input files."""

    JSONL = "jsonl"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Input:
    """One input file.

    Attributes:
        path: Where it is.
        label: What reports call it.
    """

    path: str
    label: str


@dataclass(frozen=True, slots=True)
class Fields:
    """Which field of a row means what.

    Attributes:
        key: The entity's key: text or an integer.
        time: The event's time: ISO 8601, or epoch milliseconds as a number or as digits.
        payload: What becomes the event: text as it is, anything else as JSON. None: the whole row, as JSON.
        event_id: The event's id; None for none.
    """

    key: str
    time: str
    payload: str | None = None
    event_id: str | None = None

    def required(self) -> tuple[str, ...]:
        """Return the fields without which a row is malformed."""
        return tuple(field for field in (self.key, self.time, self.payload) if field is not None)


@dataclass(frozen=True, slots=True)
class Malformed:
    """One row that is no event.

    Attributes:
        file: The file's label.
        line: The number of the row's first line, from 1.
        detail: What is wrong; names fields, types and positions, never content.
    """

    file: str
    line: int
    detail: str


class InputError(ValueError):
    """An input cannot be what it was said to be; known before anything runs."""


class _RowError(ValueError):
    """One row is malformed; the message is its report."""


class LineReader:
    """Lines of a binary file, as bytes without their ends, never longer than ``MAX_LINE_BYTES``.

    Attributes:
        number: Lines read so far: the number of the last one, from 1.
        bytes_read: Bytes read so far.
        overlong: Whether the last line was cut off at the limit.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.number = 0
        self.bytes_read = 0
        self.overlong = False

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            self.bytes_read += len(line)
            self.number += 1
            self.overlong = len(line) > MAX_LINE_BYTES
            rest = line
            while not rest.endswith(b"\n") and (rest := self._file.readline(MAX_LINE_BYTES)):
                self.bytes_read += len(rest)
            if self.number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            yield line.rstrip(b"\r\n")


def read_rows(
    lines: LineReader, label: str, row_format: RowFormat, fields: Fields
) -> Iterator[AgentEnvelope | Malformed]:
    """Read a file's rows as envelopes, and as reports where they are malformed. Blank lines are skipped.

    Raises:
        InputError: A CSV file has no header that could be one.
    """
    for number, row in _read_mappings(lines, label, row_format):
        if isinstance(row, Malformed):
            yield row
            continue
        try:
            yield _envelope(row, fields)
        except _RowError as error:
            yield Malformed(label, number, str(error))


def check_fields(source: Input, row_format: RowFormat, fields: Fields) -> None:
    """Refuse a file in which no row can be an event, as far as its beginning tells.

    Raises:
        InputError: A CSV header lacks a field, or none of the first rows of a JSONL file has it.
        OSError: The file cannot be read.
    """
    with open(source.path, "rb") as file:  # noqa: PTH123 - the paths are plain text here and in the pipeline
        lines = LineReader(file)
        if row_format is RowFormat.CSV:
            columns = _read_header(_decoded(lines), source.label)
            wanted = (*fields.required(), fields.event_id) if columns else ()
            for field in wanted:
                if field is not None and field not in columns:
                    raise InputError(
                        f"{source.label} has no column {field!r}; its columns: {', '.join(columns)}"
                    )
            return
        seen: dict[str, None] = {}
        for number, row in _read_mappings(lines, source.label, row_format):
            if not isinstance(row, Malformed):
                seen.update(dict.fromkeys(row))
            if number >= SAMPLE_ROWS or seen.keys() >= set(fields.required()):
                break
        for field in fields.required():
            if seen and field not in seen:
                raise InputError(
                    f"{source.label}: none of the first rows has the field {field!r}; their fields: "
                    f"{', '.join(list(seen)[:20])}"
                )


def _read_mappings(
    lines: LineReader, label: str, row_format: RowFormat
) -> Iterator[tuple[int, Row | Malformed]]:
    if row_format is RowFormat.CSV:
        return _read_csv(lines, label)
    return _read_jsonl(lines, label)


def _read_jsonl(lines: LineReader, label: str) -> Iterator[tuple[int, Row | Malformed]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            if lines.overlong:
                raise _RowError(f"longer than {MAX_LINE_BYTES} bytes")  # noqa: TRY301 - one handler for all that is wrong
            yield lines.number, _parse_object(line)
        except _RowError as error:
            yield lines.number, Malformed(label, lines.number, str(error))


def _read_csv(lines: LineReader, label: str) -> Iterator[tuple[int, Row | Malformed]]:
    reader = _decoded(lines)
    columns = _read_header(reader, label)
    while True:
        first = lines.number + 1
        try:
            values = next(reader)
            if lines.overlong:
                raise _RowError(f"longer than {MAX_LINE_BYTES} bytes")  # noqa: TRY301 - one handler for all that is wrong
            if not values:
                continue
            if len(values) != len(columns):
                raise _RowError(f"{len(values)} fields, and the header has {len(columns)}")  # noqa: TRY301 - as above
            if not all(map(_is_text, values)):
                raise _RowError("not UTF-8")  # noqa: TRY301 - as above
        except StopIteration:
            return
        except (_RowError, csv.Error) as error:
            detail = str(error) if isinstance(error, _RowError) else f"not CSV: {error}"
            if lines.number > first:
                detail += f" (the row reaches to line {lines.number}: is a quote left open?)"
            yield first, Malformed(label, first, detail)
        else:
            yield first, dict(zip(columns, values, strict=True))


def _decoded(lines: LineReader) -> Iterator[list[str]]:
    # Bytes that are no UTF-8 come through as lone surrogates, so that only their own row is malformed.
    return csv.reader((line.decode("utf-8", "surrogateescape") + "\n" for line in lines), strict=True)


def _read_header(reader: Iterator[list[str]], label: str) -> list[str]:
    """Return the columns' names; none for an empty file."""
    try:
        columns = next((row for row in reader if row), [])
    except csv.Error as error:
        raise InputError(f"{label}: its first line is no CSV header: {error}") from error
    if not all(map(_is_text, columns)):
        raise InputError(f"{label}: its first line is not UTF-8")
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise InputError(f"{label}: its header has more than one column {', '.join(map(repr, twice))}")
    return columns


def _is_text(value: str) -> bool:
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _refuse_constant(name: str) -> NoReturn:
    raise _RowError(f"not JSON: {name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _RowError("not JSON: a number is too large")
    return value


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _parse_object(line: bytes) -> Row:
    try:
        value = _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise _RowError(f"not UTF-8 (from byte {error.start + 1} on)") from None
    except json.JSONDecodeError as error:
        # Some of the decoder's messages end in the character that they are about.
        problem = "Invalid \\escape" if error.msg.startswith("Invalid \\escape") else error.msg
        raise _RowError(f"not JSON: {problem} (column {error.colno})") from None
    except RecursionError:
        raise _RowError("not JSON that can be read: nested too deeply") from None
    except _RowError:
        raise
    except ValueError:
        raise _RowError("not JSON that can be read: a number has too many digits") from None
    if not isinstance(value, dict):
        raise _RowError("JSON, but not an object")
    return value


def _envelope(row: Row, fields: Fields) -> AgentEnvelope:
    try:
        if fields.payload is not None:
            row = row | {fields.payload: _payload(row.get(fields.payload), fields.payload)}
        envelope = envelope_from_mapping(
            row, key=fields.key, payload=fields.payload, event_id=fields.event_id
        )
    except UnicodeEncodeError:
        raise _RowError("a field holds half of a surrogate pair, which is no text") from None
    except (TypeError, ValueError) as error:
        raise _RowError(str(error)) from None
    envelope.event_time_ms = _time_ms(row.get(fields.time), fields.time)
    return envelope


def _payload(value: object, field: str) -> str:
    if value is None:
        raise _RowError(f"field {field!r}: the payload is missing")
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _time_ms(value: object, field: str) -> int:
    if value is None or value == "":
        raise _RowError(f"field {field!r}: the time is missing")
    if isinstance(value, str) and value.isdecimal() and len(value) <= _MAX_TIME_DIGITS:
        value = int(value)
    try:
        return event_time_ms(value)
    except (TypeError, ValueError) as error:
        raise _RowError(f"field {field!r}: {error}") from None
