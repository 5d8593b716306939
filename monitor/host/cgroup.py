"""Control group (version 2) of vramtop, whose files state the limits of its container."""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
"""Folder of the group's files, as the group sees itself."""


def read_number(path: Path) -> int | None:
    """Return the number in a file; None if there is none, such as ``max``."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() else None


def inactive_file_bytes(cgroup: Path) -> int:
    """Return the page cache that the group can drop; 0 if unknown."""
    return _field(cgroup / "memory.stat", "inactive_file") or 0


def cpu_limit(cgroup: Path) -> float | None:
    """Return the number of processors that the group may use; None if there is no limit."""
    try:
        words = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        quota, period = map(int, words)  # "max 100000" without a limit
    except (OSError, ValueError):
        return None
    return quota / period if period > 0 else None


def cpu_seconds(cgroup: Path) -> float | None:
    """Return the processor time that the group has used; None if unknown."""
    used = _field(cgroup / "cpu.stat", "usage_usec")
    return None if used is None else used / 1_000_000


def _field(path: Path, name: str) -> int | None:
    """Return a number of a file with a name and a number in each line."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    found = (line.split() for line in lines)
    return next((int(words[1]) for words in found if len(words) == 2 and words[0] == name), None)
