"""A driver whose input thread sleeps until there is input; Textual's own wakes up ten times a second."""

import codecs
import contextlib
import os
import select
import threading
from typing import Any

from textual.app import App

from .textual_private import DriverHooks, XTermParser

_POLL_SECONDS = 0.1
"""Time between two polls after input: whether an Escape was a key, or the start of a sequence."""
_ESCAPE_SECONDS = 0.03
"""Time until the first poll after an Escape; it is longer than ``ESCDELAY``, after which Escape is a key."""
_IDLE_SECONDS = 2.0
"""Time without input after which no sequence is incomplete any more, whatever ``ESCDELAY`` is."""


class BlockingInputDriver(DriverHooks):
    """Reads keys on a thread that blocks until there is input, or until it is stopped.

    Args:
        app: the app.
        output: what to draw on.
        debug: as in ``LinuxDriver``.
        mouse: whether the mouse is used.
        size: in cells; None: that of the terminal.
    """

    def __init__(self, app: App[Any], *, output: Any, debug: bool, mouse: bool, size: tuple[int, int] | None) -> None:
        super().__init__(app, output=output, debug=debug, mouse=mouse, size=size)
        self._parser_debug = debug
        self._stop = StopEvent()
        self._can_block = XTermParser is not None and hasattr(self, "exit_event")
        """False for a Textual without the parser, or that stops its input thread in another way."""
        if self._can_block:
            self.exit_event = self._stop

    def run_input_thread(self) -> None:
        """Pass on input until ``exit_event`` is set."""
        if not self._can_block:
            super().run_input_thread()
            return
        parser = XTermParser(self._parser_debug)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        poll = select.poll()
        poll.register(self.fileno, select.POLLIN)
        poll.register(self._stop.reader, select.POLLIN)
        idle_seconds, poll_seconds = 0.0, _POLL_SECONDS
        while not self._stop.is_set():
            timeout_ms = None if idle_seconds >= _IDLE_SECONDS else poll_seconds * 1000
            ready = [number for number, _ in poll.poll(timeout_ms)]
            if self.fileno in ready:
                idle_seconds = 0.0
                data = os.read(self.fileno, 4096)
                if not data:  # end of input; the driver notices that the terminal is gone
                    poll.unregister(self.fileno)
                poll_seconds = _ESCAPE_SECONDS if data.endswith(b"\x1b") else _POLL_SECONDS
                text = decode(data)  # empty if a character is not complete yet; the parser takes that for the end
                for event in parser.feed(text) if text else ():
                    self.process_message(event)
            else:
                idle_seconds, poll_seconds = idle_seconds + poll_seconds, _POLL_SECONDS
            for event in parser.tick():
                self.process_message(event)


class StopEvent(threading.Event):
    """An event that ``poll`` can wait for together with input: ``reader`` becomes readable when it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.reader, self._writer = os.pipe()
        os.set_blocking(self.reader, False)

    def set(self) -> None:
        """Set the event and wake up the thread that polls."""
        super().set()
        os.write(self._writer, b"\0")

    def clear(self) -> None:
        """Reset the event."""
        super().clear()
        with contextlib.suppress(BlockingIOError):
            os.read(self.reader, 4096)
