"""What Flink's own reporter tells a real Prometheus of a job: the rules make our series of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from beam_agents_dashboards.prometheus_files import FLINK, rule_files
from beam_agents_dashboards.settings import Settings
from tests.runners.killed_job import ENTITIES, EVENTS_OF_A_TIME, REMEMBER
from tests.runners.stores import running_store
from tests.servers import prometheus as servers
from tests.servers.process import wait_until

if TYPE_CHECKING:
    import pathlib

    from tests.servers.flink import Flink

pytestmark = pytest.mark.xdist_group("flink")

NAME = "remembering"
WITHIN_S = 300.0
CONFIGURATION = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: flink
    static_configs: [{{targets: [{targets}]}}]
"""


def test_a_job_is_counted_as_the_rules_say(flink: Flink, tmp_path: pathlib.Path) -> None:
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in flink.reporter_ports)
    (tmp_path / FLINK).write_text(rule_files(Settings())[FLINK])
    # Its metrics go with the job: with checkpoints, and sources that wait for ever, it stays.
    options = (f"--job_name={NAME}", "--checkpointing_interval=1000", "--shutdown_sources_after_idle_ms=-1")
    with (
        running_store("redis", tmp_path) as uri,
        servers.running(tmp_path, CONFIGURATION.format(rules=FLINK, targets=targets)) as prometheus,
    ):
        submitter = flink.start(
            "tests.runners.submit_killed_job",
            *(str(tmp_path), uri, str(EVENTS_OF_A_TIME), "20", REMEMBER, *flink.options(), *options),
            log=tmp_path / "submit.log",
        )

        def made(metric: str, label: str) -> dict[str, float]:
            summed = f'sum by ({label}) (beam_agents_{metric}{{via="flink", pipeline="{NAME}"}})'
            return {labels.get(label, ""): value for labels, value in prometheus.query(summed)}

        def have_expired() -> bool:
            assert submitter.poll() is None, (tmp_path / "submit.log").read_text()[-3_000:]
            return made("ttl_wipes_total", "via") == {"flink": ENTITIES}

        try:
            wait_until(have_expired, "all have expired, and Prometheus knows", WITHIN_S)
            assert made("activations_total", "outcome")["complete"] == EVENTS_OF_A_TIME
            assert made("longterm_upserts_total", "result")["applied"] == 3 * EVENTS_OF_A_TIME + ENTITIES
            (agent,) = made("activations_total", "agent")
            assert "RunAgent" in agent
            restarts = prometheus.query(f'flink_jobmanager_job_numRestarts{{job_name="{NAME}"}}')
            assert [value for _, value in restarts] == [0]
        finally:
            for each in flink.jobs():
                flink.cancel(each)
            submitter.kill()
            submitter.wait()
