from __future__ import annotations

from pathlib import Path

from beam_agents.cli.reference import reference


def test_the_page_in_the_docs_is_what_the_code_says() -> None:
    page = Path(__file__).parents[3] / "docs" / "cli.md"
    assert page.read_text(encoding="utf-8") == reference(), (
        "write it anew: python -m beam_agents.cli.reference docs/cli.md"
    )
