from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beam_agents.signals.catalogue import SPAN_INVOKE_AGENT, SPAN_MEMORY_EXPIRE
from beam_agents.signals.observer import Record
from beam_agents.signals.trace import (
    Traceparent,
    format_traceparent,
    parse_traceparent,
    sampling_bits_of,
    span_id_of,
    trace_id_of,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-ff", True),
        (f"  00-{TRACE}-{SPAN}-01\n", True),
        (f"cc-{TRACE}-{SPAN}-01-what-a-later-version-adds", True),
    ],
)
def test_a_valid_traceparent_is_taken_apart(text: str, *, sampled: bool) -> None:
    assert parse_traceparent(text) == Traceparent(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n00-{TRACE}-{SPAN}-01",
    ],
)
def test_one_that_is_not_valid_is_none(text: str) -> None:
    assert parse_traceparent(text) is None


@given(st.booleans())
def test_what_is_formatted_can_be_parsed(sampled: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    assert parse_traceparent(format_traceparent(TRACE, SPAN, sampled=sampled)) == (TRACE, SPAN, sampled)


def test_ids_are_functions_of_what_they_name() -> None:
    assert re.fullmatch("[0-9a-f]{32}", trace_id_of("p", b"k", 7))
    assert re.fullmatch("[0-9a-f]{16}", span_id_of("p", "a", b"k", 7, 1))
    traces = {trace_id_of(*each) for each in (("p", b"k", 7), ("q", b"k", 7), ("p", b"l", 7), ("p", b"k", 8))}
    assert len(traces) == 4
    # Length-prefixed: what moves from one part to the next is another trace.
    assert trace_id_of("p", b"k1", 2) != trace_id_of("p", b"k", 12)
    assert len({span_id_of("p", "a", b"k", 7, attempt) for attempt in (1, 2, 3)}) == 3


def test_workers_of_two_versions_agree_on_ids() -> None:
    assert trace_id_of("flights", b"N107US", 7) == "a7de3df7ea4d674a98c1d38768adafe7"
    assert span_id_of("flights", "watcher", b"N107US", 7, 2) == "752acd279a2f13d4"


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_the_bits_that_samplers_decide_by_are_even_over_keys_and_over_a_keys_turns(share: float) -> None:
    bound, many = int(share * 2**64), 20_000
    by_key = [sampling_bits_of("p", b"N%dUS" % number, 1_700_000_000_000) for number in range(many)]
    by_turn = [sampling_bits_of("p", b"k", 1_700_000_000_000 + number) for number in range(many)]
    by_pipeline = [sampling_bits_of(f"p{number}", b"k", 1) for number in range(many)]
    for bits in (by_key, by_turn, by_pipeline):
        # Of a fair draw, five standard deviations.
        most = 5 * (share * (1 - share) / many) ** 0.5
        assert abs(sum(each < bound for each in bits) / many - share) < most


def test_the_bits_that_samplers_decide_by_are_the_ids_second_half() -> None:
    record = Record(SPAN_INVOKE_AGENT, "p", "a", b"k")
    record.seq = 7
    assert record.sampling_bits == int(record.trace_id[16:], 16)
    record.traceparent = format_traceparent(TRACE, SPAN, sampled=True)
    assert record.sampling_bits == int(TRACE[16:], 16)


class TestRecord:
    def record(self, agent: str = "a") -> Record:
        record = Record(SPAN_INVOKE_AGENT, "p", agent, b"k")
        record.seq = 7
        return record

    def test_all_attempts_share_a_trace_and_each_has_a_span(self) -> None:
        first, second = self.record(), self.record()
        second.attempt = 2
        assert first.trace_id == second.trace_id == trace_id_of("p", b"k", 7)
        assert first.span_id == span_id_of("p", "a", b"k", 7, 1) != second.span_id

    def test_ids_follow_what_becomes_known_later(self) -> None:
        record = Record(SPAN_INVOKE_AGENT, "p", "a", b"k")
        before = record.trace_id
        record.seq = 7
        assert record.trace_id == self.record().trace_id != before

    def test_agents_share_a_trace_and_no_span(self) -> None:
        assert self.record("a").trace_id == self.record("b").trace_id
        assert self.record("a").span_id != self.record("b").span_id

    def test_the_events_trace_goes_on(self) -> None:
        record = self.record()
        record.traceparent = f"00-{TRACE}-{SPAN}-01"
        assert record.parent == (TRACE, SPAN, True)
        assert record.trace_id == TRACE
        assert record.span_id == self.record().span_id

    def test_a_traceparent_that_is_not_valid_is_ignored(self) -> None:
        record = self.record()
        record.traceparent = "nonsense"
        assert record.parent is None
        assert record.trace_id == self.record().trace_id

    def test_what_goes_on_is_linked_by_its_span(self) -> None:
        resumed = self.record()
        resumed.seq = 9
        assert resumed.link is None
        resumed.continues = 7, ""
        assert resumed.link == (self.record().trace_id, self.record().span_id, True)
        resumed.continues = 7, f"00-{TRACE}-{SPAN}-00"
        assert resumed.link == (TRACE, self.record().span_id, False)

    def test_an_expiry_is_another_span_than_the_activation_that_it_ends(self) -> None:
        expiry = Record(SPAN_MEMORY_EXPIRE, "p", "a", b"k")
        expiry.seq = 7
        assert expiry.span_id != self.record().span_id
