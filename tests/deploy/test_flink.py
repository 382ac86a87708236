"""The files for Flink and Dataflow, as far as they can be checked without either."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.checks import DOCS, check_prometheus, options_of, unknown_to_beam

FLINK = DOCS / "flink"
MANIFESTS = ("application.yaml", "session.yaml")
SCHEMA = Path(__file__).with_name("flinkdeployment-1.10.0.schema.json")
OURS = {"agent", "events", "key", "time", "out"}
# Options of Beam's Flink runner (FlinkPipelineOptions), which its job server adds to the Python SDK's.
RUNNERS_OWN = {
    "checkpointing_interval",
    "min_pause_between_checkpoints",
    "externalized_checkpoints_enabled",
    "retain_externalized_checkpoints_on_cancellation",
    "max_bundle_size",
    "max_bundle_time_mills",
}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FLINK / name).read_text()))


def deployment(name: str) -> dict[str, Any]:
    return documents(name)[0]


def closed(schema: Any) -> Any:
    """Return a schema that refuses fields it does not name: Kubernetes drops them."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    named = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        named["additionalProperties"] = False
    return named


def arguments(name: str) -> list[str]:
    """Return what the container that makes or submits the job gets."""
    if name == "application.yaml":
        pod = deployment(name)["spec"]["jobManager"]["podTemplate"]["spec"]
        (container,) = pod["initContainers"]
    else:
        (container,) = documents(name)[1]["spec"]["template"]["spec"]["containers"]
    given: list[str] = container["args"]
    return [word.removeprefix("--") for word in given]


def argument(name: str, option: str) -> str:
    return dict(word.partition("=")[::2] for word in arguments(name))[option]


def ports(template: dict[str, Any]) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for container in template["spec"]["containers"]
        for port in container["ports"]
    }


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_operators_schema_takes_the_manifest(name: str) -> None:
    schema = json.loads(SCHEMA.read_text())
    check = jsonschema.Draft202012Validator(closed(schema))
    assert [error.message for error in check.iter_errors(deployment(name))] == []
    # A pod's template is the same thing in a Job.
    pods = jsonschema.Draft202012Validator({"$ref": "#/$defs/podTemplate", "$defs": closed(schema["$defs"])})
    for job in documents(name)[1:]:
        assert [error.message for error in pods.iter_errors(job["spec"]["template"])] == []


def test_the_check_finds_what_is_wrong() -> None:
    wrong = deployment("application.yaml")
    wrong["spec"]["job"]["upgradeMode"] = "savepoints"
    wrong["spec"]["taskManager"]["podTemplate"]["spec"]["containers"][0]["port"] = []
    check = jsonschema.Draft202012Validator(closed(json.loads(SCHEMA.read_text())))
    assert len(list(check.iter_errors(wrong))) == 2


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_job_asks_for_what_the_cluster_has(name: str) -> None:
    spec = deployment(name)["spec"]
    assert unknown_to_beam(arguments(name)) <= RUNNERS_OWN
    workers = int(argument(name, "sdk_worker_parallelism"))
    # A worker process for each slot, and a port for each process.
    assert workers == int(spec["flinkConfiguration"]["taskmanager.numberOfTaskSlots"])
    found = ports(spec["taskManager"]["podTemplate"])
    assert [found[f"agents-{number}"] for number in range(workers)] == list(range(9464, 9464 + workers))
    assert found["flink-metrics"] == int(spec["flinkConfiguration"]["metrics.reporter.prom.port"])
    dockerfile = (FLINK / "Dockerfile").read_text()
    assert f"--service_port={argument(name, 'environment_config').partition(':')[2]}" in dockerfile
    assert argument(name, "flink_job_server_jar") in dockerfile
    flink = "v" + argument(name, "flink_version").replace(".", "_")
    assert flink == spec["flinkVersion"]
    assert spec["image"].startswith(f"flink:{argument(name, 'flink_version')}.")


def test_both_modes_and_bare_hosts_have_one_configuration() -> None:
    application, session = (deployment(name)["spec"] for name in MANIFESTS)
    assert application["flinkConfiguration"] == session["flinkConfiguration"]
    assert application["taskManager"] == session["taskManager"]
    assert arguments("application.yaml")[4:] == arguments("session.yaml")[4:]
    assert application["job"]["jarURI"] == "local://" + argument("application.yaml", "output_executable_path")
    assert str(application["job"]["parallelism"]) == argument("application.yaml", "parallelism")
    bare = yaml.safe_load((FLINK / "config.yaml").read_text())
    bare_only = {key for key in bare if not key.startswith(("high-availability", "jobmanager"))}
    for key in bare_only - {"metrics.reporter.prom.port"}:
        assert str(bare[key]).lower() == application["flinkConfiguration"][key].lower(), key


def test_the_policy_leaves_out_the_worker_pool() -> None:
    (policy,) = documents("networkpolicy.yaml")
    cluster, monitoring = (
        {
            number
            for port in rule["ports"]
            for number in range(port["port"], port.get("endPort", port["port"]) + 1)
        }
        for rule in policy["spec"]["ingress"]
    )
    spec = deployment("application.yaml")["spec"]
    assert cluster == {
        int(value) for key, value in spec["flinkConfiguration"].items() if value.startswith("61")
    }
    assert monitoring == set(ports(spec["taskManager"]["podTemplate"]).values())
    assert (
        policy["spec"]["podSelector"]["matchLabels"]["app"]
        == deployment("application.yaml")["metadata"]["name"]
    )


def test_prometheus_takes_its_file(tmp_path: Path) -> None:
    check_prometheus(FLINK / "prometheus.yml", tmp_path)


@pytest.mark.parametrize("image", ["flink", "dataflow"])
def test_images_have_the_versions_that_were_tested(image: str) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run((linter, DOCS / image / "Dockerfile"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    text = "".join((DOCS / image / name).read_text() for name in ("Dockerfile", "requirements.txt"))
    beam = set(re.findall(r"(?:apache-beam==|job-server[-:]|_sdk:)(\d+\.\d+\.\d+)", text))
    assert beam == {version("apache-beam")}
    assert re.findall(r"beam-agents\[.+\]==(.+)", text) == [version("beam-agents")]


def test_commands_of_the_pages_have_options_that_exist() -> None:
    given = options_of(DOCS / "flink.md", "--runner=FlinkRunner") + options_of(
        DOCS / "flink.md", "--runner flink"
    )
    assert unknown_to_beam(given) <= RUNNERS_OWN | OURS
    given = options_of(DOCS / "dataflow.md", "DataflowRunner")
    assert given
    assert unknown_to_beam(given) == set()
