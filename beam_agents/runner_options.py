"""What ``RunAgent`` sets in a pipeline's options, for its runner to keep the state and the order of a key."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from apache_beam.options.pipeline_options import DebugOptions, PipelineOptions, StandardOptions
from apache_beam.runners.portability.portable_runner import PortableRunner

if TYPE_CHECKING:
    import argparse

    from apache_beam.pvalue import PCollection

    from beam_agents.wire.beam_agents_pb2 import AgentEnvelope

__all__ = ["FlinkCheckpointOptions", "keep_state"]

_logger = logging.getLogger(__name__)

_NO_SPLITS: Final = "prism_disable_sdf_split"
_SORTS_BATCHES: Final = frozenset({"FlinkRunner", "DataflowRunner"})
"""Runners that group a batch's elements by key before a step with state, without their order."""


class FlinkCheckpointOptions(PipelineOptions):
    """An option of Beam's Flink runner that its Python SDK learns from the job server, if at all.

    Source: ``org.apache.beam.runners.flink.FlinkPipelineOptions``.
    """

    @classmethod
    def _add_argparse_args(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--finish_bundle_before_checkpointing",
            action="store_true",
            default=None,
            help="Finish the bundle, and send on what it has put out, before each of Flink's checkpoints.",
        )


def keep_state(pcoll: PCollection[tuple[bytes, AgentEnvelope]]) -> None:
    """Set what a step over these elements needs of its runner; warn where a runner would mix up their order.

    Prism splits a bundle that is slow, and runs both parts at once where both have elements of one key: what
    one of them does to the key's state is lost. Other runners know no such experiment.

    Flink, where a checkpoint comes amid a bundle, ends the bundle, sends its watermark on, and keeps what the
    bundle has put out until the next one begins (``DoFnOperator.snapshotState`` and ``maybeEmitWatermark`` in
    Beam 2.70): so timers fire before the events that would have moved them, and the first element of a job
    may stay there for ever. A bundle that ends before the checkpoint sends its output on first.

    Args:
        pcoll: Their pipeline's options are changed.
    """
    options = pcoll.pipeline.options
    options.view_as(DebugOptions).add_experiment(_NO_SPLITS)
    if isinstance(pcoll.pipeline.runner, PortableRunner):
        options.view_as(FlinkCheckpointOptions).finish_bundle_before_checkpointing = True
    runner = type(pcoll.pipeline.runner).__name__
    streaming = options.view_as(StandardOptions).streaming
    if runner in _SORTS_BATCHES and pcoll.is_bounded and not streaming:
        _logger.warning(
            "beam-agents: %s gives an agent the events of a key in any order where a job is a batch, as this "
            "one, whose input is bounded: for the order in which they are read give --streaming",
            runner,
        )
