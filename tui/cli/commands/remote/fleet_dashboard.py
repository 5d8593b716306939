"""Opens the dashboard over many hosts, for any source of fleets."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from vramtop.estimator.common import InputError, require_threads
from vramtop.monitor.storage import Settings

from ....draw import TEXTUAL_COLOUR_SYSTEMS, colour_depth, detect_output, is_dumb_terminal
from ...crash_report import crash_sentence

if TYPE_CHECKING:
    import argparse

    from vramtop.monitor.fleet import FleetSource

_THREADS = 5
"""Textual's three, the one that reads the source, and the one that serves ssh."""


def require_terminal() -> None:
    """Refuse to open a dashboard where there is no terminal that can be drawn on.

    Raises:
        InputError: there is none.
    """
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise InputError("the dashboard needs a terminal; use --once for text or --once --json for scripts")
    if is_dumb_terminal():
        raise InputError("this terminal cannot be drawn on (TERM); use --once for text")


def show_fleet(options: argparse.Namespace, source: FleetSource, name: str) -> int:
    """Show the fleet until the dashboard is quit; exit code 0.

    Args:
        options: of the command line.
        source: is closed at the end.
        name: what it reads, in a few words.
    """
    depth = colour_depth()
    os.environ["TEXTUAL_COLOR_SYSTEM"] = TEXTUAL_COLOUR_SYSTEMS[depth]  # Textual reads it when it is imported
    os.environ.setdefault("ESCDELAY", "25")  # likewise
    settings = Settings()
    saved = settings.read()
    from ....app import FleetApp, FleetOptions

    require_threads(_THREADS)
    app = FleetApp(
        source,
        FleetOptions(
            source=name,
            interval=options.interval,
            ascii_only=detect_output(ascii_only=options.ascii).ascii_only,
            colours=depth,
            theme=None if os.environ.get("TEXTUAL_THEME") else saved.get("theme"),
            signal_alert=options.signal_alert,
            on_alert=options.on_alert,
            settings=saved if options.quiet_hours is None else {**saved, "quiet_hours": options.quiet_hours},
            save_setting=settings.save,
        ),
    )
    settings.notify = app.show_notice
    threading.excepthook = lambda failed: app.show_notice(crash_sentence(failed.exc_value or failed.exc_type()))
    app.run(mouse=not options.no_mouse)
    if app.crash is not None:
        raise app.crash
    return app.return_code or 0
