"""Standard input, output and error that are closed, full, or no longer read."""

import io
import os
import sys
from typing import Any

from vramtop.estimator.common.errors import ExitCode


def open_closed_streams() -> None:
    """Open closed streams on the null device: otherwise the next opened file would get their number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number, which is this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - it stays open
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is sys.__stderr__:
        raw = io.BufferedWriter(_StandardError(2, "w", closefd=False))
        sys.stderr = io.TextIOWrapper(
            raw, getattr(sys.stderr, "encoding", None), "backslashreplace", line_buffering=True
        )


class _StandardError(io.FileIO):
    """Standard error: what cannot be written to it is lost, and how the command ends stays what it is."""

    def write(self, data: Any) -> int:
        """Write the data, or nothing."""
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def flush_output(code: int) -> int:
    """Write buffered output.

    Returns:
        The exit code, or another one if the output cannot be written.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        if code < 128:
            return report_write_error(error)
        _discard_output()  # ended by a signal: the terminal is gone
    return code


def report_write_error(error: OSError) -> int:
    """Report why the output cannot be written, unless its reader has closed the pipe; return the exit code."""
    _discard_output()
    if isinstance(error, BrokenPipeError):
        return ExitCode.READER_GONE
    sys.stderr.write(f"vramtop: cannot write the output: {error.strerror}\n")
    return ExitCode.CANNOT_TELL


def _discard_output() -> None:
    """Redirect buffered output to the null device: otherwise Python would try again at exit, and print an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
