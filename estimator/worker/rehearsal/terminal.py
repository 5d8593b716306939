"""The size of the terminal that a rehearsed program would have: progress bars ask for it, and it has none."""

from __future__ import annotations

import io
import os
from typing import Any

COLUMNS, LINES = 80, 24


def terminal_sizes() -> tuple[tuple[Any, str, Any], ...]:
    """Return what stands in for the calls that fail without a terminal."""
    popen, size = os.popen, os.get_terminal_size

    def popen_or_size(cmd: str, *args: Any, **kwargs: Any) -> Any:
        if cmd.split() == ["stty", "size"]:
            return io.StringIO(f"{LINES} {COLUMNS}\n")
        return popen(cmd, *args, **kwargs)

    def get_terminal_size(*args: Any) -> os.terminal_size:
        try:
            return size(*args)
        except OSError:
            return os.terminal_size((COLUMNS, LINES))

    return (os, "popen", popen_or_size), (os, "get_terminal_size", get_terminal_size)
