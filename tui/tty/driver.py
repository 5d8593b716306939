"""The driver of the real terminal: it leaves the terminal as it found it, however the dashboard ends.

Beyond Textual's driver it handles signals, stopped processes, closed terminals, and old terminals that show queries.
"""

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
from typing import TYPE_CHECKING, Any, TextIO

from textual.events import Resize
from textual.geometry import Size

from vramtop.estimator.common.process_limit import ProcessLimitError, process_limit_error, start_thread

from .textual_private import DriverHooks

if TYPE_CHECKING:
    from .terminal_app import TerminalApp

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end the dashboard; the keys of the same meaning arrive as keys."""
_MAX_END_SECONDS = 0.8
"""Time that an orderly end may take: a closed terminal answers nothing, and a driver call may hang."""
_HANG_UP_CHECK_SECONDS = 1.0
"""Time between two checks that the terminal is still there."""
_TERMS_THAT_SHOW_QUERIES = ("linux", "vt", "cons", "sun")
"""Prefixes of TERM for terminals that show the end of an unknown query on the screen."""
_RESTORE_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?1004h\x1b[?2004h\x1b[?7l"
"""Alternate screen, no cursor, focus events, bracketed paste, no line wrap: as Textual sets them at its start."""
_LEAVE_SCREEN = "\x1b[<u\x1b[?1004l\x1b[?2004l\x1b[?1049l\x1b[?25h"
"""What the terminal is told when the dashboard ends, but for the mouse."""
_RESTORE_MOUSE = "\x1b[?1000h\x1b[?1003h\x1b[?1015h\x1b[?1006h"


class TerminalDriver(DriverHooks):
    """Reads keys from standard input and draws on standard output, so that standard error may go to a file.

    Args:
        app: the app.
        debug: as in ``LinuxDriver``.
        mouse: whether the mouse is used.
        size: in cells; None: that of the terminal.
    """

    def __init__(
        self, app: "TerminalApp", *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        output = _SafeOutput(sys.__stdout__ or sys.__stderr__)
        super().__init__(app, output=output, debug=debug, mouse=mouse, size=size)
        self._output = output
        self._terminal_app = app
        self._uses_mouse = mouse
        self._is_reading = False
        """True while the input thread runs."""
        self._shell_settings: Any = None
        """The terminal's settings before the dashboard."""
        self._own_settings: Any = None
        """The terminal's settings while the dashboard has it."""
        self._hang_up_poll = select.poll()
        self._hang_up_poll.register(self.fileno, 0)
        self._event_loop = asyncio.get_running_loop()
        for number in END_SIGNALS:
            self._event_loop.add_signal_handler(number, partial(self.end_by_signal, number))
            signal.signal(number, self._end_soon)  # also while the loop waits for a terminal that takes no output
        # In the loop: in a signal handler, writing could wait forever for a lock that the interrupted code holds.
        textual_stop = signal.getsignal(signal.SIGTSTP)
        if callable(textual_stop):
            self._event_loop.add_signal_handler(signal.SIGTSTP, textual_stop, signal.SIGTSTP, None)
        self._event_loop.add_signal_handler(signal.SIGCONT, self._on_continue)
        self._event_loop.call_later(_HANG_UP_CHECK_SECONDS, self._check_hang_up)

    def end_by_signal(self, number: int) -> None:
        """End because of a signal: in order if possible, in any case within ``_MAX_END_SECONDS``.

        Args:
            number: of the signal; the exit code is 128 plus this, as in shells.
        """
        self._end_soon(number)
        self._terminal_app.exit(return_code=128 + number)

    def _end_soon(self, number: int, _: object = None) -> None:
        """Start a timer that ends the process, whatever hangs."""

        def end_process() -> None:
            self._terminal_app.close_recording()
            _apply_settings(self.fileno, self._shell_settings)
            os._exit(128 + number)

        timer = threading.Timer(_MAX_END_SECONDS, end_process)
        timer.daemon = True
        with contextlib.suppress(ProcessLimitError):
            start_thread(timer)

    def _check_hang_up(self) -> None:
        """End if the terminal was closed without a signal: under ``nohup`` there is no SIGHUP."""
        if self._hang_up_poll.poll(0):
            self.end_by_signal(signal.SIGHUP)
        else:
            self._event_loop.call_later(_HANG_UP_CHECK_SECONDS, self._check_hang_up)

    def start_application_mode(self) -> None:
        """Start as Textual does, and keep the terminal's settings from before and after."""
        self._shell_settings = _read_settings(self.fileno)
        try:
            super().start_application_mode()  # type: ignore[no-untyped-call]
        except RuntimeError as error:  # one of Textual's threads cannot be started, and it stops half-way
            os.write(self.fileno, _LEAVE_SCREEN.encode())
            self.write(_LEAVE_SCREEN)  # again, behind what its thread may still write
            _apply_settings(self.fileno, self._shell_settings)
            raise process_limit_error(error) or error from None
        self._own_settings = _read_settings(self.fileno)

    def stop_application_mode(self) -> None:
        """Stop as Textual does; the screen is cleared for screen and mosh, which have no other one to go back to."""
        self.write("\x1b[0m\x1b[H\x1b[2J")
        super().stop_application_mode()

    def _on_continue(self) -> None:
        """Go on after SIGCONT: start again after Ctrl-Z; after SIGSTOP, which cannot be caught, only repair.

        The shell may have changed settings while it had the terminal.
        """
        if not self._is_reading:  # also if it was started in the background
            self.resume_application_mode()
            return
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self.fileno) != os.getpgrp():  # continued in the background
                os.kill(os.getpid(), signal.SIGSTOP)
                return
        _apply_settings(self.fileno, self._own_settings)
        self.write(_RESTORE_SCREEN + (_RESTORE_MOUSE if self._uses_mouse else ""))
        size = Size(*self.terminal_size())
        for message in (Resize(size, size), self.SignalResume()):
            self.send_message(message)

    def run_input_thread(self) -> None:
        """Read keys; a terminal that can no longer be read ends the dashboard without an error."""
        self._is_reading = True
        try:
            while self._is_reading:
                with contextlib.suppress(UnicodeDecodeError):  # of a key that is not in UTF-8, which is lost
                    super().run_input_thread()
                    self._is_reading = False
        except OSError:
            self._event_loop.call_soon_threadsafe(self.end_by_signal, signal.SIGHUP)
        finally:
            self._is_reading = False

    def terminal_size(self) -> tuple[int, int]:
        """Return columns and lines as the terminal reports them, otherwise ``COLUMNS`` and ``LINES``."""
        for number in (self._output.fileno(), self.fileno):
            with contextlib.suppress(OSError):
                width, height = os.get_terminal_size(number)
                if width and height:
                    return width, height
        width, height = shutil.get_terminal_size()
        return width or 80, height or 24

    @property
    def answers_queries(self) -> bool:
        """True if the terminal does not show queries on the screen."""
        return not os.environ.get("TERM", "").startswith(_TERMS_THAT_SHOW_QUERIES)


class _SafeOutput:
    """Standard output that never raises: an error would end Textual's writer thread, and block the whole program."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write what can be written; the input notices that the terminal is gone."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.write(text)

    def flush(self) -> None:
        """Flush what can be written."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.flush()

    def fileno(self) -> int:
        """Return the stream's file descriptor; -1 if there is no stream."""
        return -1 if self._stream is None else self._stream.fileno()


def _read_settings(fileno: int) -> Any:
    try:
        return termios.tcgetattr(fileno)
    except termios.error:
        return None


def _apply_settings(fileno: int, settings: Any) -> None:
    if settings is not None:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fileno, termios.TCSANOW, settings)
