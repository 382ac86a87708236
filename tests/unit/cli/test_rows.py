from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.cli import rows
from beam_agents.cli.rows import (
    Fields,
    Input,
    InputError,
    LineReader,
    Malformed,
    RowFormat,
    check_fields,
    read_rows,
)
from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = Fields("id", "at")
GOOD = b'{"id": "a", "at": "2013-01-01T00:00:01Z"}'


def read(
    content: bytes, row_format: RowFormat = RowFormat.JSONL, fields: Fields = FIELDS
) -> list[AgentEnvelope | Malformed]:
    return list(read_rows(LineReader(io.BytesIO(content)), "f", row_format, fields))


def only(content: bytes, row_format: RowFormat = RowFormat.JSONL, fields: Fields = FIELDS) -> AgentEnvelope:
    (row,) = read(content, row_format, fields)
    assert isinstance(row, AgentEnvelope)
    return row


def problem(content: bytes, row_format: RowFormat = RowFormat.JSONL, fields: Fields = FIELDS) -> Malformed:
    (row,) = [row for row in read(content, row_format, fields) if isinstance(row, Malformed)]
    return row


class TestJsonl:
    def test_a_row_becomes_an_envelope_with_the_whole_row_as_its_event(self) -> None:
        row = only(b'{"id": "\xc3\xa9", "at": 1500, "x": [1, null]}\n')
        assert row.entity_key == "é".encode()
        assert row.event_time_ms == 1500
        assert json.loads(row.event) == {"id": "é", "at": 1500, "x": [1, None]}
        assert not row.event_id

    def test_times(self) -> None:
        for time, ms in (
            ('"2013-01-01T00:00:01Z"', 1_356_998_401_000),
            ('"2013-01-01T01:00:01+01:00"', 1_356_998_401_000),
            ('"2013-01-01T00:00:01"', 1_356_998_401_000),
            ('"1356998401000"', 1_356_998_401_000),
            ("1356998401000", 1_356_998_401_000),
        ):
            assert only(b'{"id": 1, "at": %s}' % time.encode()).event_time_ms == ms

    def test_payload_and_event_id(self) -> None:
        fields = Fields("id", "at", payload="body", event_id="n")
        row = only(b'{"id": 1, "at": 1, "body": "text", "n": 17}', fields=fields)
        assert (row.entity_key, row.event, row.event_id) == (b"1", b"text", "17")
        row = only(b'{"id": 1, "at": 1, "body": {"b": 1, "a": "\xc3\xa9"}}', fields=fields)
        assert row.event == '{"a": "é", "b": 1}'.encode()
        assert not row.event_id

    def test_lines_without_their_end_with_other_ends_blank_and_with_a_mark(self) -> None:
        content = b"\xef\xbb\xbf" + GOOD + b"\r\n\n  \n" + GOOD
        assert all(isinstance(row, AgentEnvelope) for row in read(content))
        assert len(read(content)) == 2

    @pytest.mark.parametrize(
        ("line", "detail"),
        [
            (b"nonsense", "not JSON: Expecting value (column 1)"),
            (b'{"id": "a", "at": 1', "not JSON"),
            (b'{"id": "a\\q", "at": 1}', "not JSON: Invalid \\escape (column 10)"),
            (b'{"id": "a", "at": NaN}', "not JSON: NaN is no JSON number"),
            (b'{"id": "a", "at": 1, "x": 1e999}', "not JSON: a number is too large"),
            (b'{"id": "a", "at": 1, "x": ' + b"9" * 5000 + b"}", "too many digits"),
            (b"[" * 100_000, "nested too deeply"),
            (b"[1]", "JSON, but not an object"),
            (b"7", "JSON, but not an object"),
            (b'{"id": "\xff", "at": 1}', "not UTF-8 (from byte 9 on)"),
            (b'{"at": 1}', "field 'id': the key is missing or empty"),
            (b'{"id": null, "at": 1}', "field 'id': the key is missing or empty"),
            (b'{"id": "", "at": 1}', "field 'id': the key is missing or empty"),
            (b'{"id": 1.5, "at": 1}', "field 'id': a key must be str, bytes or int, not float"),
            (b'{"id": true, "at": 1}', "field 'id': a key must be str, bytes or int, not bool"),
            (b'{"id": "\\ud800", "at": 1}', "half of a surrogate pair"),
            (b'{"id": "a"}', "field 'at': the time is missing"),
            (b'{"id": "a", "at": null}', "field 'at': the time is missing"),
            (b'{"id": "a", "at": "noon"}', "field 'at': not a time in ISO 8601"),
            (b'{"id": "a", "at": 1.5}', "field 'at': a time is an int"),
            (b'{"id": "a", "at": -1}', "field 'at': a time must be from 1970 to 9999"),
            (b'{"id": "a", "at": "99999999999999999999"}', "field 'at': not a time"),
        ],
    )
    def test_what_is_malformed_is_reported_and_the_rest_goes_on(self, line: bytes, detail: str) -> None:
        before, malformed, after = read(b"\n".join((GOOD, b"", line, GOOD)))[:3]
        assert isinstance(before, AgentEnvelope)
        assert isinstance(after, AgentEnvelope)
        assert isinstance(malformed, Malformed)
        assert (malformed.file, malformed.line) == ("f", 3)
        assert detail in malformed.detail

    def test_a_payload_that_is_missing(self) -> None:
        fields = Fields("id", "at", payload="body")
        assert problem(GOOD, fields=fields).detail == "field 'body': the payload is missing"

    def test_a_line_over_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rows, "MAX_LINE_BYTES", 64)
        long = b'{"id": "' + b"a" * 1000 + b'", "at": 1}'
        first, second, third = read(b"\n".join((GOOD, long, GOOD)))
        assert isinstance(first, AgentEnvelope)
        assert isinstance(third, AgentEnvelope)
        assert second == Malformed("f", 2, "longer than 64 bytes")

    def test_a_line_at_the_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rows, "MAX_LINE_BYTES", len(GOOD))
        assert len(read(GOOD + b"\n" + GOOD)) == 2

    @given(st.binary(max_size=200))
    def test_nothing_stops_the_reading_and_no_content_is_told(self, noise: bytes) -> None:
        secret = b"s3cr3t"
        content = b"\n".join((GOOD, secret + noise.replace(b"\n", b""), GOOD))
        found = read(content)
        assert len(found) == 3
        assert isinstance(found[1], Malformed)
        assert "s3cr3t" not in found[1].detail


class TestCsv:
    def test_rows(self) -> None:
        row = only(b'id,at,x\r\na,2013-01-01T00:00:01Z,"1,2"\r\n', RowFormat.CSV)
        assert row.entity_key == b"a"
        assert row.event_time_ms == 1_356_998_401_000
        assert json.loads(row.event) == {"id": "a", "at": "2013-01-01T00:00:01Z", "x": "1,2"}

    def test_digits_are_epoch_milliseconds(self) -> None:
        assert only(b"id,at\na,1356998401000\n", RowFormat.CSV).event_time_ms == 1_356_998_401_000

    def test_a_mark_before_and_blank_lines_around_the_header(self) -> None:
        assert only(b"\xef\xbb\xbfid,at\n\na,1\n\n", RowFormat.CSV).entity_key == b"a"
        assert only(b"\nid,at\na,1\n", RowFormat.CSV).entity_key == b"a"

    def test_a_field_over_several_lines_keeps_the_numbers_right(self) -> None:
        found = read(b'id,at,x\na,1,"one\ntwo"\nb,1\n', RowFormat.CSV)
        assert isinstance(found[0], AgentEnvelope)
        assert json.loads(found[0].event)["x"] == "one\ntwo"
        assert found[1] == Malformed("f", 4, "2 fields, and the header has 3")

    @pytest.mark.parametrize(
        ("line", "detail"),
        [
            (b"a", "1 fields, and the header has 2"),
            (b"a,1,2", "3 fields, and the header has 2"),
            (b"a,\xff", "not UTF-8"),
            (b'"a"b,1', "not CSV"),
            (b",1", "field 'id': the key is missing or empty"),
            (b"a,", "field 'at': the time is missing"),
            (b"a,noon", "field 'at': not a time in ISO 8601"),
        ],
    )
    def test_what_is_malformed_is_reported_and_the_rest_goes_on(self, line: bytes, detail: str) -> None:
        before, malformed, after = read(b"\n".join((b"id,at", b"x,1", line, b"y,1")), RowFormat.CSV)
        assert isinstance(before, AgentEnvelope)
        assert isinstance(after, AgentEnvelope)
        assert isinstance(malformed, Malformed)
        assert malformed.line == 3
        assert detail in malformed.detail

    def test_an_open_quote_says_how_far_it_reached(self) -> None:
        malformed = problem(b'id,at\na,1\n"b,1\nc,1\n', RowFormat.CSV)
        assert malformed.line == 3
        assert "to line 4: is a quote left open?" in malformed.detail

    def test_a_cut_off_line_is_not_taken_for_a_whole_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rows, "MAX_LINE_BYTES", 8)
        assert problem(b"id,at\nabc,123456789\n", RowFormat.CSV).detail == "longer than 8 bytes"

    def test_an_empty_file_has_no_rows(self) -> None:
        assert read(b"", RowFormat.CSV) == []


class TestLineReader:
    @given(st.lists(st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"")), max_size=8))
    def test_it_counts_lines_and_bytes(self, lines: list[bytes]) -> None:
        content = b"".join(line + b"\n" for line in lines)
        reader = LineReader(io.BytesIO(content))
        found = list(reader)
        assert reader.number == len(found) == len(lines)
        assert reader.bytes_read == len(content)


class TestCheckFields:
    @pytest.fixture
    def source(self, tmp_path: Path) -> Input:
        return Input(str(tmp_path / "events"), "events")

    def check(self, source: Input, content: bytes, row_format: RowFormat, fields: Fields = FIELDS) -> None:
        with open(source.path, "wb") as file:  # noqa: PTH123 - the path is text
            file.write(content)
        check_fields(source, row_format, fields)

    @pytest.mark.parametrize("row_format", RowFormat)
    def test_an_empty_file_passes(self, source: Input, row_format: RowFormat) -> None:
        self.check(source, b"", row_format)

    def test_a_field_in_any_of_the_first_rows_passes(self, source: Input) -> None:
        self.check(source, b'{"x": 1}\nnonsense\n{"at": 1}\n{"id": 1}\n', RowFormat.JSONL)
        self.check(source, b"at,id\n", RowFormat.CSV)

    def test_rows_of_which_none_can_be_read_pass(self, source: Input) -> None:
        self.check(source, b"nonsense\n", RowFormat.JSONL)

    def test_a_field_in_none_of_the_first_rows(self, source: Input) -> None:
        with pytest.raises(
            InputError, match="none of the first rows has the field 'id'; their fields: at, x"
        ):
            self.check(source, b'{"at": 1}\n{"x": 1}\n', RowFormat.JSONL)
        with pytest.raises(InputError, match="events has no column 'id'; its columns: at, x"):
            self.check(source, b"at,x\n", RowFormat.CSV)
        with pytest.raises(InputError, match="'body'"):
            self.check(source, b"id,at\n", RowFormat.CSV, Fields("id", "at", payload="body"))
        with pytest.raises(InputError, match="'n'"):
            self.check(source, b"id,at\n", RowFormat.CSV, Fields("id", "at", event_id="n"))

    def test_only_the_beginning_is_read(self, source: Input) -> None:
        with pytest.raises(InputError, match="'id'"):
            self.check(source, b'{"at": 1}\n' * rows.SAMPLE_ROWS + GOOD, RowFormat.JSONL)

    @pytest.mark.parametrize(
        ("header", "message"),
        [
            (b"id,at,id\n", "more than one column 'id'"),
            (b"id,\xff\n", "not UTF-8"),
            (b'"id,at\n', "no CSV header"),
        ],
    )
    def test_a_header_that_is_none(self, source: Input, header: bytes, message: str) -> None:
        with pytest.raises(InputError, match=message):
            self.check(source, header, RowFormat.CSV)
