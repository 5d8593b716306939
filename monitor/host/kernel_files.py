"""Small files of the kernel, of which any may be missing or hidden: their text, and the limits of our control group."""

from __future__ import annotations

from pathlib import Path


def file_text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


CGROUP = Path("/sys/fs/cgroup")
"""Folder of the group's files, as the group sees itself."""


def read_number(path: Path) -> int | None:
    """Return the number in a file; None if there is none, such as ``max``."""
    text = file_text(path).strip()
    return int(text) if text.isdecimal() else None


def inactive_file_bytes(cgroup: Path) -> int:
    """Return the page cache that the group can drop; 0 if unknown."""
    return _field(cgroup / "memory.stat", "inactive_file") or 0


def cpu_limit(cgroup: Path) -> float | None:
    """Return the number of processors that the group may use; None if there is no limit."""
    try:
        quota, period = map(int, file_text(cgroup / "cpu.max").split())  # "max 100000" without a limit
    except ValueError:
        return None
    return quota / period if period > 0 else None


def cpu_seconds(cgroup: Path) -> float | None:
    """Return the processor time that the group has used; None if unknown."""
    used = _field(cgroup / "cpu.stat", "usage_usec")
    return None if used is None else used / 1_000_000


def _field(path: Path, name: str) -> int | None:
    """Return a number of a file with a name and a number in each line."""
    found = (line.split() for line in file_text(path).splitlines())
    return next((int(words[1]) for words in found if len(words) == 2 and words[0] == name), None)
