"""What a runner finds a key's state and timers again by: the names of the step, its cells and its timers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import apache_beam as beam
import pytest
from apache_beam.coders import ProtoCoder, registry
from apache_beam.portability.api.org.apache.beam.model.pipeline.v1 import beam_runner_api_pb2 as api

from beam_agents import AgentConfig, AgentContext, AgentEnvelope, Complete, FlushToLongterm, RunAgent, Tool
from beam_agents.model.scripted import ScriptedModel
from beam_agents.wire.beam_agents_pb2 import ActivationError, ToolIntent
from tests.state.jobs import V1, V2, agent_v1, agent_v2

if TYPE_CHECKING:
    from beam_agents.runtime.activation import AgentFunction

STEP = "Agent/Activate/ParDo(AgentDoFn)"


async def look_up(arguments: bytes) -> bytes:
    return arguments


class CallableAgent:
    async def __call__(self, ctx: AgentContext) -> Complete:
        return Complete(ctx.event)


CONFIGS = {
    "nothing": AgentConfig(),
    "version 1": V1,
    "version 2": V2,
    "deadlines": replace(V1, suspension_timeout_ms=1_000),
    "everything": AgentConfig(
        provider_factory=ScriptedModel({}),
        longterm_memory="memory://",
        on_expire=FlushToLongterm(),
        tools=[Tool("look_up", look_up)],
        telemetry=(),
    ),
}


def built(
    config: AgentConfig | None = None,
    agent: AgentFunction = agent_v1,
    *,
    label: str = "Agent",
    name: str | None = None,
    before: int = 0,
    after: int = 0,
) -> api.Pipeline:
    """Return a pipeline with an agent as a runner gets it."""
    pipeline = beam.Pipeline()
    keyed = tuple[bytes, AgentEnvelope]
    elements = pipeline | beam.Create([]).with_output_types(keyed)
    for number in range(before):
        elements |= f"Before {number}" >> beam.Map(lambda element: element).with_output_types(keyed)
    outputs = elements | label >> RunAgent(agent, config=config, name=name)
    output = outputs.output
    for number in range(after):
        output |= f"After {number}" >> beam.Map(lambda element: element)
    made: api.Pipeline = pipeline.to_runner_api()
    return made


def stateful(pipeline: api.Pipeline) -> tuple[str, api.PTransform, api.ParDoPayload]:
    """Return the stateful step: its id, itself and what it is made of."""
    found = [
        (step_id, step, api.ParDoPayload.FromString(step.spec.payload))
        for step_id, step in pipeline.components.transforms.items()
        if step.spec.urn == "beam:transform:pardo:v1"
    ]
    ((step_id, step, payload),) = [each for each in found if each[2].state_specs]
    return step_id, step, payload


@pytest.mark.parametrize("config", CONFIGS)
def test_no_configuration_changes_the_steps_name(config: str) -> None:
    _, step, _ = stateful(built(CONFIGS[config]))
    assert step.unique_name == STEP


@pytest.mark.parametrize("agent", [agent_v1, agent_v2, CallableAgent()])
def test_neither_the_agent_nor_its_name_changes_the_steps_name(agent: AgentFunction) -> None:
    for name in (None, "another"):
        _, step, _ = stateful(built(agent=agent, name=name))
        assert step.unique_name == STEP


def test_the_label_is_in_the_steps_name() -> None:
    _, step, _ = stateful(built(label="Renamed"))
    assert step.unique_name == STEP.replace("Agent/", "Renamed/", 1)
    pipeline = beam.Pipeline()
    keyed = pipeline | beam.Create([]).with_output_types(tuple[bytes, AgentEnvelope])
    _ = keyed | RunAgent(agent_v1)
    _, step, _ = stateful(pipeline.to_runner_api())
    assert step.unique_name == STEP.replace("Agent/", "RunAgent/", 1)


@pytest.mark.parametrize("config", CONFIGS)
def test_cells_and_timers_have_the_names_and_coders_of_version_1(config: str) -> None:
    pipeline = built(CONFIGS[config])
    _, step, payload = stateful(pipeline)
    coders = pipeline.components.coders
    cells = {
        state_id: coders[spec.read_modify_write_spec.coder_id].spec.urn
        for state_id, spec in payload.state_specs.items()
    }
    assert cells == dict.fromkeys(("control", "memory", "replay"), "beam:coder:bytes:v1")
    timers = {family: spec.time_domain for family, spec in payload.timer_family_specs.items()}
    deadlines = {"ts-suspension": api.TimeDomain.PROCESSING_TIME} if config == "deadlines" else {}
    assert timers == {"ts-ttl": api.TimeDomain.EVENT_TIME, **deadlines}
    (elements,) = step.inputs.values()
    element_coder = coders[pipeline.components.pcollections[elements].coder_id]
    assert element_coder.spec.urn == "beam:coder:kv:v1"
    assert coders[element_coder.component_coder_ids[0]].spec.urn == "beam:coder:bytes:v1"


def test_beams_id_of_the_step_counts_the_steps_before_it_alone() -> None:
    """Flink keeps a portable pipeline's timers under this id, and its state under the cell's name."""
    ids = {
        (before, after): stateful(built(before=before, after=after))[0]
        for before in (0, 1)
        for after in (0, 1)
    }
    assert ids[0, 0] == ids[0, 1] != ids[1, 0] == ids[1, 1]


@pytest.mark.parametrize("kind", [AgentEnvelope, ToolIntent, ActivationError])
def test_elements_under_way_are_protobuf(kind: type) -> None:
    assert isinstance(registry.get_coder(kind), ProtoCoder)
