"""The driver of a dashboard that is shown in a browser: it ends with the server, and sends no files to the browser."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

from textual.drivers.web_driver import WebDriver
from textual.events import AppFocus

_END_SECONDS = 2.0
"""Time that an orderly end may take: a driver call may hang."""


class ServedDriver(WebDriver):
    """Talks to ``vramtop serve`` over standard input and output.

    Args:
        *given: as in ``WebDriver``.
        **settings: likewise.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self._write: Any = self._write_or_end
        """``WebDriver._write`` writes once, and raises where the server is gone."""

    def start_application_mode(self) -> None:
        """Start as Textual does, but with the focus: the page gives it to the terminal when it is loaded."""
        super().start_application_mode()
        self._app.call_later(self._app.post_message, AppFocus())

    def run_input_thread(self) -> None:
        """Read keys until the server closes the pipe or is gone; then end."""
        super().run_input_thread()
        if not self.exit_event.is_set():
            _end_soon()
            with contextlib.suppress(RuntimeError):  # it is ending already
                self._app.call_from_thread(self._app.exit)

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        """Take what the server says; when it says to quit, end even if a driver call hangs."""
        if packet_type == "quit":
            _end_soon()
        super().on_meta(packet_type, payload)

    def deliver_binary(self, *_: Any, **__: Any) -> None:
        """Leave a file where it is: a browser that shows the dashboard gets nothing else of this machine."""
        self._app.notify("Files are not sent to the browser.", severity="warning")

    def _write_or_end(self, data: bytes) -> None:
        """Write all of it; where nobody reads any more, end."""
        try:
            while data:
                data = data[os.write(self.fileno, data) :]
        except BrokenPipeError:
            os._exit(0)


def _end_soon() -> None:
    timer = threading.Timer(_END_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()
