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
    Place,
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
        assert row.event_id == "f:1"

    def test_times(self) -> None:
        for time, ms in (
            ('"2013-01-01T00:00:01Z"', 1_356_998_401_000),
            ('"2013-01-01T01:00:01+01:00"', 1_356_998_401_000),
            ('"2013-01-01T00:00:01"', 1_356_998_401_000),
            ('"1356998401000"', 1_356_998_401_000),
            ("1356998401000", 1_356_998_401_000),
            ("1356998401000.0", 1_356_998_401_000),
            ('"10000000000"', 10_000_000_000),
        ):
            assert only(b'{"id": 1, "at": %s}' % time.encode()).event_time_ms == ms

    def test_payload_and_event_id(self) -> None:
        fields = Fields("id", "at", payload="body", event_id="n")
        row = only(b'{"id": 1, "at": 1, "body": "text", "n": 17}', fields=fields)
        assert (row.entity_key, row.event, row.event_id) == (b"1", b"text", "17")
        row = only(b'{"id": 1, "at": 1, "body": {"b": 1, "a": "\xc3\xa9"}}', fields=fields)
        assert row.event == '{"a": "é", "b": 1}'.encode()
        assert not row.event_id

    def test_a_key_that_is_the_payload_as_well_is_held_to_what_a_key_may_be(self) -> None:
        fields = Fields("id", "at", payload="id", event_id="id")
        row = only(b'{"id": 17, "at": 1}', fields=fields)
        assert (row.entity_key, row.event, row.event_id) == (b"17", b"17", "17")
        for value in (b"1.5", b"true", b'{"a": 1}', b"[]"):
            found = problem(b'{"id": %s, "at": 1}' % value, fields=fields)
            assert "field 'id': a key must be" in found.detail

    @pytest.mark.parametrize("value", [b"1.5", b"true", b'{"s3cr3t": 1}', b'["s3cr3t"]'])
    def test_an_event_id_of_another_type_is_malformed(self, value: bytes) -> None:
        found = problem(b'{"id": 1, "at": 1, "n": %s}' % value, fields=Fields("id", "at", event_id="n"))
        assert "field 'n': an event id must be str or int" in found.detail
        assert "s3cr3t" not in found.detail

    def test_without_an_event_id_the_rows_place_is_it(self) -> None:
        found = read(b"\n".join((GOOD, b"", GOOD)))
        assert [row.event_id for row in found if isinstance(row, AgentEnvelope)] == ["f:1", "f:3"]

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
            (b'{"id": "\\ud800", "at": 1}', "field 'id': it holds a lone surrogate"),
            (b'{"id": "a", "at": 1, "x": "\\ud800"}', "field 'x': it holds a lone surrogate"),
            (b'{"id": "a", "at": "20240501"}', "field 'at': digits as text are epoch milliseconds from 11"),
            ('{"id": "a", "at": "١٣٥٦٩٩٨٤٠١٠٠٠"}'.encode(), "field 'at': not a time in ISO 8601"),
            (b'{"id": "a"}', "field 'at': the time is missing"),
            (b'{"id": "a", "at": null}', "field 'at': the time is missing"),
            (b'{"id": "a", "at": "noon"}', "field 'at': not a time in ISO 8601"),
            (b'{"id": "a", "at": 1.5}', "field 'at': a time is a whole number"),
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
        for end in (b"\n", b"\r\n"):
            found = read(b"\xef\xbb\xbf" + GOOD + end + GOOD + end + GOOD)
            assert [type(row) for row in found] == [AgentEnvelope] * 3
            found = read(GOOD + b" " + end + GOOD + b" ")
            assert [type(row) for row in found] == [Malformed] * 2

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
        assert only(b"\xef\xbb\xbfid,at\n\na,10000000001\n\n", RowFormat.CSV).entity_key == b"a"
        assert only(b"\nid,at\na,10000000001\n", RowFormat.CSV).entity_key == b"a"

    def test_a_field_over_several_lines_keeps_the_numbers_right(self) -> None:
        found = read(b'id,at,x\na,10000000001,"one\ntwo"\nb,1\n', RowFormat.CSV)
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
            (b",10000000001", "field 'id': the key is missing or empty"),
            (b"a,", "field 'at': the time is missing"),
            (b"a,noon", "field 'at': not a time in ISO 8601"),
        ],
    )
    def test_what_is_malformed_is_reported_and_the_rest_goes_on(self, line: bytes, detail: str) -> None:
        before, malformed, after = read(
            b"\n".join((b"id,at", b"x,10000000001", line, b"y,10000000001")), RowFormat.CSV
        )
        assert isinstance(before, AgentEnvelope)
        assert isinstance(after, AgentEnvelope)
        assert isinstance(malformed, Malformed)
        assert malformed.line == 3
        assert detail in malformed.detail

    def test_an_open_quote_says_how_far_it_reached(self) -> None:
        malformed = problem(b'id,at\na,10000000001\n"b,1\nc,1\n', RowFormat.CSV)
        assert malformed.line == 3
        assert "to line 4: is a quote left open?" in malformed.detail

    def test_a_cut_off_line_is_not_taken_for_a_whole_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rows, "MAX_LINE_BYTES", 8)
        assert problem(b"id,at\nabc,123456789\n", RowFormat.CSV).detail == "longer than 8 bytes"

    @pytest.mark.parametrize("end", [b"\n", b"\r\n"])
    def test_ends_of_lines_inside_a_field_are_kept(self, end: bytes) -> None:
        content = end.join((b"id,at,x", b'a,10000000001,"one', b'two"', b""))
        assert json.loads(only(content, RowFormat.CSV).event)["x"] == f"one{end.decode()}two"

    def test_rows_after_an_over_long_field_of_several_lines_are_not_lost(self) -> None:
        field = b"\n".join([b"s3cr3t, of course" * 10] * 2000)
        content = b'id,at,x\na,10000000001,"%s"\nb,10000000002,"1\n2"\nc,10000000003,\n' % field
        malformed, *rest = read(content, RowFormat.CSV)
        assert isinstance(malformed, Malformed)
        assert malformed.line == 2
        assert "field larger than field limit" in malformed.detail
        assert "the row reaches to line 2001; all of it is lost" in malformed.detail
        assert [row.entity_key for row in rest if isinstance(row, AgentEnvelope)] == [b"b", b"c"]
        assert len(rest) == 2

    def test_rows_after_an_over_long_line_are_not_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rows, "MAX_LINE_BYTES", 32)
        content = b'id,at,x\na,1,"%s\n%s\n"\nb,10000000002,\n' % (b"y" * 64, b"z" * 12)
        malformed, row = read(content, RowFormat.CSV)
        assert isinstance(row, AgentEnvelope)
        assert malformed == Malformed(
            "f", 2, "longer than 32 bytes (the row reaches to line 4; all of it is lost)"
        )

    def test_the_search_for_the_end_of_an_over_long_field_is_bounded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rows, "MAX_LINE_BYTES", 32)
        content = b'id,at,x\na,1,"%s\n' % (b"y" * 64) + b"b,10000000002,1\n" * 4
        malformed, *rest = read(content, RowFormat.CSV)
        assert isinstance(malformed, Malformed)
        assert "reaches to line 4" in malformed.detail
        assert [type(row) for row in rest] == [AgentEnvelope] * 2

    def test_an_empty_file_has_no_rows(self) -> None:
        assert read(b"", RowFormat.CSV) == []


class TestLineReader:
    @pytest.mark.parametrize("header", ["", "\ufeff"])
    def test_it_goes_from_the_header_to_any_line(self, header: str) -> None:
        content = (header + "id,at\na,1500\nb,\nc,1700\n").encode()
        whole = read(content, RowFormat.CSV)
        for number in range(2, 5):
            offset = len(b"".join(content.splitlines(keepends=True)[: number - 1]))
            reader = LineReader(io.BytesIO(content), after_header=Place(number, offset))
            assert list(read_rows(reader, "f", RowFormat.CSV, FIELDS)) == whole[number - 2 :]
            assert (reader.number, reader.bytes_read) == (4, len(content))

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
            InputError, match=r"none of the first rows has the field 'id' \(--key\); their fields: at, x"
        ):
            self.check(source, b'{"at": 1}\n{"x": 1}\n', RowFormat.JSONL)
        with pytest.raises(InputError, match=r"events: its header, of 2 columns, lacks 'id' \(--key\)$"):
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
            (b"id,at,id\n", "columns 1 and 3 of its header have the same name$"),
            (b"id,\xff\n", "not UTF-8"),
            (b'"id,at\n', "no CSV header"),
        ],
    )
    def test_a_header_that_is_none(self, source: Input, header: bytes, message: str) -> None:
        with pytest.raises(InputError, match=message):
            self.check(source, header, RowFormat.CSV)
