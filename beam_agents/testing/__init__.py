"""A kit for the tests of agents: a scripted model, real pipelines, faults on purpose, signals to ask."""

from beam_agents.model.scripted import ScriptedModel
from beam_agents.testing.events import answer, event
from beam_agents.testing.faults import FailOnce, InjectedFault
from beam_agents.testing.harness import AgentHarness, Emitted
from beam_agents.testing.pipeline import AdvanceProcessingTime, AdvanceWatermark, AgentRun, run_events
from beam_agents.testing.state import KeyState
from beam_agents.testing.telemetry import RecordingTelemetry

__all__ = [
    "AdvanceProcessingTime",
    "AdvanceWatermark",
    "AgentHarness",
    "AgentRun",
    "Emitted",
    "FailOnce",
    "InjectedFault",
    "KeyState",
    "RecordingTelemetry",
    "ScriptedModel",
    "answer",
    "event",
    "run_events",
]
