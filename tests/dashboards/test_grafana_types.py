"""The dashboards' JSON against Grafana's own types, by TypeScript's compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from beam_agents_dashboards.grafana import dashboards
from beam_agents_dashboards.settings import Settings
from tests.servers.process import absent, unavailable

if TYPE_CHECKING:
    import pathlib

SCHEMA = "@grafana/schema@12.4.11"
TYPESCRIPT = "typescript@5.9.3"
# What the SDK writes and the schema does not know; Grafana reads the one and skips the other.
EXCESS_OF_ANNOTATIONS = ("expr", "titleFormat", "textFormat", "tagKeys", "step", "useValueForTime")
EXCESS_OF_VARIABLES = ("auto", "auto_min", "auto_count", "definition")
# An enumeration's values as JSON has them: their text.
PLAIN = """
type Plain<T> = T extends string ? `${T}`
  : T extends readonly (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> }
  : T;
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    if shutil.which("npm") is None:
        absent("npm, which Grafana's types come through,")
    folder = tmp_path_factory.mktemp("types")
    (folder / "package.json").write_text('{"private": true}')
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", SCHEMA, TYPESCRIPT],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode != 0:
        unavailable(f"npm can't install {SCHEMA}: {done.stderr.strip().splitlines()[-1:]}")
    return folder


def compiled(folder: pathlib.Path, sources: dict[str, str]) -> str:
    for name, text in sources.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        ["node_modules/.bin/tsc", "--noEmit", "--strict", "--skipLibCheck", "--moduleResolution", "bundler",
         "--module", "esnext", "--target", "es2022", *sources],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )  # fmt: skip
    return done.stdout


def typed(text: str) -> str:
    board = json.loads(text)
    for annotation in board["annotations"]["list"]:
        for name in EXCESS_OF_ANNOTATIONS:
            annotation.pop(name, None)
        # The schema has no data source's own fields there.
        annotation["target"] = {"refId": annotation["target"]["refId"]}
    for variable in board["templating"]["list"]:
        for name in EXCESS_OF_VARIABLES:
            variable.pop(name, None)
    return (
        'import type { Dashboard } from "@grafana/schema";\n'
        f"{PLAIN}\n"
        f"export const board: Plain<Dashboard> = {json.dumps(board, indent=1)};\n"
    )


def test_dashboards_are_of_grafanas_type(packages: pathlib.Path) -> None:
    sources = {
        f"{name.removesuffix('.json')}.ts": typed(text) for name, text in dashboards(Settings()).items()
    }
    assert compiled(packages, sources) == ""


def test_a_misspelt_field_is_seen(packages: pathlib.Path) -> None:
    text = next(iter(dashboards(Settings()).values()))
    misspelt = typed(text).replace('"schemaVersion"', '"schemaVersoin"')
    assert "schemaVersoin" in compiled(packages, {"misspelt.ts": misspelt})
