"""The program behind ``make outages``, in a hurry."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from beam_agents.memory.expiry import OnFailure
from tests.benchmarks.outages import CASES, PRISM, STOPPED, table
from tests.servers.prism import prism_binary
from tests.servers.redis import running

if TYPE_CHECKING:
    import pathlib


# One run is for all.
pytestmark = pytest.mark.xdist_group("outages")


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was seen of Prism with each setting."""
    folder: pathlib.Path = tmp_path_factory.mktemp("outages")
    prism_binary()
    with running(folder):
        pass  # it is installed, or the test is left out
    results = folder / "outages.json"
    chosen = [name for name, case in CASES.items() if (case.runner, case.fault) == (PRISM, STOPPED)]
    arguments = [*chosen, "--json", str(results), "--seconds", "4", "4", "8"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.outages", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert results.is_file(), done.stdout + done.stderr
    return {each["case"]["on_failure"]: each for each in json.loads(results.read_text())["cases"]}


def test_a_failed_bundle_ends_the_job_with_all_that_it_remembered(cases: dict[str, Any]) -> None:
    seen = cases[OnFailure.FAIL_BUNDLE.value]
    assert seen["failed_after_s"] > 0
    assert seen["failed_flushes"] >= seen["failed_bundles"] >= 1
    assert seen["recovered_after_s"] is None
    assert seen["rows"] < seen["keys"]


def test_with_timers_set_again_the_job_goes_on_and_nothing_is_lost(cases: dict[str, Any]) -> None:
    seen = cases[OnFailure.REARM.value]
    assert seen["failed_after_s"] is None
    assert seen["failed_bundles"] == 0
    assert seen["failed_flushes"] >= seen["failed_keys"] >= 1
    assert seen["activations_per_s"][1] > 0
    assert seen["recovered_after_s"] > 0
    assert seen["rows"] == seen["keys"]


def test_the_table_has_a_column_for_each_case(cases: dict[str, Any]) -> None:
    made = table(list(cases.values()))
    assert len(made.columns) == 1 + len(cases) == 3
    assert made.row_count > 8
