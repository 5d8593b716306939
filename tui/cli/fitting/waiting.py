"""``vramtop fit JOB --wait``: wait until the job fits, reserve its memory, and start it or report."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.secrets import mask_line
from vramtop.estimator.common.trust import look_up_program
from vramtop.monitor.board.fit import DeviceCapacity, FitResult, check_fit
from vramtop.monitor.host.processes import start_time_of
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.monitor.storage.reservations import Reservation, Reservations

from ...draw.text_output import printable

RESERVATION_SECONDS = 120.0
"""Time for which memory stays reserved after vramtop has ended, for a caller that starts the job itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRequest:
    """A job that waits for GPUs, and how it waits.

    Args:
        budget: of the job.
        read: reads this machine's GPUs.
        devices: what the GPUs of a snapshot can give, without what is reserved and committed.
        interval: seconds between two readings.
        timeout: seconds after which to give up; None: never.
        program: the command to start; empty: report and end.
        judge: whether a budget fits these GPUs; ``fit`` itself ignores the host's RAM.
    """

    budget: Budget
    read: Callable[[], Snapshot]
    devices: Callable[[Snapshot], Sequence[DeviceCapacity]]
    interval: float
    timeout: float | None
    program: Sequence[str]
    judge: Callable[[Budget, Sequence[DeviceCapacity]], FitResult] = check_fit


def program_to_start(options: argparse.Namespace, launch: Sequence[str] | None) -> tuple[str, ...]:
    """Return the command after ``--exec``, or the launch line if there is none; empty without ``--exec``.

    Raises:
        InputError: there is no command, or no such program.
    """
    if options.exec is None:
        return ()
    program = tuple(options.exec or launch or ())
    if not program:
        raise InputError("--exec: give the command to start, as in --exec python train.py, or a launch line after --")
    if look_up_program(program[0], os.environ.get("PATH")) is None:
        raise InputError(f"--exec {program[0]}: there is no such program")
    return program


def _print_status(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def wait_until_it_fits(
    request: WaitRequest,
    *,
    reservations: Reservations | None = None,
    report: Callable[[str], None] = _print_status,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> FitResult:
    """Read the GPUs until the job fits, reserve its memory, and return the last verdict.

    Raises:
        CannotTellError: the GPUs cannot be read, or the memory cannot be reserved.
    """
    reservations = reservations or Reservations()
    deadline = None if request.timeout is None else clock() + request.timeout
    reported: str | None = None
    while True:
        with reservations.locked():
            snapshot = request.read()
            verdict = request.judge(request.budget, request.devices(snapshot))
            if verdict.verdict == "fits":
                reservations.add(_reservation(request, verdict))
                return verdict
        if deadline is not None and clock() >= deadline:
            return verdict
        if verdict.sentence != reported:
            reported = verdict.sentence
            report(f"waiting: {printable(reported)}")
        sleep(request.interval if deadline is None else max(0.0, min(request.interval, deadline - clock())))


def exec_program(program: Sequence[str], verdict: FitResult) -> None:
    """Replace this process with the command, on the GPUs that are reserved for it.

    Raises:
        InputError: it cannot be started.
    """
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(verdict.cuda_devices)}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(program[0], list(program), environ)  # noqa: S606 - the user's own command
    except OSError as error:
        raise InputError(f"--exec {program[0]}: it cannot be started: {error.strerror}") from None


def _reservation(request: WaitRequest, verdict: FitResult) -> Reservation:
    """Reserve for the command that this process becomes; without one, for the parent that waited for this process."""
    pid = os.getpid() if request.program else os.getppid()
    started = start_time_of(pid)
    if started is None:
        raise CannotTellError(f"Process {pid}, for which the memory would be reserved, has ended.")
    return Reservation(
        pid=pid,
        start_time=started,
        job=mask_line(request.budget.job.label),  # other users see it
        gpus={device.cuda_device: size for device, size in verdict.bytes_by_device},
        until=None if request.program else time.time() + RESERVATION_SECONDS,
    )
