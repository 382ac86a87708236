"""Beam is imported without its warnings of optional file systems that this program does without."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["importing_beam"]


@contextmanager
def importing_beam() -> Iterator[None]:
    """Keep warnings out of the log while the block imports Beam.

    Where some of Google's clients are installed and others are not, as for a store on Bigtable, Beam warns
    that it does without Cloud Storage and BigQuery. One who then names a file there is told again.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
