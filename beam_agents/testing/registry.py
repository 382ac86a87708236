"""Objects that a pipeline's pickled copies find again: in the process that made them, by an id."""

from __future__ import annotations

import uuid
from typing import TypeVar

__all__ = ["Shared"]

T = TypeVar("T", bound="Shared")

_objects: dict[str, Shared] = {}


class Shared:
    """An object that unpickles to itself within its process.

    So a test sees what a pipeline on an in-process runner did to it. It lives as long as the process.

    Attributes:
        identity: What its pickled form is found by.
    """

    def __init__(self) -> None:
        self.identity = uuid.uuid4().hex
        _objects[self.identity] = self

    def __reduce__(self) -> tuple[object, ...]:
        return _find, (self.identity, type(self).__name__)


def _find(identity: str, kind: str) -> Shared:
    try:
        return _objects[identity]
    except KeyError:
        raise RuntimeError(
            f"a {kind} belongs to the process that made it; run the pipeline in that process "
            "(direct_running_mode=in_memory or multi_threading)"
        ) from None
