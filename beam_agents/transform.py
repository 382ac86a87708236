"""``RunAgent``: an agent as one step of a pipeline, and ``keyed_envelopes``, which makes its input."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple, get_args, get_origin
from weakref import WeakKeyDictionary

import apache_beam as beam
from apache_beam import typehints
from apache_beam.pvalue import PCollection
from apache_beam.runners.direct.direct_runner import SwitchingDirectRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.window import GlobalWindows

from beam_agents.checks import check_text
from beam_agents.config import AgentConfig, is_async_callable
from beam_agents.runner_options import keep_state
from beam_agents.runtime.activation import MAX_EVENT_MS, MIN_EVENT_MS
from beam_agents.runtime.dofn import make_dofn
from beam_agents.runtime.elements import ERRORS, INTENTS
from beam_agents.wire.beam_agents_pb2 import ActivationError, AgentEnvelope, ToolIntent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from beam_agents.runtime.activation import AgentFunction
    from beam_agents.runtime.probe import Probe

__all__ = ["AgentOutputs", "RunAgent", "envelope_from_mapping", "event_time_ms", "keyed_envelopes"]

OUTPUT: Final = "output"
KEYED_ENVELOPE: Final = tuple[bytes, AgentEnvelope]
LONE_SURROGATE: Final = "it holds a lone surrogate (half of a pair), which is no text"


class AgentOutputs(NamedTuple):
    """What RunAgent gives.

    Attributes:
        output: What activations returned as their output, bytes.
        intents: The side effects that committed activations ask for, ToolIntent.
        errors: One record for each element that could not be done, ActivationError.
    """

    output: PCollection[bytes]
    intents: PCollection[ToolIntent]
    errors: PCollection[ActivationError]


class RunAgent(beam.PTransform[PCollection[tuple[bytes, AgentEnvelope]], AgentOutputs]):
    """Runs one activation of an agent for each event, key by key.

    Args:
        agent: ``async def agent(ctx)``, returning Complete or Suspend.
        config: How it runs.
        name: The agent's name, the ``agent`` label of all signals; the function's own name by default.
        pipeline: The pipeline's name, the ``pipeline`` label of all signals.

    Raises:
        TypeError: The agent is not an async function, or the config no AgentConfig.
        ValueError: The input is not keyed by bytes, or is windowed.
    """

    def __init__(
        self,
        agent: AgentFunction,
        *,
        config: AgentConfig | None = None,
        name: str | None = None,
        pipeline: str = "default",
    ) -> None:
        super().__init__()
        if isinstance(agent, type):
            raise TypeError(
                f"RunAgent takes an async function; {agent.__name__} is a class: pass an object of it"
            )
        if not callable(agent):
            raise TypeError(f"RunAgent takes an async function, not {type(agent).__name__}")
        if not is_async_callable(agent):
            shown = getattr(agent, "__name__", type(agent).__name__)
            raise TypeError(f"RunAgent takes an async function: write `async def {shown}(ctx)`")
        if config is not None and not isinstance(config, AgentConfig):
            raise TypeError(f"RunAgent's config must be an AgentConfig, not {type(config).__name__}")
        for argument, value in (("name", name), ("pipeline", pipeline)):
            if value is not None:
                check_text(f"RunAgent's {argument}", value)
        self._agent = agent
        self._config = config if config is not None else AgentConfig()
        self._name = str(name or getattr(agent, "__name__", type(agent).__name__))
        self._pipeline = pipeline
        self._probe: Probe | None = None

    def expand(self, pcoll: PCollection[tuple[bytes, AgentEnvelope]]) -> AgentOutputs:  # noqa: D102 - Beam's own
        self._check_input(pcoll)
        keep_state(pcoll)
        # The check also tells Beam the element's type, so that keys get a deterministic coder.
        checked = pcoll | "CheckKeyed" >> beam.ParDo(_CheckKeyed()).with_output_types(KEYED_ENVELOPE)
        dofn = make_dofn(
            self._agent,
            self._config,
            name=self._name,
            pipeline=self._pipeline,
            # What is kept in a process for retries belongs to this step of this pipeline alone.
            run_id=uuid.uuid4().hex,
            probe=self._probe,
        )
        step = _apart_on_fn_api_runner(beam.ParDo(dofn), pcoll.pipeline)
        outputs = checked | "Activate" >> step.with_outputs(INTENTS, ERRORS, main=OUTPUT)
        for tag, kind in ((OUTPUT, bytes), (INTENTS, ToolIntent), (ERRORS, ActivationError)):
            outputs[tag].element_type = kind
        return AgentOutputs(outputs[OUTPUT], outputs[INTENTS], outputs[ERRORS])

    def with_probe(self, probe: Probe) -> RunAgent:
        """Let a test see the state and fail bundles; returns self."""
        self._probe = probe
        return self

    def _check_input(self, pcoll: PCollection[tuple[bytes, AgentEnvelope]]) -> None:
        wanted = "RunAgent takes a PCollection of tuple[bytes, AgentEnvelope]"
        if not isinstance(pcoll, PCollection):
            raise TypeError(f"{wanted}, not {type(pcoll).__name__}")
        if not isinstance(pcoll.windowing.windowfn, GlobalWindows):
            raise ValueError(  # noqa: TRY004 - the windowing is wrong, not the type
                f"{wanted} in the global window: an agent's memory is a key's, not a window's. "
                "Put beam.WindowInto(GlobalWindows()) before it"
            )
        kind = pcoll.element_type
        if kind is None or kind == typehints.Any:
            return  # not declared: _CheckKeyed looks at the elements
        parts = getattr(kind, "tuple_types", None) or (get_args(kind) if get_origin(kind) is tuple else None)
        if parts is None or len(parts) != 2:  # noqa: PLR2004 - a key and a value
            raise ValueError(f"{wanted}; this one holds {kind}: key it first, with keyed_envelopes(...) say")
        key, value = parts
        if key not in (bytes, typehints.Any):
            raise ValueError(f"{wanted}; the keys of this one are {key}: encode them as bytes")
        if value not in (AgentEnvelope, typehints.Any):
            raise ValueError(f"{wanted}; the values of this one are {value}: see keyed_envelopes(...)")


_agents_of: WeakKeyDictionary[beam.Pipeline, int] = WeakKeyDictionary()
"""How many agents a pipeline has so far."""


def _apart_on_fn_api_runner(step: beam.ParDo, pipeline: beam.Pipeline) -> beam.ParDo:
    """Have each agent of a pipeline in a stage of its own, where they would share their timers.

    Beam's FnApiRunner keeps the timers of one stage by their names alone: of two agents in a stage, only the
    first one's timers fire, and the other's memory would never expire. Steps that need different resources
    are never put into one stage; what they ask for here, this runner does not look at.
    """
    if isinstance(pipeline.runner, FnApiRunner | SwitchingDirectRunner):
        earlier = _agents_of.get(pipeline, 0)
        _agents_of[pipeline] = earlier + 1
        if earlier:
            step.with_resource_hints(min_ram=f"{earlier}B")
    return step


class _CheckKeyed(beam.DoFn):
    """Holds elements of undeclared type to what RunAgent takes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Beam's own

    def process(self, element: object) -> list[object]:
        if (
            not isinstance(element, tuple)
            or len(element) != 2  # noqa: PLR2004 - a key and a value
            or not isinstance(element[0], bytes)
            or not isinstance(element[1], AgentEnvelope)
        ):
            shown = (
                f"({', '.join(type(part).__name__ for part in element)})"
                if isinstance(element, tuple)
                else type(element).__name__
            )
            raise TypeError(f"RunAgent takes elements of tuple[bytes, AgentEnvelope]; this one is {shown}")
        return [element]


class keyed_envelopes(  # noqa: N801 - reads as the verb that it is, as Beam's own lower-case helpers do
    beam.PTransform[PCollection["Mapping[str, object]"], PCollection[tuple[bytes, AgentEnvelope]]]
):
    """Makes RunAgent's input from dicts.

    Args:
        key: The field that holds the entity's key: str (as UTF-8), bytes or int.
        time: The field that holds the event's time: epoch milliseconds as an int or a whole float, a
            datetime, or ISO 8601 text (without a zone, UTC). None, and a field that is absent or None: an
            event without a time.
        payload: The field that becomes ``ctx.event``: bytes, or str (as UTF-8). None: the whole dict, as
            JSON with sorted keys. NaN and infinite numbers, which JSON does not have, are refused.
        event_id: The field that holds the event's id, str or int; None for none.
        traceparent: The field that holds the W3C traceparent; None for none.

    An element that lacks its key, or whose fields are of other types, fails the pipeline with an error that
    names the field; to keep such elements apart, filter before.
    """

    def __init__(
        self,
        *,
        key: str,
        time: str | None = None,
        payload: str | None = None,
        event_id: str | None = None,
        traceparent: str | None = None,
    ) -> None:
        super().__init__()
        fields = {
            "key": key,
            "time": time,
            "payload": payload,
            "event_id": event_id,
            "traceparent": traceparent,
        }
        for argument, field in fields.items():
            if (field is not None or argument == "key") and (not isinstance(field, str) or not field):
                raise ValueError(f"keyed_envelopes' {argument} must name a field, not {field!r}")
        self._fields = fields

    def expand(  # noqa: D102 - Beam's own
        self, pcoll: PCollection[Mapping[str, object]]
    ) -> PCollection[tuple[bytes, AgentEnvelope]]:
        make = beam.ParDo(_MakeEnvelope(**self._fields)).with_output_types(KEYED_ENVELOPE)
        made: PCollection[tuple[bytes, AgentEnvelope]] = pcoll | "MakeEnvelopes" >> make
        return made


class _MakeEnvelope(beam.DoFn):
    def __init__(self, **fields: str | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Beam's own
        self._fields = fields

    def process(self, element: Mapping[str, object]) -> Iterator[tuple[bytes, AgentEnvelope]]:
        envelope = envelope_from_mapping(element, **self._fields)  # type: ignore[arg-type]  # the keys are the arguments' names
        yield envelope.entity_key, envelope


def envelope_from_mapping(
    element: Mapping[str, object],
    *,
    key: str,
    time: str | None = None,
    payload: str | None = None,
    event_id: str | None = None,
    traceparent: str | None = None,
) -> AgentEnvelope:
    """Make one envelope from a dict; the arguments are those of :class:`keyed_envelopes`.

    Raises:
        ValueError: A field is missing or empty, or its value is none that it may hold. The message names the
            field and the type, never the value.
        TypeError: The element is no mapping, or a field is of a type that it may not be of.
    """
    if not hasattr(element, "keys"):
        raise TypeError(f"keyed_envelopes takes dicts, not {type(element).__name__}")
    envelope = AgentEnvelope(entity_key=_key_bytes(key, element.get(key)))
    if time is not None and element.get(time) is not None:
        try:
            envelope.event_time_ms = event_time_ms(element[time])
        except ValueError as error:
            raise ValueError(f"field {time!r}: {error}") from None
        except TypeError as error:
            raise TypeError(f"field {time!r}: {error}") from None
    envelope.event = _payload_bytes(element, payload)
    if event_id is not None and element.get(event_id) is not None:
        envelope.event_id = _event_id(event_id, element[event_id])
    if traceparent is not None and element.get(traceparent) is not None:
        envelope.traceparent = _utf8(traceparent, str(element[traceparent])).decode()
    return envelope


def event_time_ms(value: object) -> int:
    """Return an event's time in milliseconds since the Unix epoch.

    Args:
        value: Epoch milliseconds as an int or a whole float, a datetime, or ISO 8601 text; without a zone
            it is UTC.

    Raises:
        ValueError: Text that is not ISO 8601, or a time before 1970 or after the year 9999.
        TypeError: Any other type.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("not a time in ISO 8601, such as 2013-01-01T10:15:00Z") from None
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        delta = aware - _EPOCH
        value = (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(
            "a time is a whole number of epoch milliseconds, a datetime or ISO 8601 text, "
            f"not {type(value).__name__}"
        )
    if not MIN_EVENT_MS <= value <= MAX_EVENT_MS:
        raise ValueError("a time must be from 1970 to 9999, in milliseconds since the Unix epoch")
    return value


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _key_bytes(field: str, value: object) -> bytes:
    if isinstance(value, bool) or not isinstance(value, str | bytes | int | None):
        raise TypeError(f"field {field!r}: a key must be str, bytes or int, not {type(value).__name__}")
    key = value if isinstance(value, bytes) else b"" if value is None else _utf8(field, str(value))
    if not key:
        raise ValueError(f"field {field!r}: the key is missing or empty")
    return key


def _event_id(field: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise TypeError(f"field {field!r}: an event id must be str or int, not {type(value).__name__}")
    return _utf8(field, str(value)).decode()


def _payload_bytes(element: Mapping[str, object], field: str | None) -> bytes:
    if field is None:
        row = dict(element)
        try:
            return _json_bytes(row)
        except (TypeError, ValueError, RecursionError) as error:
            problem = error
        raise _json_problem(row, problem)
    value = element.get(field)
    if isinstance(value, str):
        return _utf8(field, value)
    if not isinstance(value, bytes):
        raise TypeError(f"field {field!r}: a payload must be bytes or str, not {type(value).__name__}")
    return value


def _utf8(field: str, value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"field {field!r}: {LONE_SURROGATE}") from None


def _json_bytes(value: object, *, allow_nan: bool = False) -> bytes:
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, allow_nan=allow_nan, default=_as_json
    ).encode()


def _json_problem(row: dict[str, object], problem: Exception) -> Exception:
    """Return what is to be raised for a row that does not go into JSON: it names the first field at fault."""
    for field, value in row.items():
        try:
            _json_bytes({field: value})
        except UnicodeEncodeError:
            return ValueError(f"field {field!r}: {LONE_SURROGATE}")
        except (TypeError, ValueError, RecursionError) as error:
            if isinstance(error, ValueError) and _holds_nan(value):
                return ValueError(f"field {field!r}: NaN and infinite numbers are not in JSON")
            return TypeError(f"field {field!r} does not go into JSON ({type(error).__name__})")
    return TypeError(f"the dict does not go into JSON ({type(problem).__name__}): name a payload field")


def _holds_nan(value: object) -> bool:
    """Tell whether a value that does not go into JSON would, were there NaN in it."""
    try:
        _json_bytes(value, allow_nan=True)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _as_json(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)
