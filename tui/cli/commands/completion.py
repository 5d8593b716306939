"""``vramtop completion SHELL``: print completions for a shell, or the manual page."""

import argparse
from collections.abc import Sequence

from ..shell import shell_text


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Print the script or the page; exit code 0."""
    del launch
    print(shell_text(options.shell), end="")
    return 0
