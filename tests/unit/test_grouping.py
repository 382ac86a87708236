from __future__ import annotations

import os

import pytest


@pytest.mark.xdist_group("together")
def test_grouped_tests_stay_in_one_process(request: pytest.FixtureRequest) -> None:
    """The pages' examples use what earlier ones made; pytest-xdist tells groups by the ids that it gives."""
    if "PYTEST_XDIST_WORKER" in os.environ and request.config.getoption("loadgroup"):
        assert request.node.nodeid.endswith("@together")
