"""Textual's driver for a terminal that is stopped, closed, taken away or old: it is left as it was found."""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO, cast

from textual.events import Resize
from textual.geometry import Size

from .blocking_input import BlockingInputDriver

if TYPE_CHECKING:
    from .terminal_app import TerminalApp

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What ends the dashboard from outside; the keys of the same meaning never arrive as signals."""
_PATIENCE_SECONDS = 0.8
"""How long an ending may take: a terminal that was closed answers nothing, and a driver's call may hang."""
_LOOK_SECONDS = 1.0
"""Between two looks whether the terminal is still there."""
_PRINT_QUERIES = ("linux", "vt", "cons", "sun")
"""How terminals are named that show the tail of a question they do not know on the screen."""


class TerminalDriver(BlockingInputDriver):
    """Reads keys from standard input and draws on standard output, so that standard error may go to a file."""

    def __init__(
        self, app: "TerminalApp", *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._out = _Patient(sys.__stdout__ or sys.__stderr__)
        self._file = cast("Any", self._out)
        self._app: TerminalApp = app
        self._raw: Any = None
        """The terminal's settings while the dashboard has it."""
        self._hung_up = select.poll()
        self._hung_up.register(self.fileno, 0)
        loop = asyncio.get_running_loop()
        for number in ENDING:
            loop.add_signal_handler(number, partial(self.end_by, number))
            signal.signal(
                number, self._end_soon
            )  # at once, also while the loop waits for a terminal that takes nothing
        loop.call_later(_LOOK_SECONDS, self._look)

    def end_by(self, number: int) -> None:
        """End because of a signal: in order where that can be, but end.

        Args:
            number: of the signal; the exit code is 128 and this, as shells have it.
        """
        self._end_soon(number)
        self._app.exit(return_code=128 + number)

    def _end_soon(self, number: int, _: object = None) -> None:
        """See to it that the process is gone soon, whatever hangs."""

        def leave() -> None:
            self._app.close_recording()
            if self.attrs_before is not None:
                with contextlib.suppress(termios.error):
                    termios.tcsetattr(self.fileno, termios.TCSANOW, self.attrs_before)
            os._exit(128 + number)

        timer = threading.Timer(_PATIENCE_SECONDS, leave)
        timer.daemon = True
        timer.start()

    def _look(self) -> None:
        """End when the terminal was closed and nobody said so: under ``nohup`` there is no SIGHUP."""
        if self._hung_up.poll(0):
            self.end_by(signal.SIGHUP)
        else:
            self._loop.call_later(_LOOK_SECONDS, self._look)

    def start_application_mode(self) -> None:
        """As Textual does; what the terminal was set to then is kept for ``_take_again``."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        with contextlib.suppress(termios.error):
            self._raw = termios.tcgetattr(self.fileno)

    def stop_application_mode(self) -> None:
        """As Textual does; under screen and mosh, which have no other screen to go back to, nothing is left on it."""
        self.write("\x1b[0m\x1b[H\x1b[2J")
        super().stop_application_mode()

    def _sigcont_application(self, *_: object) -> None:
        """Go on: after Ctrl-Z from the beginning, after a SIGSTOP, which nobody can prepare for, with what is there."""
        if not self._auto_restart:
            return
        if self._key_thread is not None and self._key_thread.is_alive():
            self._take_again()
        else:  # also when it was started in the background
            self.resume_application_mode()

    def _take_again(self) -> None:
        """The shell had the terminal in the meantime, or not: set what it may have changed, and draw everything."""
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self.fileno) != os.getpgrp():  # continued in the background
                os.kill(os.getpid(), signal.SIGSTOP)
                return
        if self._raw is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.fileno, termios.TCSANOW, self._raw)
        self.write("\x1b[?1049h\x1b[?25l\x1b[?1004h")
        self._enable_bracketed_paste()
        self._disable_line_wrap()
        self._enable_mouse_support()
        size = Size(*self._get_terminal_size())
        for message in (Resize(size, size), self.SignalResume()):
            asyncio.run_coroutine_threadsafe(self._app._post_message(message), loop=self._loop)

    def _run_input_thread(self) -> None:
        """A terminal that can no longer be read is no fault of the program."""
        try:
            self.run_input_thread()
        except OSError:
            self._loop.call_soon_threadsafe(self.end_by, signal.SIGHUP)

    def _get_terminal_size(self) -> tuple[int, int]:
        """What the terminal says; ``COLUMNS`` and ``LINES``, which do not change with it, where it says nothing."""
        for number in (self._out.fileno(), self.fileno):
            with contextlib.suppress(OSError):
                width, height = os.get_terminal_size(number)
                if width and height:
                    return width, height
        width, height = shutil.get_terminal_size()
        return width or 80, height or 24

    def _request_terminal_sync_mode_support(self) -> None:
        if _answers():
            super()._request_terminal_sync_mode_support()

    def _query_in_band_window_resize(self) -> None:
        if _answers():
            super()._query_in_band_window_resize()


class _Patient:
    """Standard output, to which writing never fails: a dead writer would hold up the whole program."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write what can be written; the input says that the terminal is gone."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.write(text)

    def flush(self) -> None:
        """Likewise."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.flush()

    def fileno(self) -> int:
        """Of the stream; -1 where there is none."""
        return -1 if self._stream is None else self._stream.fileno()


def _answers() -> bool:
    return not os.environ.get("TERM", "").startswith(_PRINT_QUERIES)
