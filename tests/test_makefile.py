"""`make` alone lists every target, with one line for each."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import yaml

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


def test_hooks_before_a_commit_download_nothing_and_run_targets_and_tools_of_the_project() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [each["repo"] for each in config["repos"]] == ["local"]
    hooks = [hook for each in config["repos"] for hook in each["hooks"]]
    assert {hook["language"] for hook in hooks} == {"system"}
    makefile = (ROOT / "Makefile").read_text()
    for hook in hooks:
        program, *words = hook["entry"].split()
        if program == "make":
            assert words[0] == "--silent"
            assert all(f"\n{target}: " in makefile for target in words[1:])
        else:
            assert program == ".venv/bin/ruff"
            assert f"$(BIN)/ruff {words[0]} " in makefile
