"""Reads keys without waking up ten times a second, as Textual's own thread does, when nobody types."""

import codecs
import contextlib
import os
import select
import threading
from typing import TYPE_CHECKING, Any

from textual._parser import ParseError
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from textual.app import App

_LOOK_SECONDS = 0.1
"""Between two looks after something was typed: whether an Escape was a key, or the begin of one."""
_QUIET_SECONDS = 2.0
"""After this nothing that was typed is undecided any more, whatever ``ESCDELAY`` says."""


class BlockingInputDriver(LinuxDriver):
    """Textual's driver, whose input thread sleeps until there is input, or until it is to end."""

    def __init__(
        self, app: "App[Any]", *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self.exit_event = self._stop = _StopEvent()

    def run_input_thread(self) -> None:
        """Pass on what is typed until ``exit_event`` is set."""
        parser = XTermParser(self._debug)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        poll.register(self._stop.reader, select.POLLIN)
        quiet = 0.0
        while not self._stop.is_set():
            ready = [number for number, _ in poll.poll(None if quiet >= _QUIET_SECONDS else _LOOK_SECONDS * 1000)]
            if self.fileno in ready:
                quiet = 0.0
                data = os.read(self.fileno, 4096)
                if not data:  # its end; whoever looks after the terminal ends the program
                    poll.unregister(self.fileno)
                for event in parser.feed(decode(data)) if data else ():
                    self.process_message(event)
            else:
                quiet += _LOOK_SECONDS
            for event in parser.tick():
                self.process_message(event)
        with contextlib.suppress(EOFError, ParseError):
            for _ in parser.feed(""):
                pass


class _StopEvent(threading.Event):
    """An event that can be waited for together with input."""

    def __init__(self) -> None:
        super().__init__()
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)

    def set(self) -> None:
        """Wake up who waits."""
        super().set()
        os.write(self._writer, b"\0")

    def clear(self) -> None:
        """Begin anew."""
        super().clear()
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 4096)
