"""Runs a program of a suite: what it prints are figures, whatever ends it."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from vramtop.estimator.common.cancellation import current_token
from vramtop.estimator.common.limits import LimitError, decode_json

_END_SECONDS, _POLL_SECONDS = 3.0, 0.05
_MAX_LINE, _MAX_FIGURES = 1 << 20, 5000
"""Characters of a line that a program prints, and lines."""


@dataclass(frozen=True, slots=True)
class Printed:
    """What a program has printed, and how it ended."""

    figures: tuple[dict[str, Any], ...] = ()
    error: str | None = None
    """None: it ended by itself with code 0."""


def run_program(command: Sequence[str], *, environ: Mapping[str, str], seconds: float) -> Printed:
    """Run a program that the user's table names, and end it and all that it has started.

    Args:
        command: the interpreter, the program, and its arguments.
        environ: its environment.
        seconds: time after which it is ended; what it has printed until then counts.

    Raises:
        CancelledError: it was cancelled.
    """
    with _text_file() as output, _text_file() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environ,
            start_new_session=True,
        )
        with contextlib.ExitStack() as stack:
            stack.callback(_end, process)
            with current_token().on_cancel(lambda: _signal(process, signal.SIGTERM)):
                in_time = _has_ended(process, seconds)
        error = None
        if not in_time:
            error = f"it was killed after {seconds:g} s{_last_line(errors)}"
        elif process.returncode:
            error = f"it ended with code {process.returncode}{_last_line(errors)}"
        return Printed(tuple(_figures(output)), error)


def _figures(output: IO[str]) -> Iterator[dict[str, object]]:
    """Yield the objects of JSON that a program has printed; another line becomes one with an error."""
    output.seek(0)
    for number in range(_MAX_FIGURES):
        line = output.readline(_MAX_LINE)
        if not line:
            return
        try:
            yield decode_json(line, dict[str, object])
        except LimitError as error:
            if line.strip():
                yield {"name": f"line {number + 1}", "error": f"not a JSON object ({error}): {line.strip()[:200]}"}


def _text_file() -> IO[str]:
    return tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")


def _last_line(errors: IO[str]) -> str:
    errors.seek(max(0, errors.seek(0, os.SEEK_END) - 4096))
    lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
    return f": {lines[-1][:300]}" if lines else ""


def _has_ended(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait for a program; it stays a zombie, so that its number and its group's remain its own."""
    until = time.monotonic() + seconds
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a program and whatever it has started."""
    _signal(process, signal.SIGTERM)
    _has_ended(process, _END_SECONDS)
    _signal(process, signal.SIGKILL)
    process.wait()
