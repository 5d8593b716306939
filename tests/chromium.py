"""A headless Chromium, for tests that look at a page as a browser shows it."""

import shutil
import subprocess
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


def look(url: str, folder: Path, *words: str) -> str:
    """Open a page; return its document as the browser has it, after what the browser logged."""
    assert PROGRAM is not None
    words = ("--enable-logging=stderr", "--log-level=0", "--dump-dom", *words, url)
    command = (PROGRAM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return f"{done.stderr}\n{done.stdout}"
