"""Submits the job: ``… -m tests.runners.submit_killed_job FOLDER STORE EVENTS RATE AGENT OPTION…``.

A module of its own, so that the job's functions are not those of ``__main__``, of which Beam pickles copies.
"""

from __future__ import annotations

import pathlib
import sys

from tests.runners.killed_job import submit

if __name__ == "__main__":
    folder, uri, events, rate, agent, *options = sys.argv[1:]
    submit(pathlib.Path(folder), uri, int(events), float(rate), agent, options)
