"""The preflight checks of one job as the screen shows them: the request, and how many checks are done."""

import os
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CancelledError, VramtopError
from vramtop.estimator.common.paths import working_folder
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settled import settles
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.capacity import DeviceCapacity, device_capacities
from vramtop.monitor.preflight.check import Check, CheckContext, CheckResult
from vramtop.monitor.preflight.checks import CHECKS
from vramtop.monitor.preflight.job_launch import find_job_interpreter, job_environment
from vramtop.monitor.preflight.machine import Machine, this_machine
from vramtop.monitor.preflight.prepare import prepare, validate_job
from vramtop.monitor.preflight.run_checks import run_checks


class PreflightRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and the machine it is to run on."""

    job: Job
    devices: tuple[DeviceCapacity, ...] = ()
    """Empty GPUs of another machine, of the model that the job's target names; none: it is to run on this machine."""
    board: Board | None = None
    """The latest board: running jobs may still take some of the free memory."""
    budget: Budget | None = None
    """A refined budget, if one is known; otherwise preflight estimates the job itself."""
    launch: Sequence[str] | None = None
    """The launch line that the job was read from; None: there was none."""
    choice: DeviceChoice | None = None
    """The GPUs that the launch line or its script chooses; None: those of the environment."""
    python: str | None = None
    """The interpreter given with ``--python``."""


class PreflightProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of the checks that are done."""

    checks: tuple[Check, ...]
    """All checks, in display order."""
    outcomes: Mapping[str, CheckResult]
    """Outcomes by name of the check."""
    context: CheckContext | None = None
    """The facts that the checks look at; None: the machine is still being read."""
    problem: str | None = None
    """Why nothing can be checked."""
    started_at: float = 0.0
    """Start of the checks, by ``time.monotonic``."""

    @property
    def done(self) -> bool:
        """True if no further outcome will arrive."""
        return self.problem is not None or len(self.outcomes) == len(self.checks)

    @property
    def worst_first(self) -> tuple[CheckResult, ...]:
        """The outcomes: failures first, skipped checks last."""
        return tuple(sorted((self.outcomes[c.name] for c in self.checks if c.name in self.outcomes), key=_urgency))


def read_context(request: PreflightRequest) -> CheckContext:
    """Read the facts that the checks look at; this calls the driver, which may be slow.

    Raises:
        InputError: the job's settings contradict each other, or the given Python does not exist.
    """
    job, launch = request.job, request.launch
    context = prepare(
        job,
        _machine(request),
        find_job_interpreter(request.python, launch, job_environment(os.environ, launch)),
        environ=os.environ,
        folder=working_folder(),
        launch=launch,
        choice=request.choice,
        worker_python=request.python,
    )
    validate_job(context)
    known = request.budget
    if known is None or known.method == "formula" or not settles(known.job, job):
        return context
    return replace(context, deepest_budget=lambda: known)


def run_preflight(
    read: Callable[[], CheckContext], report: Callable[[PreflightProgress], None], checks: Sequence[Check] | None = None
) -> None:
    """Run the checks, and report the progress before the first and after each one.

    Args:
        read: returns the facts that the checks look at.
        report: called on this thread; it raises CancelledError to stop.
        checks: the checks to run; all when left out.
    """
    checks = CHECKS if checks is None else tuple(checks)
    progress = PreflightProgress(checks=checks, outcomes={})

    def update(new: PreflightProgress) -> None:
        nonlocal progress
        progress = new
        report(new)

    def add(outcome: CheckResult) -> None:
        update(replace(progress, outcomes={**progress.outcomes, outcome.name: outcome}))

    update(progress)
    try:
        context = read()
        update(replace(progress, context=context, started_at=time.monotonic()))
        run_checks(context, checks, on_result=add)
    except CancelledError:
        raise
    except VramtopError as error:
        update(replace(progress, problem=error.message))


def _machine(request: PreflightRequest) -> Machine:
    target = request.job.target.gpu
    if request.devices:
        return Machine(devices=request.devices, gpu_type=find_gpu(target) if target else None)
    machine, board = this_machine(), request.board
    if machine.snapshot is None or board is None or not board.snapshot.source.is_live:
        return machine
    return replace(machine, devices=device_capacities(machine.snapshot, board.committed))


def _urgency(outcome: CheckResult) -> int:
    if outcome.status == "warning" and outcome.unknown and outcome.decisive:
        return 1
    return {"failure": 0, "warning": 2, "pass": 3, "skipped": 4}[outcome.status]
