"""What the telemetry tests share."""

from __future__ import annotations

import os

from tests.servers import phoenix

# Another distribution's; a test of ours installs it and runs them.
collect_ignore = ["third_party_plugin"]
if phoenix.PROGRAM not in os.environ:
    # Its back end is large: `make test-phoenix` installs it, and runs them.
    collect_ignore.append("test_phoenix.py")
