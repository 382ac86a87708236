"""Records what Flink's own reporter tells of our Beam metrics: ``python -m tests.dashboards.flink``.

It needs a JDK, Maven and some 100 MB of Flink's jars, so tests read the page that it wrote.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from beam_agents.demo.outage.servers import free_port
from beam_agents.signals import catalogue

HERE = Path(__file__).parent
COUNTED = re.compile(r"_beam_agents_runtime_activations\{.*\} [1-9]")


def record(folder: Path) -> str:
    """Run the job until its operator has counted, and return the lines about it."""
    names = folder / "names"
    names.write_text(
        "".join(
            f"{form.kind.value} {catalogue.BEAM_NAMESPACE}.{form.name}\n"
            for metric in catalogue.METRICS
            for form in metric.beam
        )
    )
    classpath = folder / "classpath"
    subprocess.run(
        (
            *("mvn", "-B", "-q", f"-DbuildDirectory={folder}", "compile", "dependency:build-classpath"),
            *(f"-Dmdep.outputFile={classpath}", f"-f{HERE / 'pom.xml'}"),
        ),
        check=True,
    )
    port = free_port()
    java = ("java", "-cp", f"{folder / 'classes'}:{classpath.read_text()}", "FlinkPage")
    with subprocess.Popen((*java, str(port), str(names)), stdout=subprocess.DEVNULL) as job:
        try:
            while job.poll() is None:
                page = _page(port)
                if COUNTED.search(page):
                    return "".join(
                        line
                        for line in page.splitlines(keepends=True)
                        if "beam_agents" in line or "numRestarts" in line
                    )
                time.sleep(0.5)
        finally:
            job.terminate()
    raise SystemExit("the job ended before it counted")


def _page(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            return str(response.read().decode())
    except OSError:
        return ""


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        (HERE / "page.txt").write_text(record(Path(folder)))
