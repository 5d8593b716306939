"""What takes longer than a second says so on a terminal: one line, with the seconds that have passed, then gone."""

import shutil
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from ..draw.text_output import printable

_FIRST_SECONDS, _STEP_SECONDS = 1.0, 1.0


class Progress:
    """Call it with what is going on; it is written from the second second on, and wiped out at the end.

    Args:
        stream: where to; nothing is written to what is no terminal.
        quiet: write nothing at all.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._shown = not quiet and self._stream.isatty()
        self._words = ""
        self._width = 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, words: str) -> None:
        """This is going on now."""
        self._words = printable(words)

    def __enter__(self) -> "Progress":
        if self._shown:
            self._thread = threading.Thread(target=self._write, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        """On a thread of its own, so that seconds go on being counted."""
        begun = time.monotonic()
        wait = _FIRST_SECONDS
        while not self._done.wait(wait):
            wait = _STEP_SECONDS
            if self._words:
                self._line(f"{self._words}, {time.monotonic() - begun:.0f} s; Ctrl-C gives up")
        if self._width:
            self._line("")
            self._stream.write("\r")
            self._stream.flush()

    def _line(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write(f"\r{text:<{self._width}}")
        self._stream.flush()
        self._width = len(text)
