"""What the docs say of Prism: a job cannot be drained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from apache_beam.portability.api.org.apache.beam.model.job_management.v1 import (
    beam_job_api_pb2,
    beam_job_api_pb2_grpc,
)

if TYPE_CHECKING:
    from tests.servers.prism import Prism


def test_prism_does_not_drain(prism: Prism) -> None:
    with grpc.insecure_channel(prism.endpoint) as channel:
        stub = beam_job_api_pb2_grpc.JobServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Drain(beam_job_api_pb2.DrainJobRequest(job_id="any"), timeout=60)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
