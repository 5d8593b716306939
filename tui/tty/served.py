"""Tells whether this process is a dashboard in the browser: ``vramtop serve`` starts it, and there is no terminal."""

import os

SERVED_DRIVER = "vramtop.tui.tty.served_driver:ServedDriver"
"""Value of Textual's variable ``TEXTUAL_DRIVER`` in such a process."""


def is_served() -> bool:
    """Return True if a browser shows this dashboard."""
    return os.environ.get("TEXTUAL_DRIVER") == SERVED_DRIVER
