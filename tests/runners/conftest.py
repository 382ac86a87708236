"""What the tests of portable runners share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.servers.flink import Flink, running_flink
from tests.servers.prism import Prism, running_prism

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def prism(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prism]:
    """A runner for the tests of one module, which leave it running."""
    with running_prism(tmp_path_factory.mktemp("prism")) as runner:
        yield runner


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    """A cluster for all tests of the group ``flink``, which leave it running."""
    with running_flink(tmp_path_factory.mktemp("flink")) as cluster:
        yield cluster
