"""Stop a pipeline with a savepoint, and start another one from it, on Beam's FnApiRunner.

No runner that runs in one process offers that. What a savepoint is made of is there all the same: the encoded
state that the SDK worker sent over Beam's state API, and the encoded timers that it sent over the data API.
This takes both out of a run, after its first bundle of events, and puts them into another run before its own.
What a real runner adds, how it finds a step's state again, is not in it: here that goes by the step's name.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api.org.apache.beam.model.fn_execution.v1.beam_fn_api_pb2 import StateKey
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.execution import ListBuffer

from beam_agents.testing.pipeline import _Results
from beam_agents.transform import RunAgent
from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from beam_agents.config import AgentConfig
    from beam_agents.runtime.activation import AgentFunction
    from beam_agents.wire.beam_agents_pb2 import ActivationError, ToolIntent

__all__ = ["Run", "Savepoint", "start"]


@dataclass(frozen=True)
class Savepoint:
    """What a pipeline's stateful steps hold, in bytes.

    Attributes:
        cells: By step, state id, encoded window and encoded key: the encoded value.
        timers: By step and timer family: the encoded timers.
    """

    cells: dict[tuple[str, str, str, str], str] = field(default_factory=dict)
    timers: dict[tuple[str, str], str] = field(default_factory=dict)

    def dumps(self) -> str:
        """Return it as JSON, with all bytes in hexadecimal."""
        parts = {
            "cells": [[*place, value] for place, value in sorted(self.cells.items())],
            "timers": [[*place, value] for place, value in sorted(self.timers.items())],
        }
        return json.dumps(parts, indent=1) + "\n"

    @classmethod
    def loads(cls, text: str) -> Savepoint:
        """Undo :meth:`dumps`."""
        parts = json.loads(text)
        cells = {(step, state, window, key): value for step, state, window, key, value in parts["cells"]}
        return cls(cells, {(step, family): value for step, family, value in parts["timers"]})


class _Stopped(Exception):
    """The savepoint is taken."""


class _Runner(FnApiRunner):
    """Stops after the first bundle that sets timers, or begins with what another run left.

    Beam's internals are untyped, hence Any.
    """

    def __init__(self, *, stop: bool, start_from: Savepoint | None) -> None:
        super().__init__()
        self.taken = Savepoint()
        self._stop = stop
        self._start_from = start_from

    def _execute_bundle(self, context: Any, bundle: Any, bundle_input: Any) -> Any:
        if self._start_from is not None and bundle.stage_timer_outputs:
            self._restore(context, bundle, bundle_input, self._start_from)
            self._start_from = None
        return super()._execute_bundle(context, bundle, bundle_input)

    def _enqueue_set_timers(self, context: Any, bundle: Any, timers: Any, bundle_input: Any) -> None:
        if self._stop and timers:
            self._take(context, bundle, timers)
            raise _Stopped
        super()._enqueue_set_timers(context, bundle, timers, bundle_input)

    def _take(self, context: Any, bundle: Any, timers: Any) -> None:
        names = _step_names(bundle)
        for encoded, values in context.state_servicer._state.items():
            place = StateKey.FromString(encoded).bag_user_state
            if values:
                cell = (names[place.transform_id], place.user_state_id, place.window.hex(), place.key.hex())
                self.taken.cells[cell] = b"".join(values).hex()
        for (transform_id, family), (buffer, _) in timers.items():
            self.taken.timers[names[transform_id], family] = b"".join(buffer).hex()

    def _restore(self, context: Any, bundle: Any, bundle_input: Any, savepoint: Savepoint) -> None:
        ids = {name: transform_id for transform_id, name in _step_names(bundle).items()}
        state = context.state_servicer._state
        for (step, state_id, window, key), value in savepoint.cells.items():
            place = StateKey.BagUserState(
                transform_id=ids[step],
                user_state_id=state_id,
                window=bytes.fromhex(window),
                key=bytes.fromhex(key),
            )
            state[StateKey(bag_user_state=place).SerializeToString()] = [bytes.fromhex(value)]
        restored = {}
        for (step, family), encoded in savepoint.timers.items():
            coder = bundle.get_timer_coder_impl(ids[step], family)
            buffer = ListBuffer(coder_impl=coder)
            buffer.append(bytes.fromhex(encoded))
            first = min(timer.hold_timestamp for timer in coder.decode_all(bytes.fromhex(encoded)))
            restored[ids[step], family] = (buffer, first)
        super()._enqueue_set_timers(context, bundle, restored, bundle_input)


def _step_names(bundle: Any) -> dict[str, str]:
    """Return the steps' names, which a pipeline's author chooses, by the ids that Beam numbers."""
    transforms = bundle.process_bundle_descriptor.transforms
    return {transform_id: transform.unique_name for transform_id, transform in transforms.items()}


@dataclass(frozen=True)
class Run:
    """What a run gave.

    Attributes:
        outputs: The main output.
        intents: The intents.
        errors: The errors.
        savepoint: What the stopped pipeline held; empty where it ran to its end.
    """

    outputs: list[bytes]
    intents: list[ToolIntent]
    errors: list[ActivationError]
    savepoint: Savepoint


def start(
    agent: AgentFunction,
    config: AgentConfig,
    events: Sequence[AgentEnvelope],
    *,
    name: str | None = None,
    start_from: Savepoint | None = None,
    stop: bool = False,
) -> Run:
    """Run events through an agent.

    Args:
        agent: The agent.
        config: Its configuration.
        events: What comes, in order.
        name: The agent's name.
        start_from: What an earlier run left; None to begin with nothing.
        stop: Whether to stop with a savepoint after the events; otherwise the watermark goes on to the end,
            so that all timers fire.
    """
    results = _Results()
    runner = _Runner(stop=stop, start_from=start_from)
    pipeline = beam.Pipeline(runner, PipelineOptions([]))
    keyed = tuple[bytes, AgentEnvelope]
    elements = pipeline | beam.Create([(each.entity_key, each) for each in events]).with_output_types(keyed)
    outputs = elements | "Agent" >> RunAgent(agent, config=config, name=name)
    _ = outputs.output | "Outputs" >> beam.Map(results.add_output)
    _ = outputs.intents | "Intents" >> beam.Map(results.add_intent)
    _ = outputs.errors | "Errors" >> beam.Map(results.add_error)
    with contextlib.suppress(_Stopped):
        pipeline.run().wait_until_finish()
    return Run(results.outputs, results.intents, results.errors, runner.taken)
