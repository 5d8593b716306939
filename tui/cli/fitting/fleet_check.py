"""``vramtop fit`` over a fleet: budgets by type of GPU, the verdict of each host, and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.estimator.common import InputError
from vramtop.estimator.job import find_gpu
from vramtop.monitor.fleet.placing import place_job

from ...draw import detect_output
from ...reports import budget_lines, closing_lines, fleet_fit_lines, fleet_fit_sentence
from ..json_text import json_text
from ..measured_runs import correction
from .cards import beyond_formula, estimator_on_card
from .fit_check import EXIT_CODES, estimate_job

if TYPE_CHECKING:
    import argparse

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job import Gpu, Job
    from vramtop.monitor.fleet import Fleet
    from vramtop.monitor.fleet.placing import Card

    from ...job import LoadedJob

_RAM = "The RAM of the hosts is not checked; vramtop preflight on the host itself does that."


class _Budgets:
    """The budgets of a job by type of GPU: one by the method of the command line, the others by the closed form.

    These are shifted by as much as the first one differs from the closed form on its own type.
    """

    def __init__(self, options: argparse.Namespace, job: Job) -> None:
        self._options, self._job = options, job
        wanted = options.gpu_type or job.target.gpu
        self._wanted = find_gpu(wanted) if wanted else None
        self._first: tuple[Gpu | None, Budget] | None = None
        self.by_card: dict[Card, Budget] = {}

    def on(self, card: Card) -> Budget | None:
        """Return the budget on a type of GPU; None: the user asks for another type."""
        gpu = card.gpu_type
        if self._wanted is not None and (gpu is None or gpu.name != self._wanted.name):
            return None
        self.by_card[card] = found = self._estimate(gpu, card.total_bytes)
        return found

    def _estimate(self, gpu: Gpu | None, memory_bytes: int | None) -> Budget:
        if self._first is None:
            budget = estimate_job(self._options, self._job, gpu, memory_bytes, here=False)
            self._first = gpu, budget
            return budget
        first_gpu, first = self._first
        if gpu == first_gpu:
            return first
        estimate = estimator_on_card(self._job, gpu, beyond_formula(self._job, first, first_gpu))
        if estimate is None:
            return first
        return correction(self._options, self._job, gpu, here=False)(estimate(self._job))


def check_on_fleet(options: argparse.Namespace, loaded: LoadedJob, fleet: Fleet) -> int:
    """Print which hosts can take the job; return the exit code of the verdict.

    Args:
        options: of the command line.
        loaded: the job.
        fleet: the hosts.
    """
    budgets = _Budgets(options, loaded.job)
    fit = place_job(fleet, loaded.job.parallel.world_size, budgets.on)
    first = next((host for host in fit.hosts if host.card in budgets.by_card), None)
    budget = budgets.by_card[first.card] if first and first.card else None
    notes = [*loaded.notes, *([_RAM] if budget and budget.host else [])]
    if options.json:
        found = {
            "budget": budget.to_json() if budget else None,
            **fit.to_json(),
            "sentence": fleet_fit_sentence(fit),
            "notice": fleet.notice,
        }
        print(json_text(found | ({"notes": notes} if notes else {})))
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
        "--cloud": options.cloud,
    }
    source = "--prometheus" if options.prometheus else "--host"
    for name, value in given.items():
        if value:
            raise InputError(f"{name} cannot be combined with {source}, which asks hosts for their free memory now")
