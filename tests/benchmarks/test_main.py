"""The program behind ``make bench``, in a hurry."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.benchmarks.__main__ import RATIOS
from tests.benchmarks.telemetry import COMPARISONS
from tests.servers.redis import running

if TYPE_CHECKING:
    import pathlib


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it with one value of each workload, in one process."""
    command = [sys.executable, "-m", "tests.benchmarks", "--quiet", "--in-process", "--debug-single-value"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def test_every_ratio_is_measured(tmp_path: pathlib.Path) -> None:
    with running(tmp_path):
        pass  # it is installed, or the test is left out
    path = tmp_path / "bench.json"
    done = bench("--elements", "100", "--rounds", "2", "--per-round", "5", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(path.read_text())
    ratios = results["ratios"]
    assert [(each["what"], each["numerator"]) for each in ratios] == [
        (each.what, each.numerator) for each in RATIOS
    ]
    # One is a difference, which in so little time may be anything.
    assert all(each["ratio"] > 0 or each["less"] for each in ratios)
    assert all(math.isfinite(each["ratio"]) for each in ratios)
    assert all((each["verdict"] != "") == (each["goal"] is not None) for each in ratios)
    for each in ratios:
        if each["quartiles"] is not None:
            first, third = each["quartiles"]
            assert first <= each["ratio"] <= third
    in_turn = {each["numerator"] for each in ratios if each["quartiles"] is not None}
    assert {"no-op, Beam", "3 rows to redis, Beam", "no-op, every trace, collector hanging"} <= in_turn
    assert "pipeline, RunAgent" not in in_turn
    assert [each["what"] for each in results["loads"]] == [
        "what pyperf times",
        *(each.name for each in COMPARISONS),
    ]
    assert all(len(each["before"]) == len(each["after"]) == 3 for each in results["loads"])


def test_one_round_has_no_quartiles_and_is_refused() -> None:
    done = bench("--rounds", "1")
    assert done.returncode == 2
    assert "--rounds must be at least 2" in done.stderr
