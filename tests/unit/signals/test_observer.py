from __future__ import annotations

from beam_agents.errors import hash_entity_key
from beam_agents.signals import Observer, Record, Worker, catalogue
from beam_agents.signals.types import Group


def make_record() -> Record:
    return Record(catalogue.SPAN_INVOKE_AGENT, "flights", "watcher", b"N107US")


def test_a_record_keeps_what_happened_in_order() -> None:
    record = make_record()
    record.measure(catalogue.MODEL_CALLS, 1, "small-1", "ok")
    step = record.begin(catalogue.SPAN_CHAT, "small-1")
    record.finish(step, "TimeoutError")
    record.happened(catalogue.EVENT_MEMORY_OVERFLOW, overflows=2)

    assert record.measurements == [(catalogue.MODEL_CALLS, 1, ("small-1", "ok"))]
    assert record.steps == [step]
    assert step.error_type == "TimeoutError"
    (happening,) = record.happenings
    assert happening.event is catalogue.EVENT_MEMORY_OVERFLOW
    assert happening.attributes == {"overflows": 2}


def test_what_comes_together_is_told_one_by_one() -> None:
    group = Group(((catalogue.MEMORY_SIZE_BYTES, ()), (catalogue.ACTIVATIONS, ("complete",))))
    record = make_record()
    record.measure(catalogue.MEMORY_OVERFLOWS, 2)
    record.measure_all(group, 100, 1)
    assert record.measurements == [
        (catalogue.MEMORY_SIZE_BYTES, 100, ()),
        (catalogue.ACTIVATIONS, 1, ("complete",)),
        (catalogue.MEMORY_OVERFLOWS, 2, ()),
    ]


def test_times_never_go_back() -> None:
    record = make_record()
    step = record.begin(catalogue.SPAN_CHAT)
    record.finish(step)
    assert record.start_ns <= step.start_ns <= step.end_ns <= record.now_ns()
    assert record.elapsed_s >= 0
    assert record.external_ns == 0


def test_the_entity_is_shown_hashed() -> None:
    record = make_record()
    assert record.entity == hash_entity_key(b"N107US")
    assert "N107US" not in record.entity


def test_an_observer_need_not_override_anything() -> None:
    observer, record, worker = Observer(), make_record(), Worker("flights", "watcher")
    observer.start(worker)
    observer.bundle_started(worker)
    observer.bundle_failed(worker, "timer", "StoreTimeout")
    observer.activation_started(record)
    observer.record(record)
    observer.flush(1.0)
    observer.close(1.0)
