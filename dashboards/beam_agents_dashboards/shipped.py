"""Where the files are that ship with the package: built files, examples, runbooks."""

from __future__ import annotations

from pathlib import Path

__all__ = ["shipped"]

_PACKAGE = Path(__file__).parent


def shipped(name: str) -> Path:
    """Return the folder of what ships under a name.

    Args:
        name: ``"compose"``, ``"grafana"``, ``"prometheus"`` or ``"runbooks"``.

    Raises:
        FileNotFoundError: The package was installed without it.
    """
    checkout = _PACKAGE.parents[1] / "docs" if name == "runbooks" else _PACKAGE.parent
    for folder in (_PACKAGE / "shipped" / name, checkout / name):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"beam_agents_dashboards was installed without its folder {name!r}")
