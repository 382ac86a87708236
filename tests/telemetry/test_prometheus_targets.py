"""The target file that tells Prometheus of a process: where it cannot be written, nothing else suffers."""

from __future__ import annotations

import json
import pathlib
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from beam_agents.signals import dropped
from beam_agents_telemetry.logs import StructuredLogs
from beam_agents_telemetry.prometheus import PrometheusMetrics
from beam_agents_telemetry.prometheus_targets import TargetFile, this_process
from tests.servers.disks import mounted
from tests.servers.process import accepts
from tests.telemetry.scraping import endpoint, forget_all, scrape

if TYPE_CHECKING:
    from collections.abc import Iterator

ANY = PrometheusMetrics(port=0)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget_all()
    yield
    forget_all()


@contextmanager
def unwritable(kind: str, folder: pathlib.Path) -> Iterator[str]:
    """Yield a folder in which no file can be written, whoever tries."""
    if kind == "nowhere":
        yield "/proc/nowhere"
    elif kind == "a file":
        folder.write_text("")
        yield str(folder)
    elif kind == "in a file":
        folder.write_text("")
        yield str(folder / "targets")
    else:
        with mounted(folder, {"read-only": "size=64k,ro", "full": "size=64k"}[kind]):
            if kind == "full":
                with (folder / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
                    while ballast.write(b"." * 4_096):
                        pass
            yield str(folder)


@pytest.mark.parametrize("kind", ["nowhere", "a file", "in a file", "read-only", "full"])
@pytest.mark.parametrize("logs", [False, True])
def test_without_a_target_file_the_endpoint_is_there_and_it_is_told_once(
    kind: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, *, logs: bool
) -> None:
    log = tmp_path / "log"
    observed = StructuredLogs(file=log).build() if logs else None
    with unwritable(kind, tmp_path / "disk") as folder:
        with endpoint(replace(ANY, sd_dir=folder)) as observer:
            found = scrape(observer.url)
        left = [path.name for path in pathlib.Path(folder).glob(".*")]
    if observed is not None:
        observed.close(5.0)
    assert found.total("telemetry_dropped_total", plugin="prometheus", reason="discovery") == 1
    assert left == []
    # Nowhere else, and not when it is closed either.
    lines = log.read_text().splitlines() if logs else []
    (told,) = [*caplog.messages, *(json.loads(line)["problem"] for line in lines)]
    assert len(lines) == logs
    assert f"no target file in {folder}: " in told
    assert f"whose metrics are at {observer.url}/metrics" in told


def test_files_that_may_not_be_removed_do_not_keep_ours_away(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned = TargetFile(
        tmp_path, replace(this_process(), pid=2**22 + 1), "127.0.0.1", 9464, tls=False
    ).path
    unlink = pathlib.Path.unlink

    def refuse(path: pathlib.Path, *, missing_ok: bool = False) -> None:
        if path == abandoned:
            raise PermissionError
        unlink(path, missing_ok=missing_ok)

    # As another user's are in a folder with the sticky bit, which root may remove all the same.
    monkeypatch.setattr(pathlib.Path, "unlink", refuse)
    with endpoint(replace(ANY, sd_dir=str(tmp_path))):
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == [abandoned]
    assert dropped() == {}


def test_a_target_that_cannot_be_removed_does_not_keep_the_port(tmp_path: pathlib.Path) -> None:
    observer = replace(ANY, sd_dir=str(tmp_path / "targets")).build()
    (file,) = (tmp_path / "targets").iterdir()
    file.unlink()
    file.mkdir()
    with pytest.raises(OSError, match="directory"):
        observer.close(5.0)
    assert not accepts(observer.server.port)
