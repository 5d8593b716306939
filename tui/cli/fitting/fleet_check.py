"""``vramtop fit`` over a fleet: the verdict of each host, and the report."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import InputError
from vramtop.monitor.fleet.placing import place_job

from ...draw.text_output import detect_output
from ...job.budgets_by_card import BudgetsByCard
from ...reports.budget_text import budget_lines, closing_lines
from ...reports.fleet_fit_text import fleet_fit_lines, fleet_fit_sentence
from ..json_text import json_text
from ..measured_runs import correction, estimate_job
from .fit_check import EXIT_CODES

if TYPE_CHECKING:
    import argparse

    from vramtop.monitor.fleet.fleet import Fleet

    from ...job.load_job import LoadedJob
    from ..json_types import FitOverHostsJson

_RAM = "The RAM of the hosts is not checked; vramtop preflight on the host itself does that."


def check_on_fleet(options: argparse.Namespace, loaded: LoadedJob, fleet: Fleet) -> int:
    """Print which hosts can take the job; return the exit code of the verdict.

    Args:
        options: of the command line.
        loaded: the job.
        fleet: the hosts.
    """
    job = loaded.job
    budgets = BudgetsByCard(
        job,
        lambda job, gpu, memory_bytes: estimate_job(options, replace(loaded, job=job), gpu, memory_bytes, here=False),
        lambda budget, gpu: correction(options, job, gpu, here=False)(budget),
        gpu_type=options.gpu_type,
    )
    fit = place_job(fleet, job.parallel.world_size, budgets.on)
    first = next((host for host in fit.hosts if host.card in budgets.by_card), None)
    budget = budgets.by_card[first.card] if first and first.card else None
    notes = [*loaded.notes, *([_RAM] if budget and budget.host else [])]
    if options.json:
        found: FitOverHostsJson = {
            "schema": 1,
            "budget": budget.to_json() if budget else None,
            **fit.to_json(),
            "sentence": fleet_fit_sentence(fit),
            "notice": fleet.notice,
            "notes": notes,
        }
        print(json_text(found))
        return EXIT_CODES[fit.now]
    output = detect_output(ascii_only=options.ascii)
    lines = list(fleet_fit_lines(fit, output, verbose=options.verbose))
    if budget is not None:
        lines += ["", *budget_lines(budget, output), *closing_lines(budget, notes, output, verbose=options.verbose)]
    print("\n".join(lines))
    return EXIT_CODES[fit.now]


def refuse_what_is_for_this_machine(options: argparse.Namespace) -> None:
    """Refuse options that choose GPUs of this machine, describe one, or ask a scheduler.

    Raises:
        InputError: one is given.
    """
    given = {
        "--gpu": options.gpu,
        "--gpu-memory": options.gpu_memory,
        "--host-memory": options.host_memory,
        "--keep-global-batch": options.keep_global_batch,
        "--wait": options.wait,
        "--timeout": options.timeout,
        "--exec": options.exec,
        "--slurm": options.slurm,
        "--kubernetes": options.kubernetes,
    }
    source = "--prometheus" if options.prometheus else "--host"
    for name, value in given.items():
        if value:
            raise InputError(f"{name} cannot be combined with {source}, which asks hosts for their current free memory")
