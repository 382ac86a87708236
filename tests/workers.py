"""What a runner leaves in the process that does not tear its DoFns down."""

from __future__ import annotations

import sys

__all__ = ["end_workers"]


def end_workers() -> None:
    """Do what a runner should have done that sets DoFns up and does not tear them down.

    Else a later test meets this one's stores, probes and plugins, and keys whose expiry never succeeded.
    """
    worker = sys.modules.get("beam_agents.runtime.worker")
    if worker is not None:
        for key in list(worker._workers):
            worker._workers.pop(key).close()
    wedges = sys.modules.get("beam_agents.signals.wedges")
    if wedges is not None:
        wedges._table.renew()
