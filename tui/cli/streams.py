"""Standard input, output and error: there from the start, whole at the end, also when closed, full or abandoned."""

import os
import sys


def open_closed_streams() -> None:
    """Give closed streams a place to go: else the next file that is opened would take their number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - it stays open
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def flush_output(code: int) -> int:
    """Write what is still held back.

    Returns:
        The exit code: another one where the answer could not be written.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        if code < 128:
            return report_write_error(error)
        _give_up()  # a signal has said it: the terminal is gone
    return code


def report_write_error(error: OSError) -> int:
    """Say why the answer could not be written, unless its reader has gone, who does not want to know; the exit code."""
    _give_up()
    if isinstance(error, BrokenPipeError):
        return 141
    sys.stderr.write(f"vramtop: the answer cannot be written: {error.strerror}\n")
    return 3


def _give_up() -> None:
    """What is still held back goes nowhere: Python would try once more, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
