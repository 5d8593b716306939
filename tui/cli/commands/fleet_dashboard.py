"""Opens the dashboard over many hosts, for any source of fleets."""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError, require_threads
from vramtop.monitor.history.history import Corrections
from vramtop.monitor.storage.settings.change import save_setting
from vramtop.monitor.storage.settings.schema import THEME

from ...draw.text_output import detect_output, is_dumb_terminal, prepare_textual
from ..crash_report import crash_sentence
from ..option_settings import settings_notices

if TYPE_CHECKING:
    import argparse

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.estimation import MethodChoice
    from vramtop.estimator.job.gpu_catalogue import Gpu
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.fleet.fleet import FleetSource

    from ...job.budgets_by_card import BudgetsByCard
    from ...job.load_job import TypedJob

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
    depth = prepare_textual()
    job = options.job[0] if options.job else ""
    if job:
        from ...job.load_job import load_typed

        load_typed(job)  # an error is reported before the screen opens
    from ...app.app import FleetOptions
    from ...app.fleet_app import FleetApp

    require_threads(_THREADS)
    corrections = Corrections() if options.history else None
    app = FleetApp(
        source,
        FleetOptions(
            source=name,
            interval=options.interval,
            ascii_only=detect_output(ascii_only=options.ascii).ascii_only,
            colours=depth,
            budgets_for=partial(_budgets_for, corrections, options.python),
            job=job,
            theme=options.settings.values[THEME],
            signal_alert=options.signal_alert,
            on_alert=options.on_alert,
            settings=dict(options.settings.values),
            origins=dict(options.settings.origins),
            settings_file=options.settings.file,
            startup_notices=settings_notices(options.settings),
            save_setting=lambda name, value: save_setting(name, value, app.show_notice),
        ),
    )
    if corrections is not None:
        corrections.notify = app.show_notice
    threading.excepthook = lambda failed: app.show_notice(crash_sentence(failed.exc_value or failed.exc_type()))
    app.run(mouse=options.mouse)
    if app.crash is not None:
        raise app.crash
    return app.return_code or 0


def _budgets_for(
    corrections: Corrections | None, python: str | None, typed: TypedJob, *, traced: bool
) -> BudgetsByCard:
    """Return the budgets of a job by the interpreter of the command line, corrected by measured runs."""
    from vramtop.estimator.estimation import estimate

    from ...job.budgets_by_card import BudgetsByCard

    def correct(budget: Budget, gpu: Gpu | None) -> Budget:
        card = gpu.name if gpu is not None else budget.job.target.gpu
        return budget if corrections is None else corrections.corrected(budget, card=card, here=False)

    def first(job: Job, gpu: Gpu | None, memory_bytes: int | None) -> Budget:
        method: MethodChoice = "auto" if traced else "formula"
        return correct(estimate(job, method=method, gpu=gpu, memory_bytes=memory_bytes, python=python), gpu)

    return BudgetsByCard(typed.loaded.job, first, correct, gpu_type=typed.gpu_type)
