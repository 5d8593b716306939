"""The version stands in pyproject.toml; whatever else states it agrees."""

import re
import subprocess
import sys
from pathlib import Path

import msgspec

from vramtop.estimator.common.version import version_number

ROOT = Path(__file__).parents[1]
PROJECT = msgspec.toml.decode((ROOT / "pyproject.toml").read_bytes())["project"]
VERSION = PROJECT["version"]


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


def test_the_command_and_the_manual_page_print_the_version_of_pyproject() -> None:
    assert run("-m", "vramtop.tui.cli", "--version") == f"vramtop {VERSION}\n"
    assert version_number() == VERSION
    assert f'"vramtop {VERSION}"' in (ROOT / "tui/cli/shell/vramtop.1").read_text().splitlines()[0]


def test_the_newest_heading_of_the_changelog_is_the_version() -> None:
    heading = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert re.fullmatch(rf"## {re.escape(VERSION)} \((unreleased|\d{{4}}-\d\d-\d\d)\)", heading)


def test_images_in_the_documentation_have_the_version() -> None:
    tags = {
        tag
        for path in (ROOT / "docs").rglob("*")
        if path.suffix in (".md", ".yaml", ".yml")
        for tag in re.findall(r"\bimage: \S+/vramtop:(\S+)", path.read_text())
    }
    assert tags == {VERSION}
