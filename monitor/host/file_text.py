"""Text of small files, such as those of the kernel, of which any may be missing or hidden."""

from pathlib import Path


def file_text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
