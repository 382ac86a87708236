"""Runs the Python examples of the README and of the docs; leaves nothing of one test to the next.

Each page is a namespace of its own.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from sybil import Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

from tests.workers import end_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "docs/*.md", "docs/telemetry/*.md", "docs/deploy/*.md"],
).pytest()


def pytest_configure() -> None:
    """Take SIGINT, which a shell has its background jobs ignore: tests that interrupt would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Keep a page's examples in one process: a later one uses what an earlier one made.

    Here, because what distributes the tests looks at their groups before any later hook.
    """
    if isinstance(item, SybilItem):
        item.add_marker(pytest.mark.xdist_group(str(item.path)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a page's examples in their order."""
    examples = [item for item in items if isinstance(item, SybilItem)]
    others = [item for item in items if not isinstance(item, SybilItem)]
    items[:] = [*sorted(examples, key=lambda item: (str(item.path), item.example.line)), *others]


@pytest.fixture(autouse=True)
def _torn_down() -> Iterator[None]:
    """Leave no agent behind that its runner did not tear down, and no store or plugin that it holds."""
    yield
    end_workers()
