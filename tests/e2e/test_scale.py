"""Many keys and long-lived keys: they finish, and the process does not grow with them."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tracemalloc

import pytest

from beam_agents import AgentConfig, AgentContext, Complete
from beam_agents.runtime.dofn import AgentDoFn, make_dofn
from beam_agents.testing import event
from beam_agents.testing.harness import DictCell, DictTimer

PROGRAM = pathlib.Path(__file__).with_name("scale_program.py")


def run(kind: str, keys: int, per_key: int, runner: str) -> dict[str, float]:
    command = [sys.executable, str(PROGRAM), kind, str(keys), str(per_key), f"--runner={runner}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-2_000:]
    reported: dict[str, float] = json.loads(done.stdout)
    return reported


# The FnApiRunner takes milliseconds for each key of any stateful step (it measures each cached state cell by
# walking all modules), so many keys go over the other one.
@pytest.mark.parametrize(
    ("keys", "per_key", "runner"),
    [
        (100_000, 1, "BundleBasedDirectRunner"),
        (1, 20_000, "FnApiRunner"),
        (1, 20_000, "BundleBasedDirectRunner"),
    ],
)
def test_it_finishes_in_about_the_memory_of_a_hand_written_step(keys: int, per_key: int, runner: str) -> None:
    agent, hand_written = run("agent", keys, per_key, runner), run("hand-written", keys, per_key, runner)
    assert agent["activations"] == keys * per_key
    assert agent["wipes"] == keys
    assert agent["peak_mib"] < 2 * hand_written["peak_mib"]


async def count(ctx: AgentContext) -> Complete:
    ctx.memory.set("seen", b"%d" % (int(ctx.memory.get("seen", b"0")) + 1))
    return Complete()


def test_what_the_process_keeps_is_bounded() -> None:
    """No table of the process grows with the number of activations for ever."""
    dofn = make_dofn(count, AgentConfig(), name="agent", pipeline="test", run_id="bounded")
    assert isinstance(dofn, AgentDoFn)
    dofn.setup()
    dofn.start_bundle()

    def activate(first: int, last: int) -> None:
        for index in range(first, last):
            key = b"key%d" % index
            cells = (DictCell(), DictCell(), DictCell(), DictTimer())
            dofn.process((key, event(key, time_ms=index)), None, *cells)  # type: ignore[arg-type]  # the envelope has a time

    activate(0, 60_000)  # beyond the bound of what is remembered of attempts
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    activate(60_000, 80_000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    dofn.teardown()
    # What replaces older entries is traced, what it replaces is not: 20,000 entries of about 100 bytes.
    assert after - before < 4 * 1024 * 1024
