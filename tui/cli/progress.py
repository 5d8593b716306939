"""A line on the terminal about work that takes longer than a second; it is removed at the end."""

import shutil
import sys
import threading
import time
from contextlib import suppress
from typing import TextIO

from vramtop.estimator.common.process_limit import ProcessLimitError, start_thread

from ..draw.text_output import printable

_FIRST_SECONDS, _STEP_SECONDS = 1.0, 1.0
"""Time until the line is written first, and between two versions of it."""


class Progress:
    """Call it with what is being done; it is written after the first second.

    Args:
        stream: standard error if None; nothing is written unless it is a terminal.
        quiet: write nothing.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self.is_shown = not quiet and self._stream.isatty()
        """False if nothing is written."""
        self._text = ""
        self._width = 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, text: str) -> None:
        """Set what is being done now."""
        self._text = printable(text)

    def __enter__(self) -> "Progress":
        if self.is_shown:
            thread = threading.Thread(target=self._write, name="progress", daemon=True)
            with suppress(ProcessLimitError):  # then nothing is shown
                start_thread(thread)
                self._thread = thread
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        """Write the line every second; runs on its own thread."""
        started = time.monotonic()
        wait = _FIRST_SECONDS
        while not self._done.wait(wait):
            wait = _STEP_SECONDS
            if self._text:
                self._write_line(f"{self._text}, {time.monotonic() - started:.0f} s; Ctrl-C cancels")
        if self._width:
            self._write_line("")
            self._stream.write("\r")
            self._stream.flush()

    def _write_line(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r{text:<{self._width}}")
        self._stream.flush()
        self._width = len(text)
