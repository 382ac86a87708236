from __future__ import annotations

import errno
import os
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from beam_agents.cli.staging import OutputError, StagedFile, is_streamed, publish


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
        assert staged.assemble(seen.append) == 3
        assert target.read_bytes() == b"earlier"
        publish([staged])
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
        assert staged.assemble() == 0
        publish([staged])
    assert (tmp_path / "out").read_bytes() == b""


def test_without_a_path_lines_are_only_counted() -> None:
    with StagedFile(None) as staged:
        folder = staged.folder
        write(staged, "-0", b"a\nb\n")
        assert staged.assemble() == 2
        publish([staged])
    assert not folder.exists()


def test_outside_of_its_block_it_has_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="with block"):
        _ = StagedFile(tmp_path / "out").folder


def test_when_one_file_cannot_be_put_in_its_place_none_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("new", "old", "busy")
    for name in names[1:]:
        (tmp_path / name).write_text("earlier")
    replace = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if target.name == "busy":
            raise OSError(errno.EBUSY, "")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with ExitStack() as stack:
        files = [stack.enter_context(StagedFile(tmp_path / name)) for name in names]
        for file in files:
            file.assemble()
        with pytest.raises(OutputError, match=r"busy' cannot be written: Device or resource busy"):
            publish(files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "old"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"earlier"}


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for link in ("link", "dangling"):
        (tmp_path / link).symlink_to(f"there/of-{link}")
    (tmp_path / "there" / "of-link").write_text("earlier")
    for link in ("link", "dangling"):
        with StagedFile(tmp_path / link) as staged:
            write(staged, "-0", b"a\n")
            staged.assemble()
            publish([staged])
        assert (tmp_path / link).is_symlink()
        assert (tmp_path / "there" / f"of-{link}").read_bytes() == b"a\n"
    assert len(list((tmp_path / "there").iterdir())) == 2


def test_a_fifo_is_written_to(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()))
    reader.start()
    with StagedFile(fifo) as staged:
        write(staged, "-0", b"a\n")
        staged.assemble()
        staged.stream()
        publish([staged])
    reader.join()
    assert read == [b"a\n"]
    assert fifo.is_fifo()
    assert list(tmp_path.iterdir()) == [fifo]


def test_a_device_is_written_to() -> None:
    assert is_streamed(Path(os.devnull))
    with StagedFile(Path(os.devnull)) as staged:
        assert staged.folder.parent != Path("/dev")
        write(staged, "-0", b"a\n")
        staged.assemble()
        staged.stream()
        publish([staged])
    assert Path(os.devnull).is_char_device()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_device_that_is_full() -> None:
    with StagedFile(Path("/dev/full")) as staged:
        write(staged, "-0", b"a\n")
        staged.assemble()
        with pytest.raises(OutputError, match="No space left on device") as raised:
            staged.stream()
    assert raised.value.is_full


@pytest.mark.parametrize(
    ("name", "reason"), [("x" * 256, "File name too long"), ("loop", "Too many levels"), (".", "directory")]
)
def test_what_cannot_be_written(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OutputError, match=reason), StagedFile(tmp_path / name):
        pass


def test_a_name_that_just_fits(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 127)
    with StagedFile(target) as staged:
        staged.assemble()
        publish([staged])
    assert target.exists()
