"""A headless Chromium, for tests that look at a page as a browser shows it."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")


def command(profile: Path, *words: str) -> Sequence[str]:
    """Return the command line of Chromium with a profile of its own."""
    assert PROGRAM is not None
    return (PROGRAM, *FLAGS, f"--user-data-dir={profile}", *words)


def look(url: str, folder: Path, *words: str) -> str:
    """Open a page; return its document as the browser has it, after what the browser logged."""
    words = ("--enable-logging=stderr", "--log-level=0", "--dump-dom", *words, url)
    done = subprocess.run(command(folder / "profile", *words), capture_output=True, text=True, timeout=120, check=True)
    return f"{done.stderr}\n{done.stdout}"
