"""``vramtop``: open the dashboard, on this machine's GPUs or a recording; without GPUs, for planning."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.host.host_memory import HostRam, available_host_memory
from vramtop.monitor.sources.early_sampler import EarlySampler
from vramtop.monitor.sources.no_gpu import OptionalGpuSource
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.storage.pending_jobs import PendingJobs
from vramtop.monitor.storage.reservations import Reservations
from vramtop.monitor.storage.settings import Settings

from ...draw.capabilities import TEXTUAL_COLOUR_SYSTEMS, colour_depth, is_dumb_terminal
from ...draw.text_output import detect_output, printable
from ..crash_report import crash_sentence

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from vramtop.estimator.budget.budget import Budget
    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.snapshot.snapshot import DeviceIndex, Snapshot
    from vramtop.monitor.sources.source import SnapshotSource


def run(options: argparse.Namespace) -> int:
    """Open the dashboard and stay until it is quit; exit code 0."""
    jobs = _jobs(options)
    source, banner = _source(options)
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        raise InputError("the dashboard needs a terminal; use vramtop --once for text, or --once --json for scripts")
    if is_dumb_terminal():
        return _only_once(options)
    shown = detect_output(ascii_only=options.ascii)
    many = colour_depth()
    os.environ["TEXTUAL_COLOR_SYSTEM"] = TEXTUAL_COLOUR_SYSTEMS[many]  # Textual reads it when it is imported

    def quick(job: Job, *, environ: Mapping[str, str] | None = None, python: str | None = None) -> Budget:
        from vramtop.estimator.estimation import estimate  # not before there is a job: it takes a fifth of the start

        del python
        return estimate(job, gpu=card(job), environ=environ)

    def deep(job: Job, *, environ: Mapping[str, str] | None = None, python: str | None = None) -> Budget:
        from vramtop.estimator.estimation import estimate
        from vramtop.estimator.trace.worker_pool import keep_idle_workers

        keep_idle_workers()
        return estimate(job, method="auto", gpu=card(job), python=options.python or python, environ=environ)

    def card(job: Job) -> Gpu | None:
        return None if job.target.gpu else watchlist.gpu_type

    watchlist = Watchlist(quick, reserved_bytes=_reserved, host_memory=_host)
    kept = PendingJobs()
    settings = Settings()
    complaints: list[str] = []
    kept.notify = settings.notify = complaints.append
    theme = None if os.environ.get("TEXTUAL_THEME") else settings.theme()
    kept_jobs = kept.load() if banner is None else ()  # what waits for this machine does not wait for a recorded one
    for job in (*kept_jobs, *jobs):
        watchlist.add_pending(job)
    if banner is None:  # from here on: a job of the command line waits as long as the dashboard is open
        watchlist.on_pending_added, watchlist.on_pending_removed = kept.add, kept.remove

    threading.excepthook = lambda failed: kept.notify(crash_sentence(failed.exc_value or failed.exc_type()))
    head_start = EarlySampler(source, options.interval, watchlist.update)  # it reads while Textual is being loaded
    from ...app.app import VramtopApp

    app = VramtopApp(
        head_start,
        watchlist,
        interval=options.interval,
        ascii_only=shown.ascii_only,
        colours=many,
        banner=banner,
        pid=options.pid,
        estimate=quick,
        refine=deep,
        complaints=complaints,
        signal_fit=options.signal_fit,
        on_fit=options.on_fit,
        python=options.python,
        read_only=options.read_only,
        theme=theme,
        keep_theme=settings.save_theme,
    )
    kept.notify = settings.notify = app.say
    app.run(mouse=not options.no_mouse)
    if app.crash is not None:
        raise app.crash
    return app.return_code or 0


def _only_once(options: argparse.Namespace) -> int:
    """One reading, and why there is no dashboard."""
    name = os.environ.get("TERM", "")
    why = f"a terminal of type {printable(name)} (TERM) cannot be drawn on" if name else "TERM does not name a terminal"
    if options.demo or options.replay:
        raise InputError(f"{why}, so no recording can be played on it")
    print(f"vramtop: {why}: one reading instead of the dashboard", file=sys.stderr)
    from . import once

    return once.run(options)


def _jobs(options: argparse.Namespace) -> list[Job]:
    if not options.job:
        return []
    from vramtop.estimator.job.job_file import load_job  # not before there is a job

    return [load_job(Path(path)) for path in options.job]


def _reserved(snapshot: Snapshot) -> Mapping[DeviceIndex, int]:
    """Room that is promised on this machine; a recorded one has none."""
    return Reservations().committed(snapshot) if snapshot.source.kind == "nvml" else {}


def _host(snapshot: Snapshot) -> HostRam | None:
    """This machine's RAM; a recorded one's is not known."""
    return available_host_memory() if snapshot.source.kind == "nvml" else None


def _source(options: argparse.Namespace) -> tuple[SnapshotSource, str | None]:
    """Where snapshots come from, and the line that says so when it is not this machine."""
    if options.replay:
        from vramtop.monitor.sources.replay import ReplaySource

        path = Path(options.replay)
        source = ReplaySource(path, rebase=True)
        source.open()  # a file that cannot be played is said before the screen opens
        return source, f"the recording {path.name}, not this machine now"
    if options.demo:
        from vramtop.monitor.sources.demo import demo_source

        return demo_source(), "the demo recording, not this machine"
    return OptionalGpuSource(NvmlSource()), None
