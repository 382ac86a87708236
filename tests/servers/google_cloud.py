"""Where the Google Cloud SDK keeps its emulators."""

from __future__ import annotations

import pathlib
import shutil


def sdk_platform(component: str) -> pathlib.Path:
    """Return a component's folder; it need not be there."""
    gcloud = shutil.which("gcloud")
    roots = [pathlib.Path(gcloud).resolve().parent.parent] if gcloud else []
    roots.append(pathlib.Path("/usr/lib/google-cloud-sdk"))
    folders = [root / "platform" / component for root in roots]
    return next((folder for folder in folders if folder.exists()), folders[-1])
