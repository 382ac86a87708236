from __future__ import annotations

from tests.benchmarks.interleaved import WARM_UP_ROUNDS, Side, interleave


def recorded(done: list[str]) -> list[Side]:
    """Return two sides that note what they do; their times are made up."""

    def side(name: str, seconds: float) -> Side:
        def run(loops: int) -> float:
            done.append(name)
            return seconds * loops

        return Side(name, run, lambda: done.append(f"{name} settles"))

    return [side("slow", 4.0), side("quick", 2.0)]


def test_each_side_has_a_turn_in_each_round_and_settles_before_the_next_one() -> None:
    done: list[str] = []
    timed = interleave(recorded(done), rounds=20, per_round=3)
    assert timed.seconds == {"slow": [4.0] * 20, "quick": [2.0] * 20}
    turns = [tuple(done[start : start + 4]) for start in range(0, len(done), 4)]
    assert len(turns) == 20 + WARM_UP_ROUNDS
    assert set(turns) == {
        ("slow", "slow settles", "quick", "quick settles"),
        ("quick", "quick settles", "slow", "slow settles"),
    }


def test_the_order_is_the_same_in_each_run() -> None:
    runs: list[list[str]] = [[], []]
    for done in runs:
        interleave(recorded(done), rounds=20, per_round=1)
    assert runs[0] == runs[1]
