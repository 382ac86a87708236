"""Runs the Python examples of the README and of the docs; each page is a namespace of its own."""

from __future__ import annotations

import pytest
from sybil import Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()], patterns=["README.md", "docs/*.md"]
).pytest()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a page's examples in their order and in one process: a later one uses what an earlier one made."""
    examples = [item for item in items if isinstance(item, SybilItem)]
    for item in examples:
        item.add_marker(pytest.mark.xdist_group(str(item.path)))
    others = [item for item in items if not isinstance(item, SybilItem)]
    items[:] = [*sorted(examples, key=lambda item: (str(item.path), item.example.line)), *others]
