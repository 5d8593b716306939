"""Command lines that run in this process."""

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from vramtop.tui.cli.main import main


class Said(NamedTuple):
    """The exit code of a command, and what it wrote."""

    code: int
    out: str
    err: str


def vramtop(*words: str, code: int | None = None) -> Said:
    """Run a command line; where a code is given, it has to end with that."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        ended = main(words)
    said = Said(ended, *(each.buffer.getvalue().decode() for each in (out, err)))  # type: ignore[attr-defined]
    assert code in (None, ended), said
    return said
