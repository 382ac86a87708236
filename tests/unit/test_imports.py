"""What an import loads, and on which versions it works."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

import beam_agents

ROOT = pathlib.Path(beam_agents.__file__).parents[1]
FOREIGN = (
    "opentelemetry",
    "prometheus_client",
    "structlog",
    "redis",
    "sqlalchemy",
    "google.cloud.bigtable",
    "google.cloud.firestore",
    "grafana_foundation_sdk",
    "promql_parser",
    "beam_agents_dashboards",
    "beam_agents_telemetry",
)


def loaded_by(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
    )
    return set(done.stdout.split())


def test_import_loads_no_client_and_no_plugin() -> None:
    everything = "from beam_agents import *; import beam_agents.testing"
    ours = loaded_by(everything) - loaded_by("import apache_beam")
    assert "beam_agents.transform" in ours
    foreign = [name for name in ours if any(name == each or name.startswith(each + ".") for each in FOREIGN)]
    assert foreign == []


@pytest.mark.parametrize(
    "statement",
    [
        "import beam_agents",
        "from beam_agents import AgentConfig, MemoryRecord, WorkingMemory",
        "import beam_agents.cli.app",
        "from beam_agents.cli.app import app; app(['store', 'ls', '--help'], standalone_mode=False)",
        "from beam_agents.cli.app import app; app(['dashboards', 'check'], standalone_mode=False)",
    ],
)
def test_what_needs_no_beam_does_not_wait_for_it(statement: str) -> None:
    assert "apache_beam" not in loaded_by(statement)


def test_every_public_name_is_found_where_it_is_said_to_be() -> None:
    assert set(beam_agents.__all__) <= set(dir(beam_agents))
    for name in beam_agents.__all__:
        assert getattr(beam_agents, name).__name__ == name
    with pytest.raises(AttributeError, match=r"module 'beam_agents' has no attribute 'RunAgents'"):
        beam_agents.RunAgents  # type: ignore[attr-defined]  # noqa: B018 - that it is not there is the point


def test_a_config_with_a_store_loads_no_client() -> None:
    uris = (
        "memory://",
        "redis://host",
        "bigtable://project/instance/table",
        "firestore://project/collection",
        "postgresql+asyncpg://host/db",
    )
    configs = "; ".join(f"beam_agents.AgentConfig(longterm_memory={uri!r})" for uri in uris)
    ours = loaded_by(f"import beam_agents; {configs}") - loaded_by("import apache_beam")
    clients = set(FOREIGN) - {"beam_agents_telemetry"}
    foreign = [name for name in ours if any(name == each or name.startswith(each + ".") for each in clients)]
    assert foreign == []


def test_the_generated_module_imports_on_the_lowest_protobuf(tmp_path: pathlib.Path) -> None:
    """Workers may have any protobuf that Beam allows; pyproject.toml names the lowest."""
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert '"protobuf>=3.20.3,<7"' in pyproject
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--target",
        str(tmp_path),
        "protobuf==3.20.3",
    ]
    done = subprocess.run(install, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        reason = f"protobuf 3.20.3 cannot be installed: {done.stderr.strip().splitlines()[-1:]}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    program = f"""
import importlib.util, sys
sys.path.insert(0, {str(tmp_path)!r})
import google.protobuf
assert google.protobuf.__version__ == "3.20.3", google.protobuf.__version__
path = {str(ROOT / "beam_agents/wire/beam_agents_pb2.py")!r}
spec = importlib.util.spec_from_file_location("beam_agents_pb2", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
envelope = module.AgentEnvelope(entity_key=b"k", event_time_ms=5, event=b"e")
assert module.AgentEnvelope.FromString(envelope.SerializeToString(deterministic=True)) == envelope
"""
    subprocess.run([sys.executable, "-I", "-c", program], check=True, timeout=60)
