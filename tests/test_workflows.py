"""What runs on GitHub: pinned actions that may write nothing, and releases that match their tag."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
MOVING = {"pypa/gh-action-pypi-publish@release/v1"}
"""Actions that are not pinned by commit."""


def jobs(workflow: str) -> dict[str, Any]:
    found: dict[str, Any] = WORKFLOWS[workflow]["jobs"]
    return found


def steps() -> Iterator[dict[str, Any]]:
    for workflow in WORKFLOWS:
        for job in jobs(workflow).values():
            yield from job.get("steps", ())


def test_actions_of_others_are_pinned_by_commit() -> None:
    used = {step["uses"] for step in steps() if "uses" in step}
    assert used
    assert {action for action in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)} == MOVING


def test_a_workflow_reads_only_except_for_the_two_jobs_that_publish() -> None:
    assert {workflow["permissions"] for workflow in WORKFLOWS.values()} == {"read-all"}
    assert not [job for job in jobs("ci").values() if "permissions" in job]
    granted = {name: job["permissions"] for name, job in jobs("release").items() if "permissions" in job}
    assert granted == {"publish": {"id-token": "write"}, "describe": {"contents": "write"}}
    assert jobs("release")["publish"]["needs"] == ["build", "check"]
    assert "secrets." not in "".join(path.read_text() for path in (ROOT / ".github/workflows").iterdir())


def checkout(folder: Path, *, heading: str = "## 1.2.0 (2026-11-30)", section: str = "\n- New.\n") -> Path:
    """Return a folder with what the script reads: version 1.2.0, and a changelog."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/release_notes.py", folder / ".ci")
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.2.0"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n{section}\n## 1.1.0 (2026-10-01)\n\n- Old.\n")
    return folder


def notes(folder: Path, tag: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, folder / ".ci/release_notes.py", tag]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_notes_of_a_release_are_its_section_of_the_changelog(tmp_path: Path) -> None:
    done = notes(checkout(tmp_path), "v1.2.0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "- New.\n", "")


@pytest.mark.parametrize(
    ("tag", "changelog", "sentence"),
    [
        ("v1.3.0", {}, "the tag must be v1.2.0"),
        ("1.2.0", {}, "the tag must be v1.2.0"),
        ("v1.2.0", {"heading": "## 1.2.0 (unreleased)"}, r"write '## 1.2.0 (YYYY-MM-DD)'"),
        ("v1.2.0", {"heading": "## 1.1.9 (2026-11-30)"}, r"write '## 1.2.0 (YYYY-MM-DD)'"),
        ("v1.2.0", {"section": ""}, "the section of 1.2.0 in CHANGELOG.md is empty"),
    ],
)
def test_a_tag_that_is_not_ready_is_refused(tmp_path: Path, tag: str, changelog: dict[str, str], sentence: str) -> None:
    done = notes(checkout(tmp_path, **changelog), tag)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
