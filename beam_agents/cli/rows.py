"""Rows of JSONL and CSV files, read one at a time, as envelopes or as a report of what is wrong with them."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, NamedTuple, NoReturn, Self, TypeAlias

from beam_agents.cli.row_format import RowFormat
from beam_agents.transform import LONE_SURROGATE, envelope_from_mapping, event_time_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

__all__ = [
    "Fields",
    "Input",
    "InputError",
    "LineReader",
    "Malformed",
    "Place",
    "check_fields",
    "read_rows",
]

MAX_LINE_BYTES: Final = 16_777_216
"""Longer lines are malformed: reading stays bounded whatever the file holds."""
SAMPLE_ROWS: Final = 1_000
"""How many rows of a JSONL file are looked at for its fields before the run starts."""
_CSV_FIELD_LIMIT: Final = "field larger than field limit"
"""How the csv module's message about an over-long field begins; it has no class of its own."""
_MARK_AND_END_BYTES: Final = 5
"""A byte order mark and CRLF: what a line may have besides its own bytes."""
_MIN_TIME_DIGITS: Final = 11
"""Text of fewer digits may be a date (20240501), seconds, or anything: it is not guessed at."""
_MAX_TIME_DIGITS: Final = 18

Row: TypeAlias = "dict[str, object]"


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
        time: The event's time: ISO 8601, or epoch milliseconds as a whole number or as 11 digits or more.
        payload: What becomes the event: text as it is, anything else as JSON. None: the whole row, as JSON.
        event_id: The event's id, text or an integer. None: the row's place, as ``FILE:LINE``.
    """

    key: str
    time: str
    payload: str | None = None
    event_id: str | None = None

    def required(self) -> dict[str, str]:
        """Return the fields without which a row is malformed, by the options that name them."""
        options = {"--key": self.key, "--time": self.time, "--payload": self.payload}
        return {option: field for option, field in options.items() if field is not None}


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


class Place(NamedTuple):
    """Where a line begins.

    Attributes:
        number: Its number, from 1.
        offset: Bytes before it.
    """

    number: int
    offset: int


class LineReader:
    """Lines of a binary file, as bytes with their ends, cut off a little after ``MAX_LINE_BYTES``.

    Args:
        file: The file, at its beginning.
        after_header: The line that comes after the first one; None: the second.

    Attributes:
        number: Lines read so far: the number of the last one, from 1.
        bytes_read: Bytes read so far.
        quotes: Quotation marks read so far, those that were cut off included.
        overlong: Whether the last line was longer than the limit, its end not counted.
    """

    def __init__(self, file: IO[bytes], after_header: Place | None = None) -> None:
        self._file = file
        self._after_header = after_header
        self.number = 0
        self.bytes_read = 0
        self.quotes = 0
        self.overlong = False

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(MAX_LINE_BYTES + _MARK_AND_END_BYTES):
            self._count(line)
            self.number += 1
            rest = line
            while not rest.endswith(b"\n") and (rest := self._file.readline(MAX_LINE_BYTES)):
                self._count(rest)
            if self.number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            self.overlong = len(line.removesuffix(b"\n").removesuffix(b"\r")) > MAX_LINE_BYTES
            if self._after_header is not None:
                # Before the header is given out: who asks for the next line has looked at the number by then.
                self._go_to(self._after_header)
                self._after_header = None
            yield line

    def _go_to(self, place: Place) -> None:
        self._file.seek(place.offset)
        self.number, self.bytes_read = place.number - 1, place.offset

    def _count(self, part: bytes) -> None:
        self.bytes_read += len(part)
        self.quotes += part.count(b'"')


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
            yield _envelope(row, fields, f"{label}:{number}")
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
            columns = _read_header(_csv_reader(lines), source.label)
            wanted = fields.required() | ({"--event-id": fields.event_id} if fields.event_id else {})
            for option, field in wanted.items():
                if columns and field not in columns:
                    # What the header holds is not told: where there is none it is the first row's content.
                    raise InputError(
                        f"{source.label}: its header, of {len(columns)} columns, lacks {field!r} ({option})"
                    )
            return
        seen: dict[str, None] = {}
        for number, row in _read_mappings(lines, source.label, row_format):
            if not isinstance(row, Malformed):
                seen.update(dict.fromkeys(row))
            if number >= SAMPLE_ROWS or seen.keys() >= set(fields.required().values()):
                break
        for option, field in fields.required().items():
            if seen and field not in seen:
                raise InputError(
                    f"{source.label}: none of the first rows has the field {field!r} ({option}); "
                    f"their fields: {', '.join(map(_shown, list(seen)[:20]))}"
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
            yield lines.number, _parse_object(line.rstrip(b"\r\n"))
        except _RowError as error:
            yield lines.number, Malformed(label, lines.number, str(error))


def _read_csv(lines: LineReader, label: str) -> Iterator[tuple[int, Row | Malformed]]:
    source = iter(lines)
    reader = _csv_reader(lines, source)
    columns = _read_header(reader, label)
    while True:
        first, quotes = lines.number + 1, lines.quotes
        try:
            values = next(reader)
            row = _csv_row(values, columns) if values else None
        except StopIteration:
            return
        except _OverlongLine as error:
            detail = str(error) + _skip_quoted(lines, source, first, quotes)
            yield first, Malformed(label, first, detail)
        except csv.Error as error:
            detail = f"not CSV: {error}"
            if str(error).startswith(_CSV_FIELD_LIMIT):
                detail += _skip_quoted(lines, source, first, quotes)
            elif lines.number > first:
                detail += f" ({_reach(lines)}: is a quote left open?)"
            yield first, Malformed(label, first, detail)
        except _RowError as error:
            reach = f" ({_reach(lines)}: is a quote left open?)" if lines.number > first else ""
            yield first, Malformed(label, first, f"{error}{reach}")
        else:
            if row is not None:
                yield first, row


def _csv_row(values: list[str], columns: list[str]) -> Row:
    if len(values) != len(columns):
        raise _RowError(f"{len(values)} fields, and the header has {len(columns)}")
    if not all(map(_is_text, values)):
        raise _RowError("not UTF-8")
    return dict(zip(columns, values, strict=True))


def _skip_quoted(lines: LineReader, source: Iterator[bytes], first: int, quotes: int) -> str:
    """Read on to the line where the quote that a cut-off row left open is closed; return what to say of it.

    The csv module forgets an over-long field's quote, and would take the rest of the field for rows.
    """
    until_bytes = lines.bytes_read + MAX_LINE_BYTES
    while (lines.quotes - quotes) % 2 and lines.bytes_read < until_bytes:
        if next(source, None) is None:
            break
    return f" ({_reach(lines)}; all of it is lost)" if lines.number > first else ""


def _reach(lines: LineReader) -> str:
    return f"the row reaches to line {lines.number}"


class _OverlongLine(_RowError):
    """A line is longer than ``MAX_LINE_BYTES``."""


class _CsvLines:
    """Lines as text, for the csv module.

    No generator: the csv module lets the exception through, and reading goes on after it.
    """

    def __init__(self, lines: LineReader, source: Iterator[bytes]) -> None:
        self._lines = lines
        self._source = source

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        line = next(self._source)
        if self._lines.overlong:
            raise _OverlongLine(f"longer than {MAX_LINE_BYTES} bytes")
        # Bytes that are no UTF-8 come through as lone surrogates, so that only their own row is malformed.
        return line.decode("utf-8", "surrogateescape")


def _csv_reader(lines: LineReader, source: Iterator[bytes] | None = None) -> Iterator[list[str]]:
    return csv.reader(_CsvLines(lines, iter(lines) if source is None else source), strict=True)


def _read_header(reader: Iterator[list[str]], label: str) -> list[str]:
    """Return the columns' names; none for an empty file."""
    try:
        columns = next((row for row in reader if row), [])
    except (csv.Error, _RowError) as error:
        raise InputError(f"{label}: its first line is no CSV header: {error}") from error
    if not all(map(_is_text, columns)):
        raise InputError(f"{label}: its first line is not UTF-8")
    for number, column in enumerate(columns):
        if column in columns[:number]:
            raise InputError(
                f"{label}: columns {columns.index(column) + 1} and {number + 1} of its header "
                "have the same name"
            )
    return columns


def _shown(field: str) -> str:
    """Return a field's name as text that can be printed."""
    return field if field.isprintable() else ascii(field)


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


def _envelope(row: Row, fields: Fields, place: str) -> AgentEnvelope:
    try:
        if fields.payload is None:
            envelope = envelope_from_mapping(row, key=fields.key, event_id=fields.event_id)
        else:
            # The payload is made apart: a field that is the key as well is held to what a key may be.
            others = {field: row.get(field) for field in (fields.key, fields.event_id) if field is not None}
            envelope = envelope_from_mapping(others, key=fields.key, event_id=fields.event_id)
            envelope.event = _payload(row.get(fields.payload), fields.payload)
    except (TypeError, ValueError) as error:
        raise _RowError(str(error)) from None
    if fields.event_id is None:
        envelope.event_id = place
    envelope.event_time_ms = _time_ms(row.get(fields.time), fields.time)
    return envelope


def _payload(value: object, field: str) -> bytes:
    if value is None:
        raise _RowError(f"field {field!r}: the payload is missing")
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _RowError(f"field {field!r}: {LONE_SURROGATE}") from None


def _time_ms(value: object, field: str) -> int:
    if value is None or value == "":
        raise _RowError(f"field {field!r}: the time is missing")
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MAX_TIME_DIGITS:
        if len(value) < _MIN_TIME_DIGITS:
            raise _RowError(
                f"field {field!r}: digits as text are epoch milliseconds from {_MIN_TIME_DIGITS} digits on; "
                "write a date with dashes, such as 2013-01-01"
            )
        value = int(value)
    try:
        return event_time_ms(value)
    except (TypeError, ValueError) as error:
        raise _RowError(f"field {field!r}: {error}") from None
