"""``vramtop``: open the dashboard on this machine's GPUs or on a recording; without GPUs, for planning."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.process_limit import require_threads
from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
from vramtop.monitor.snapshot.demand import CurrentDemand, Demand
from vramtop.monitor.sources.host_load_source import HostLoadSource
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.sources.optional_gpus import OptionalGpuSource
from vramtop.monitor.sources.sampler import EarlySampler, SnapshotSource
from vramtop.monitor.storage.pending_jobs import PendingJobs
from vramtop.monitor.storage.settings.change import save_setting
from vramtop.monitor.storage.settings.in_force import SettingsInForce
from vramtop.monitor.storage.settings.schema import THEME
from vramtop.monitor.storage.user_file import leave_files_unchanged

from ...app.options import AppOptions, Notices
from ...draw.terminal_capabilities import ColourDepth, is_dumb_terminal, prepare_textual
from ...draw.text_output import detect_output, printable
from ...tty.served import is_served
from ..crash_report import crash_sentence
from ..display_options import display_filter
from ..estimators import Estimators, pending_jobs
from ..option_settings import settings_notices

if TYPE_CHECKING:
    from ...app.app import VramtopApp

_PRELOAD_SECONDS = 1.0
"""Time after the first frame at which screens are imported that no key has asked for."""
_THREADS_OF_TEXTUAL = 3
"""It writes to the terminal, reads it, and runs what may block, each on a thread."""


def run(options: argparse.Namespace) -> int:
    """Open the dashboard and stay until it is quit; exit code 0."""
    if options.view_only:
        leave_files_unchanged()
    jobs = pending_jobs(options)
    settings = options.settings
    chosen = display_filter(options)
    demand = CurrentDemand(Demand(host=True))
    source, banner = _source(options, demand)
    if not is_served() and not (sys.stdout.isatty() and sys.stdin.isatty()):
        raise InputError("the dashboard needs a terminal; use vramtop --once for text or --once --json for scripts")
    if is_dumb_terminal():
        return _print_once(options)
    depth = prepare_textual()
    notices = app_notices(settings)
    estimators = Estimators(options.python, corrects=options.history and banner is None, notify=notices.add)
    watchlist = estimators.watchlist
    watchlist.display_filter = chosen
    pending = PendingJobs()
    pending.notify = notices.add
    saved_jobs = pending.load() if banner is None else ()  # saved for this machine, not for a recorded one
    for job in (*saved_jobs, *jobs):
        watchlist.add_pending(job)
    if banner is None:  # set only now: jobs of the command line are not saved
        watchlist.on_pending_added, watchlist.on_pending_removed = pending.add, pending.remove

    attach = estimators.attach(options, acts=not options.view_only) if banner is None else None
    if attach is None:
        AutomaticAttach(watchlist, enabled=False)  # says what the processes of the recording are
    sampler = EarlySampler(source, options.interval, watchlist.update)  # reads while Textual is being imported
    from ...app.app import VramtopApp
    from ...app.view_only_app import ViewOnlyApp

    app_options = app_options_of(
        options,
        notices,
        depth,
        banner=banner,
        pid=options.pid,
        estimate=estimators.quick,
        refine=None if options.view_only else estimators.accurate,
        python=options.python,
        read_only=options.read_only,
        preload_after=_PRELOAD_SECONDS,
        demand=demand,
        attach=attach,
    )
    require_threads(_THREADS_OF_TEXTUAL)  # while the terminal is still as it was
    app = (ViewOnlyApp if options.view_only else VramtopApp)(sampler, watchlist, app_options)
    return run_app(app, options)


def app_notices(settings: SettingsInForce) -> Notices:
    """Return what is to be told when the app is open: of the settings, and what fails on another thread."""
    notices = Notices(settings_notices(settings))
    threading.excepthook = lambda failed: notices.add(crash_sentence(failed.exc_value or failed.exc_type()))
    return notices


def app_options_of(options: argparse.Namespace, notices: Notices, colours: ColourDepth, **more: Any) -> AppOptions:
    """Return the options of an app that follow from the command line and the settings, and others.

    Args:
        options: of the command line.
        notices: what is to be told when the app is open.
        colours: of the terminal.
        more: further fields of ``AppOptions``.
    """
    from ...app.options import AppOptions

    values = options.settings.values
    return AppOptions(
        interval=options.interval,
        ascii_only=detect_output(ascii_only=options.ascii).ascii_only,
        colours=colours,
        notices=notices,
        theme=values[THEME],
        settings=dict(values),
        save_setting=lambda name, value: save_setting(name, value, notices.add),
        **more,
    )


def run_app(app: VramtopApp, options: argparse.Namespace) -> int:
    """Run an app until it is quit; exit code 0."""
    app.run(mouse=options.mouse)
    if app.crash is not None:
        raise app.crash
    return app.return_code or 0


def _print_once(options: argparse.Namespace) -> int:
    """Print one reading, and why there is no dashboard."""
    name = os.environ.get("TERM", "")
    reason = (
        f"vramtop cannot draw on a terminal of type {printable(name)} (TERM)"
        if name
        else "TERM is not set to a terminal"
    )
    if options.demo or options.replay:
        raise InputError(f"{reason}, so vramtop cannot play a recording there")
    print(f"vramtop: {reason}; printing one reading instead of opening the dashboard", file=sys.stderr)
    from . import once

    return once.run(options)


def _source(options: argparse.Namespace, demand: CurrentDemand) -> tuple[SnapshotSource, str | None]:
    """Return the source of snapshots, and a banner if that is not this machine."""
    if options.replay:
        from vramtop.monitor.sources.replay import ReplaySource

        path = Path(options.replay)
        source = ReplaySource(path, rebase=True)
        source.open()  # an error is reported before the screen opens
        return source, f"the recording {path.name}, not this machine now"
    if options.demo:
        from vramtop.monitor.sources.replay import demo_source

        return demo_source(), "the demo recording, not this machine"
    return HostLoadSource(OptionalGpuSource(NvmlSource(demand=demand)), demand), None
