"""``MODULE:NAME`` and ``path/to/file.py:NAME``: objects of the user's own code, imported by name.

Workers import the same module by the same name, so that what is loaded here is pickled by reference.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from beam_agents.cli.failures import class_and_place

__all__ = ["TargetError", "load_target"]


class TargetError(ValueError):
    """A target cannot be loaded; the message says why."""


def load_target(target: str) -> object:
    """Import a module and return one of its attributes.

    Args:
        target: ``package.module:NAME``, looked for in the current folder too, or ``path/to/file.py:NAME``.
            NAME may be dotted.

    Raises:
        TargetError: The text is no target, the module is not there or fails to import, or it lacks the name.
    """
    module_part, colon, name = target.rpartition(":")
    if not colon or not module_part or not name:
        raise TargetError(f"{target!r} names no object: write MODULE:NAME or path/to/file.py:NAME")
    if module_part.endswith(".py"):
        module_name = _module_of_file(Path(module_part))
    else:
        module_name = module_part
        _make_importable(Path.cwd())
    value: object = _import(module_name, target)
    for part in name.split("."):
        if not hasattr(value, part):
            raise TargetError(f"{target!r}: module {module_name!r} has no attribute {name!r}")
        value = getattr(value, part)
    return value


def _import(module_name: str, target: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise TargetError(f"{target!r}: there is no module {error.name!r} here or on the path") from error
        raise TargetError(f"{target!r}: the module needs {error.name!r}, which is not installed") from error
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        status = f" with status {error.code}" if isinstance(error.code, int) else ""
        raise TargetError(
            f"{target!r}: the module {module_name!r} exited{status} while it was imported"
        ) from error
    except BaseException as error:
        raise TargetError(
            f"{target!r}: importing {module_name!r} failed with {class_and_place(error)}"
        ) from error


def _module_of_file(path: Path) -> str:
    """Make a file importable under its own name, and return that."""
    if not path.is_file():
        raise TargetError(f"there is no file {str(path)!r}")
    if not path.stem.isidentifier():
        raise TargetError(f"{path.name!r} cannot be imported: its name is no Python identifier")
    resolved = path.resolve()
    _make_importable(resolved.parent)
    loaded = sys.modules.get(path.stem)
    if loaded is not None and _file_of(loaded) != resolved:
        raise TargetError(f"{str(path)!r}: another module named {path.stem!r} is loaded; rename the file")
    module = _import(path.stem, str(path))
    if _file_of(module) != resolved:
        raise TargetError(f"{str(path)!r}: the name {path.stem!r} imports another module; rename the file")
    return path.stem


def _file_of(module: object) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _make_importable(folder: Path) -> None:
    """Put a folder first on the import path, of this process and of worker processes that it starts."""
    entry = str(folder)
    if entry not in sys.path:
        sys.path.insert(0, entry)
        importlib.invalidate_caches()
    inherited = os.environ.get("PYTHONPATH", "")
    if entry not in inherited.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (entry, inherited)))
