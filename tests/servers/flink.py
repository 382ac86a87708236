"""Flink: a JobManager, TaskManagers and Beam's job server, each a process, with an SDK of the same Beam.

``.ci/install-flink`` puts all of it into the user's cache. Flink's shell scripts are not in it: what they
compute, the sizes of a TaskManager's memory above all, is written here.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import httpx

from tests.servers.process import absent, accepts, free_port, parent_of, server, stop, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Flink", "running_flink", "sdk_of_flink"]

ROOT: Final = pathlib.Path(__file__).parents[2]
VERSION: Final = "1.19.1"
_LOGGING: Final = ("log4j-api", "log4j-core", "log4j-slf4j-impl", "log4j-1.2-api")
_REPORTERS: Final = 20
"""How many ports Flink's processes have to choose from: others may have taken some."""
_UP_WITHIN_S: Final = 180.0
_DONE_WITHIN_S: Final = 600.0

# As the distribution's own configuration has them for Java 17; what it opens is in the job server's pom.xml.
_EXPORTS: Final = (
    "java.base/sun.net.util",
    "java.rmi/sun.rmi.registry",
    "java.security.jgss/sun.security.krb5",
)
_PROMETHEUS: Final = "org.apache.flink.metrics.prometheus"
_LOG4J: Final = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.name = Console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n
"""


@dataclass(slots=True)
class Flink:
    """A cluster that takes jobs.

    Attributes:
        folder: Its files.
        rest: The URL of its REST API.
        job_manager: The process; another after :meth:`restart_job_manager`.
        task_managers: The processes that run, as far as nobody has killed them.
        job_endpoint: Where Beam's job server is, as HOST:PORT.
        reporter_ports: Among them are those at which its processes tell Prometheus their metrics.
        home: Where all of it is installed.
    """

    folder: pathlib.Path
    rest: str
    job_endpoint: str
    reporter_ports: range
    home: pathlib.Path
    job_manager: subprocess.Popen[bytes]
    task_managers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def job_server_jar(self) -> str:
        """The job server as a program, as ``java -jar`` takes it."""
        return str(self.home / "job-server" / "job-server.jar")

    def environment(self, **variables: str) -> list[str]:
        """Return Beam's options for SDK workers as processes, with these variables.

        They are this checkout's, on the SDK of the job server's version.
        """
        path = os.pathsep.join(filter(None, [variables.pop("PYTHONPATH", None), _path()]))
        config = {"command": str(self._worker()), "env": {"PYTHONPATH": path, **variables}}
        return ["--environment_type=PROCESS", f"--environment_config={json.dumps(config)}"]

    def options(self) -> list[str]:
        """Return Beam's options for a streaming job on this cluster."""
        return [f"--job_endpoint={self.job_endpoint}", *self.environment(), "--streaming"]

    def start(self, module: str, *arguments: str, log: pathlib.Path) -> subprocess.Popen[bytes]:
        """Start a module that submits a job, on the SDK of the job server's version.

        Args:
            module: Its name.
            arguments: All that it is given.
            log: Where its output goes.
        """
        python, variables = sdk_of_flink()
        with log.open("wb") as output:
            return subprocess.Popen(
                [python, "-m", module, *arguments],
                cwd=self.folder,
                env=variables,
                stdout=output,
                stderr=output,
            )

    def done(self, module: str, *arguments: str, log: pathlib.Path) -> None:
        """Run a module to its end, as :meth:`start` does; fail with what was said where it fails."""
        status = self.start(module, *arguments, log=log).wait(_DONE_WITHIN_S)
        assert status == 0, f"{log.read_text(errors='replace')[-3_000:]}\n{self.log()}"

    def ask(self, path: str) -> dict[str, object]:
        """Return what the REST API says; nothing while it is away."""
        try:
            found: dict[str, object] = httpx.get(f"{self.rest}{path}", timeout=10).json()
        except (httpx.HTTPError, json.JSONDecodeError):
            return {}
        return found

    def jobs(self, state: str = "RUNNING") -> list[str]:
        """Return the ids of the jobs in a state."""
        found = self.ask("/jobs").get("jobs", [])
        assert isinstance(found, list)
        return [each["id"] for each in found if each["status"] == state]

    def cancel(self, job: str) -> None:
        """End a job, and wait until it has ended."""
        httpx.patch(f"{self.rest}/jobs/{job}?mode=cancel", timeout=60).raise_for_status()
        wait_until(lambda: job in self.jobs("CANCELED"), "the job is cancelled", _UP_WITHIN_S)

    def stop(self, job: str) -> str:
        """Stop a job with a savepoint, as before an upgrade; return where the savepoint is."""
        asked = httpx.post(f"{self.rest}/jobs/{job}/stop", json={"drain": False}, timeout=60)
        path = f"/jobs/{job}/savepoints/{asked.raise_for_status().json()['request-id']}"
        wait_until(
            lambda: self.ask(path).get("status") == {"id": "COMPLETED"}, "it has stopped", _UP_WITHIN_S
        )
        operation = self.ask(path)["operation"]
        assert isinstance(operation, dict)
        assert "location" in operation, operation
        return str(operation["location"])

    def workers(self) -> list[int]:
        """Return the SDK workers' processes, not those that watch over them."""
        found, task_managers = [], {process.pid for process in self.task_managers}
        for stat in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            pid = int(stat.parent.name)
            try:
                words = stat.read_bytes().split(b"\0")
                if b"beam_agents.cli.sdk_worker" in words and parent_of(parent_of(pid)) in task_managers:
                    found.append(pid)
            except OSError:
                continue  # it has ended
        return found

    def start_task_manager(self) -> None:
        """Start a TaskManager, of which the JobManager will know soon."""
        number = next(self._numbers)
        command = [
            *_java(self.folder, "-Xmx1g", "-XX:MaxDirectMemorySize=448m", jars=_flink_jars(self.home)),
            "org.apache.flink.runtime.taskexecutor.TaskManagerRunner",
            *("--configDir", str(self.folder / "conf")),
        ]
        self.task_managers.append(_start(command, self.folder, f"taskmanager-{number}", self.home))

    def restart_job_manager(self) -> None:
        """Start another JobManager in the place of one that was killed; it recovers what ZooKeeper has."""
        self.job_manager = _start_job_manager(self.folder, self.home)
        wait_until(lambda: bool(self.ask("/overview")), "the JobManager is back", _UP_WITHIN_S)

    def log(self) -> str:
        """Return the end of what each process has said."""
        return "\n".join(
            f"== {path.name}\n{path.read_text(errors='replace')[-2_000:]}"
            for path in self.folder.glob("*.log")
        )

    def restarts(self) -> int:
        """Return how often the job that runs, or ran last, went back to a checkpoint."""
        overview = self.ask("/jobs/overview").get("jobs", [])
        assert isinstance(overview, list)
        last = max(overview, key=lambda job: job["start-time"])
        exceptions = self.ask(f"/jobs/{last['jid']}/exceptions?maxExceptions=10000")
        history = exceptions["exceptionHistory"]
        assert isinstance(history, dict)
        return len(history["entries"])

    def registered(self) -> int:
        """Return how many TaskManagers the JobManager knows."""
        found = self.ask("/overview").get("taskmanagers", 0)
        assert isinstance(found, int)
        return found

    def _worker(self) -> pathlib.Path:
        """Write the command that a TaskManager starts."""
        path = self.folder / "worker"
        path.write_text(f'#!/bin/sh\nexec {sdk_of_flink()[0]} -m beam_agents.cli.sdk_worker "$@"\n')
        path.chmod(0o755)
        return path


def sdk_of_flink() -> tuple[str, dict[str, str]]:
    """Return the Python that has the SDK of the job server's version, and the variables it runs with."""
    return str(_home() / "sdk" / "bin" / "python"), {**os.environ, "PYTHONPATH": _path()}


def _path() -> str:
    """Return where Python finds the checkout, and what its caller has it find."""
    ours = [ROOT, ROOT / "telemetry", ROOT / "dashboards"]
    return os.pathsep.join(filter(None, [*map(str, ours), os.environ.get("PYTHONPATH")]))


def _of_pom(name: str) -> str:
    """Return what an element of the job server's pom.xml holds."""
    found = re.search(f"<{re.escape(name)}>(.*?)<", (ROOT / ".ci" / "flink" / "pom.xml").read_text())
    assert found is not None
    return found[1]


def _home() -> pathlib.Path:
    """Return where ``.ci/install-flink`` has put all of it."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    home = cache / "beam-agents" / f"flink-{VERSION}-beam-{_of_pom('beam.version')}"
    parts = ("dist", "job-server/job-server.jar", "sdk/installed")
    if not all((home / part).exists() for part in parts):
        absent("Flink with Beam's job server (.ci/install-flink has them)")
    if shutil.which("java") is None:
        absent("java (Debian's package default-jre-headless)")
    if sys.platform != "linux":
        absent("/proc")
    return home


def _flink_jars(home: pathlib.Path) -> list[pathlib.Path]:
    lib = home / "dist" / "lib"
    return [lib / f"flink-dist-{VERSION}.jar", *(next(lib.glob(f"{name}-*.jar")) for name in _LOGGING)]


def _java(folder: pathlib.Path, *options: str, jars: Sequence[pathlib.Path]) -> list[str]:
    return [
        "java",
        *(f"--add-exports={each}=ALL-UNNAMED" for each in _EXPORTS),
        *(f"--add-opens={each}=ALL-UNNAMED" for each in _of_pom("Add-Opens").split()),
        f"-Dlog4j.configurationFile={folder / 'conf' / 'log4j.properties'}",
        *options,
        *("-cp", os.pathsep.join(map(str, jars))),
    ]


def _start(
    command: Sequence[str], folder: pathlib.Path, name: str, home: pathlib.Path
) -> subprocess.Popen[bytes]:
    variables = {
        "FLINK_CONF_DIR": str(folder / "conf"),
        "FLINK_PLUGINS_DIR": str(home / "dist" / "plugins"),
    }
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env={**os.environ, **variables}, stdout=log, stderr=log)


def _start_job_manager(folder: pathlib.Path, home: pathlib.Path) -> subprocess.Popen[bytes]:
    command = [
        *_java(folder, "-Xmx384m", jars=_flink_jars(home)),
        "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint",
        *("--configDir", str(folder / "conf")),
    ]
    return _start(command, folder, "jobmanager", home)


def _configuration(folder: pathlib.Path, settings: Mapping[str, str | int]) -> str:
    """Return flink-conf.yaml: ours, then a test's own settings."""
    ours: dict[str, str | int] = {
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.bind-host": "127.0.0.1",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "jobmanager.memory.process.size": "1g",
        # Beam's steps are many, and each is a task.
        "taskmanager.numberOfTaskSlots": 2,
        "taskmanager.cpu.cores": 1,
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.framework.off-heap.size": "128m",
        "taskmanager.memory.task.heap.size": "896m",
        "taskmanager.memory.task.off-heap.size": "64m",
        "taskmanager.memory.network.min": "256m",
        "taskmanager.memory.network.max": "256m",
        "taskmanager.memory.managed.size": "64m",
        "taskmanager.memory.jvm-metaspace.size": "256m",
        "taskmanager.memory.jvm-overhead.min": "64m",
        "taskmanager.memory.jvm-overhead.max": "64m",
        "state.backend.type": "hashmap",
        "state.checkpoints.dir": (folder / "checkpoints").as_uri(),
        "state.savepoints.dir": (folder / "savepoints").as_uri(),
        # A machine under load answers late, and that is no failure.
        "pekko.ask.timeout": "60 s",
        "web.timeout": 60_000,
        # A restart is counted by its entry.
        "web.exception-history-size": 10_000,
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 1_000,
        "restart-strategy.fixed-delay.delay": "500 ms",
        "metrics.reporter.prom.factory.class": f"{_PROMETHEUS}.PrometheusReporterFactory",
        "metrics.reporter.prom.filterLabelValueCharacters": "false",
    }
    return "".join(f"{key}: {value}\n" for key, value in {**ours, **settings}.items())


@contextmanager
def running_flink(
    folder: pathlib.Path, *, task_managers: int = 1, settings: Mapping[str, str | int] = MappingProxyType({})
) -> Iterator[Flink]:
    """Run a cluster with a job server while the block runs.

    Args:
        folder: For its files.
        task_managers: How many there are at first.
        settings: Of Flink's configuration, in the place of ours.
    """
    home = _home()
    rest_port, rpc_port, job_port, quorum_port, reporter_port = (free_port() for _ in range(5))
    reporter_ports = range(reporter_port, reporter_port + _REPORTERS)
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "log4j.properties").write_text(_LOG4J)
    (folder / "zookeeper.cfg").write_text(
        f"dataDir={folder / 'zookeeper'}\nclientPort={quorum_port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\ntickTime=2000\n"
    )
    addresses = {
        "rest.port": rest_port,
        "jobmanager.rpc.port": rpc_port,
        # A JobManager that comes back knows its jobs and their checkpoints from here.
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": f"127.0.0.1:{quorum_port}",
        "high-availability.storageDir": (folder / "ha").as_uri(),
        "high-availability.jobmanager.port": rpc_port,
        "metrics.reporter.prom.port": f"{reporter_ports[0]}-{reporter_ports[-1]}",
    }
    (folder / "conf" / "flink-conf.yaml").write_text(_configuration(folder, {**addresses, **settings}))
    with ExitStack() as stack:
        quorum = [
            *_java(folder, "-Xmx64m", jars=_flink_jars(home)),
            "org.apache.flink.runtime.zookeeper.FlinkZooKeeperQuorumPeer",
            *("--zkConfigFile", str(folder / "zookeeper.cfg"), "--peerId", "1"),
        ]
        stack.enter_context(server(quorum, lambda: accepts(quorum_port), folder / "zookeeper.log"))
        flink = Flink(
            folder,
            f"http://127.0.0.1:{rest_port}",
            f"127.0.0.1:{job_port}",
            reporter_ports,
            home,
            _start_job_manager(folder, home),
        )
        stack.callback(lambda: stop(flink.job_manager))
        stack.callback(lambda: [stop(each) for each in flink.task_managers])
        wait_until(lambda: bool(flink.ask("/overview")), "the JobManager is up", _UP_WITHIN_S)
        for _ in range(task_managers):
            flink.start_task_manager()
        wait_until(lambda: flink.registered() == task_managers, "the TaskManagers are known", _UP_WITHIN_S)
        command = [
            *("java", "-Xmx384m", "-jar", flink.job_server_jar),
            *("--job-host=127.0.0.1", f"--job-port={job_port}", "--artifact-port=0", "--expansion-port=0"),
            *(f"--flink-master=127.0.0.1:{rest_port}", f"--artifacts-dir={folder / 'artifacts'}"),
            f"--flink-conf-dir={folder / 'conf'}",
        ]
        stack.enter_context(server(command, lambda: accepts(job_port), folder / "job-server.log"))
        yield flink


def main() -> None:
    """Run ``python -m tests.servers.flink``: a cluster until it is interrupted or terminated."""
    # As SIGINT does: what was started is to be stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        tempfile.TemporaryDirectory(prefix="beam-agents-flink-") as folder,
        running_flink(pathlib.Path(folder) / "cluster") as flink,
        suppress(KeyboardInterrupt),
    ):
        options = " ".join(map(shlex.quote, flink.options()))
        python, variables = sdk_of_flink()
        print(  # noqa: T201 - its purpose
            f"Flink: {flink.rest}\nBeam's options for a job: {options}\n"
            "Submit with the SDK of the job server's version, and have the workers find your own modules, by "
            "PYTHONPATH here and in --environment_config:\n"
            f"PYTHONPATH={shlex.quote(variables['PYTHONPATH'])} {python} -m beam_agents.cli run "
            f"--runner flink … -- {options}",
            flush=True,
        )
        threading.Event().wait()


if __name__ == "__main__":
    main()
