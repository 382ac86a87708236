"""A picture of a page, through a headless browser where there is one."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Final

from beam_agents_dashboards.render.page import WIDTH_PX

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BROWSERS", "PictureError", "find_browser", "take_picture"]

BROWSERS: Final = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
    "chrome",
)
_TIMEOUT_S: Final = 120.0


class PictureError(Exception):
    """The browser made no picture."""


def find_browser() -> str | None:
    """Return the path of a browser that can take pictures; None if there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def take_picture(browser: str, page: Path, picture: Path, height_px: int) -> None:
    """Write a page's picture.

    Args:
        browser: The path of a Chromium.
        page: The page's file.
        picture: Where the PNG goes.
        height_px: The page's height.

    Raises:
        PictureError: The browser failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="beam-agents-browser-") as profile:
        command = [
            browser,
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            f"--user-data-dir={profile}",
            # The page is our own and loads nothing; in a container there is no right to make a sandbox.
            "--no-sandbox",
            # One tile: text on the seam of two is cut.
            f"--default-tile-width={WIDTH_PX}",
            f"--default-tile-height={height_px}",
            f"--window-size={WIDTH_PX},{height_px}",
            f"--screenshot={picture.resolve()}",
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(  # noqa: S603 - a browser found on the path, with arguments of our own
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PictureError(f"{browser} made no picture of {page}: {error}") from error
    if done.returncode != 0 or not picture.is_file():
        last = done.stderr.strip().splitlines()[-1:] or ["it says nothing"]
        raise PictureError(f"{browser} made no picture of {page} (exit code {done.returncode}): {last[0]}")
