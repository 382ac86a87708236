from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.telemetry.installed import end_workers

if TYPE_CHECKING:
    from collections.abc import Iterator


# Another distribution's; a test of ours installs it and runs them.
collect_ignore = ["third_party_plugin"]


@pytest.fixture(autouse=True)
def _torn_down() -> Iterator[None]:
    """Leave no agent behind that its runner did not tear down, and no plugin that it holds."""
    yield
    end_workers()
