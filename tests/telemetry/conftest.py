"""What the telemetry tests share."""

from __future__ import annotations

# Another distribution's; a test of ours installs it and runs them.
collect_ignore = ["third_party_plugin"]
