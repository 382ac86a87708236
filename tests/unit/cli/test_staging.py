from __future__ import annotations

from pathlib import Path

import pytest

from beam_agents.cli.staging import StagedFile


def write(staged: StagedFile, name: str, content: bytes) -> None:
    Path(staged.shard_prefix + name).write_bytes(content)


def test_shards_become_one_file_in_the_order_of_their_names(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"earlier")
    seen: list[bytes] = []
    with StagedFile(target) as staged:
        write(staged, "-1", b"b\nc\n")
        write(staged, "-0", b"a\n")
        assert target.read_bytes() == b"earlier"
        assert staged.commit(seen.append) == 3
    assert target.read_bytes() == b"a\nb\nc\n"
    assert seen == [b"a\n", b"b\n", b"c\n"]
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_not_committed_leaves_no_trace(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_bytes(b"earlier")

    def fail() -> None:
        with StagedFile(target) as staged:
            write(staged, "-0", b"a\n")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert target.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [target]


def test_no_shards_make_an_empty_file(tmp_path: Path) -> None:
    with StagedFile(tmp_path / "out") as staged:
        assert staged.commit() == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_without_a_path_lines_are_only_counted() -> None:
    with StagedFile(None) as staged:
        folder = staged.folder
        write(staged, "-0", b"a\nb\n")
        assert staged.commit() == 2
    assert not folder.exists()


def test_outside_of_its_block_it_has_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="with block"):
        _ = StagedFile(tmp_path / "out").folder
