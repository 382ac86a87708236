"""What all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The machine's load decides nothing: no deadlines, and a run is the same each time.
settings.register_profile(
    "project", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], max_examples=60
)
settings.load_profile("project")
