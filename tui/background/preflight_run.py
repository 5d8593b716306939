"""Preflight of one job, off the UI thread: what was found so far, and what is still waited for."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.cancellation import current_token
from vramtop.estimator.common.errors import CancelledError, VramtopError
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.board import Board
from vramtop.monitor.fit.device_capacity import DeviceCapacity, device_capacities
from vramtop.monitor.preflight.context.check import Check, CheckResult
from vramtop.monitor.preflight.context.check_context import CheckContext
from vramtop.monitor.preflight.facts.job_interpreter import find_job_interpreter
from vramtop.monitor.preflight.facts.launch_environment import job_environment
from vramtop.monitor.preflight.facts.machine import Machine, described_machine, this_machine
from vramtop.monitor.preflight.prepare import prepare, validate_job
from vramtop.monitor.preflight.run_checks import CHECKS, run_checks


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRequest:
    """A job, and where it is to run."""

    job: Job
    rooms: tuple[DeviceCapacity, ...] = ()
    """The empty cards of another machine, of the kind that the job's target names; none: it is to run on this one."""
    board: Board | None = None
    """The newest figures: running jobs may still take some of what is free."""
    budget: Budget | None = None
    """Where a deeper one than the closed form's is known already; else it is worked out."""
    launch: Sequence[str] | None = None
    """The launch line that the job was read from; None: there was none."""
    python: str | None = None
    """What ``--python`` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightProgress:
    """How far preflight has come."""

    checks: tuple[Check, ...]
    """All, in the order in which they are shown."""
    outcomes: Mapping[str, CheckResult]
    """What those that are done say, by name."""
    context: CheckContext | None = None
    """What they look at; None: the machine is still being read."""
    problem: str | None = None
    """Why nothing can be checked."""
    begun_at: float = 0.0
    """When the checks were started, by ``time.monotonic``."""

    @property
    def done(self) -> bool:
        """Nothing more comes."""
        return self.problem is not None or len(self.outcomes) == len(self.checks)

    @property
    def worst_first(self) -> tuple[CheckResult, ...]:
        """What those that are done say: failures first, what was not looked at last."""
        return tuple(sorted((self.outcomes[c.name] for c in self.checks if c.name in self.outcomes), key=_urgency))


def read_context(subject: PreflightRequest) -> CheckContext:
    """What the checks look at: the driver is asked here, which may take its time.

    Raises:
        InputError: the job makes no sense, or the Python that was named is not there.
    """
    job, launch = subject.job, subject.launch
    context = prepare(
        job,
        _machine(subject),
        find_job_interpreter(subject.python, launch, job_environment(os.environ, launch)),
        environ=os.environ,
        folder=Path.cwd(),
        launch=launch,
        worker_python=subject.python,
    )
    validate_job(context)
    known = subject.budget
    if known is None or known.method == "formula" or known.job != job:
        return context
    return replace(context, deepest_budget=lambda: known)


def run_preflight(
    gather: Callable[[], CheckContext], told: Callable[[PreflightProgress], None], checks: Sequence[Check] | None = None
) -> None:
    """Make the checks, and tell after each one how far it has come; what is given up (``Cancel``) tells nothing more.

    Args:
        gather: gives what they look at.
        told: called on this thread.
        checks: all when left out.
    """
    checks = tuple(kind() for kind in CHECKS) if checks is None else tuple(checks)
    now, cancel = PreflightProgress(checks=checks, outcomes={}), current_token()

    def tell(looked: PreflightProgress) -> None:
        nonlocal now
        if cancel.cancelled:
            raise CancelledError("given up")
        now = looked
        told(looked)

    tell(now)
    try:
        context = gather()
        tell(replace(now, context=context, begun_at=time.monotonic()))
        run_checks(
            context, checks, told=lambda outcome: tell(replace(now, outcomes={**now.outcomes, outcome.name: outcome}))
        )
    except CancelledError:
        return
    except VramtopError as error:
        tell(replace(now, problem=error.message))


def _machine(subject: PreflightRequest) -> Machine:
    target = subject.job.target.gpu
    if subject.rooms:
        return described_machine(subject.rooms, find_gpu(target) if target else None)
    machine, board = this_machine(), subject.board
    if machine.snapshot is None or board is None or board.snapshot.source.kind != "nvml":
        return machine
    return replace(machine, devices=device_capacities(machine.snapshot, board.committed))


def _urgency(outcome: CheckResult) -> int:
    if outcome.status == "warning" and outcome.unknown and outcome.decisive:
        return 1
    return {"failure": 0, "warning": 2, "pass": 3, "skipped": 4}[outcome.status]
