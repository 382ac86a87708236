"""The formats of files of events."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["RowFormat"]


class RowFormat(StrEnum):
    """The formats of input files."""

    JSONL = "jsonl"
    CSV = "csv"
