"""`make` alone lists every target, with one line for each."""

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_make_alone_lists_every_target() -> None:
    make = shutil.which("make") or "make"
    by_itself = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE")
    }  # as ``make test`` sets
    done = subprocess.run([make], cwd=ROOT, env=by_itself, capture_output=True, text=True, timeout=60, check=True)
    listed = re.findall(r"^make (\S+) +\S.*$", done.stdout, re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert len(listed) == len(set(listed)) == len(done.stdout.splitlines())
    assert {*listed, "help"} == set(phony[1].split())
