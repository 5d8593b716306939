"""Command lines that run in this process."""

import io
import subprocess
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from vramtop.tui.cli.main import COMMANDS, main
from vramtop.tui.cli.parsing.exit_codes import exit_codes_of


class Said(NamedTuple):
    """The exit code of a command, and what it wrote."""

    code: int
    out: str
    err: str


def vramtop(*words: str, code: int | None = None) -> Said:
    """Run a command line; where a code is given, it has to end with that, which is documented for its command."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        ended = main(words)
    said = Said(ended, *(each.buffer.getvalue().decode() for each in (out, err)))  # type: ignore[attr-defined]
    assert code in (None, ended), said
    assert code is None or words[0] not in COMMANDS or code in exit_codes_of(words[0]), said
    return said


def vramtop_in(folder: Path, words: tuple[str, ...], environ: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run a command line in a folder with these further variables; return what a process would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, text in environ.items():
            patch.setenv(name, text)
        said = vramtop(*words)
    return subprocess.CompletedProcess(words, said.code, said.out, said.err)
