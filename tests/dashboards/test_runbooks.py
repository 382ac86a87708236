"""The runbooks: one for each alert, and what they tell people to type works."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
import typer.core
import typer.main
import yaml

from beam_agents.cli.app import app
from beam_agents.signals.catalogue import EVENTS, SPANS
from beam_agents_dashboards.check import problems
from tests.dashboards.test_rules import NAMES, run

FOLDER = Path(__file__).parents[2] / "docs" / "runbooks"
PAGES = sorted(FOLDER.glob("*.md"))
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "Verification", "What to tell customers"]
COMMANDS = typer.main.get_command(app)
# What every complaint about arguments is; Typer does not export it.
UsageError = typer.BadParameter.__mro__[1]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """Return what is typed: the lines of console blocks, and commands within sentences."""
    lines = [
        line[2:] for block in blocks(page, "console") for line in block.splitlines() if line.startswith("$ ")
    ]
    lines += re.findall(r"(?<!`)`(beam-agents [^`]+)`", page.read_text().replace("\n", " "))
    return [shlex.split(line) for line in lines]


def accept(words: list[str]) -> None:
    """Parse a command's words as the command line does, and run nothing."""
    program, *rest = words
    assert program == "beam-agents"
    context = typer.Context(COMMANDS)
    command = COMMANDS
    while isinstance(command, typer.core.TyperGroup):
        name, *rest = rest
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command = found
        context = typer.Context(command, info_name=name, parent=context)
    command.parse_args(context, rest)


def test_each_alert_has_its_page() -> None:
    assert {page.stem for page in PAGES} == NAMES


def sections_of(page: Path) -> list[str]:
    """Return what links to a page's sections end in."""
    return [
        head.lower().replace(" ", "-") for head in re.findall(r"^##+ (.*)$", page.read_text(), re.MULTILINE)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_what_is_asked_for_at_night(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert blocks(page, "promql")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        name, _, section = target.partition("#")
        assert not section or section in sections_of(page.parent / name), target
        assert (page.parent / name).is_file(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_queries_are_of_the_catalogue(page: Path) -> None:
    for query in blocks(page, "promql"):
        assert problems(query) == [], query


def test_prometheus_itself_takes_the_queries(tmp_path: Path) -> None:
    """As rules, which its own tool reads without a server."""
    queries = [query for page in PAGES for query in blocks(page, "promql")]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    assert f"{len(queries)} rules found" in run("promtool", "check", "rules", "rules.yml", cwd=tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_commands_exist(page: Path) -> None:
    for words in commands(page):
        accept(["100" if word == "SEQ" else word for word in words])


def test_a_command_that_does_not_exist_is_found() -> None:
    with pytest.raises(AssertionError, match="there is no command chek"):
        accept(["beam-agents", "store", "chek", "env:STORE"])
    with pytest.raises(UsageError, match="--prefex"):
        accept(["beam-agents", "store", "ls", "env:STORE", "--prefex", "a"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_log_events_and_spans_are_of_the_catalogue(page: Path) -> None:
    text = page.read_text().replace("\n", " ")
    for sentence in re.findall(r"Log events?:? ((?:`\w+`(?:, | and )?)+)", text):
        assert set(re.findall(r"`(\w+)`", sentence)) <= {event.name for event in EVENTS}
    spans = {span.name.removesuffix(" {target}") for span in SPANS}
    for sentence in re.findall(r"Spans?: ((?:`[\w.]+`(?:, | and )*)+)", text):
        assert set(re.findall(r"`([\w.]+)`", sentence)) <= spans
