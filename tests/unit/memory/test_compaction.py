from __future__ import annotations

import pickle
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from beam_agents.memory.compaction import (
    Compactor,
    DropOldestCompactor,
    EntryInfo,
    EntryKind,
    SummarizeCompactor,
)
from beam_agents.model.types import LlmRequest


def build(items: tuple[bytes, ...], prior: bytes | None) -> LlmRequest:
    return LlmRequest(model="m", body=b"".join(items) + (prior or b""))


def extract(response: bytes) -> bytes:
    return response


def summarizer(**changes: Any) -> SummarizeCompactor:
    fields: dict[str, Any] = {
        "build_request": build,
        "extract_summary": extract,
        "source_keys": ("log",),
        "summary_key": "summary",
    }
    return SummarizeCompactor(**fields | changes)


ENTRIES = st.lists(
    st.builds(
        EntryInfo,
        st.text(st.sampled_from("ab/"), min_size=1, max_size=4),
        st.sampled_from(EntryKind),
        st.integers(1, 100),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    unique_by=lambda info: info.key,
)


@given(ENTRIES, st.integers(1, 500), st.integers(0, 100))
def test_the_oldest_go_first_and_no_more_than_needed(
    entries: list[EntryInfo], target_bytes: int, written_bytes: int
) -> None:
    compactor = DropOldestCompactor(target_bytes=target_bytes, protected_prefixes=("a/",))
    total = written_bytes + sum(info.size_bytes for info in entries)
    chosen = list(compactor.select_evictions(entries, total_bytes=total, writing="w"))
    assert chosen == list(compactor.select_evictions(entries, total_bytes=total, writing="w"))
    candidates = [info for info in entries if not info.key.startswith("a/")]
    assert chosen == [info.key for info in candidates[: len(chosen)]]
    left = total - sum(info.size_bytes for info in candidates[: len(chosen)])
    if len(chosen) < len(candidates):
        assert left <= target_bytes
    if chosen:
        assert left + candidates[len(chosen) - 1].size_bytes > target_bytes


def test_configurations_are_frozen_equal_and_travel() -> None:
    for config in (DropOldestCompactor(target_bytes=7), summarizer(keep_recent=3)):
        again = pickle.loads(pickle.dumps(config))  # noqa: S301 - it is our own
        assert again == config
        assert hash(again) == hash(config)
    for field, config in (("target_bytes", DropOldestCompactor()), ("keep_recent", summarizer())):
        with pytest.raises(AttributeError):
            setattr(config, field, 1)


def test_a_summarizer_is_no_compactor() -> None:
    assert isinstance(DropOldestCompactor(), Compactor)
    assert not isinstance(summarizer(), Compactor)


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"target_bytes": 0}, ValueError, "target_bytes"),
        ({"target_bytes": 1_048_577}, ValueError, "from 1 to 1048576"),
        ({"target_bytes": 1.5}, TypeError, "target_bytes"),
        ({"target_bytes": True}, TypeError, "target_bytes"),
        ({"protected_prefixes": "a/"}, TypeError, "tuple of str"),
        ({"protected_prefixes": ["a/"]}, TypeError, "tuple of str"),
        ({"protected_prefixes": (b"a/",)}, TypeError, "protected_prefixes"),
        ({"protected_prefixes": ("",)}, ValueError, "not be empty"),
    ],
)
def test_a_wrong_drop_oldest_is_refused(fields: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        DropOldestCompactor(**fields)


@pytest.mark.parametrize(
    ("fields", "error", "named"),
    [
        ({"build_request": None}, TypeError, "build_request"),
        ({"extract_summary": b""}, TypeError, "extract_summary"),
        ({"source_keys": "log"}, TypeError, "source_keys"),
        ({"source_keys": ()}, ValueError, "at least one"),
        ({"source_keys": ("log", "log")}, ValueError, "once"),
        ({"source_keys": ("",)}, ValueError, "source_keys"),
        ({"source_keys": ("\ud800",)}, ValueError, "UTF-8"),
        ({"summary_key": ""}, ValueError, "summary_key"),
        ({"summary_key": 1}, TypeError, "summary_key"),
        ({"summary_key": "log"}, ValueError, "among source_keys"),
        ({"keep_recent": -1}, ValueError, "at least 0"),
        ({"keep_recent": "8"}, TypeError, "keep_recent"),
        ({"trigger_bytes": 0}, ValueError, "trigger_bytes"),
        ({"trigger_bytes": 1_048_577}, ValueError, "trigger_bytes"),
    ],
)
def test_a_wrong_summarizer_is_refused(fields: dict[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        summarizer(**fields)
