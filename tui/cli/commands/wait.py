"""``vramtop fit JOB --wait``: wait until the job fits, promise it the room, and start it, or say so."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.monitor.board.fit import Fit, Room, fit
from vramtop.monitor.board.runs import start_time_of
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.monitor.storage.reservations import Reservation, Reservations

from ...draw.text_output import printable

START_SECONDS = 120.0
"""For so long a promise holds for whoever waited and starts the job itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What is waited for, and how.

    Args:
        budget: of the job.
        read: this machine's GPUs, as they are now.
        rooms: what they can give, by a snapshot; what is promised and committed is taken off.
        interval: seconds between two looks.
        timeout: seconds after which to give up; None: never.
        program: the command to become; empty: say so and end.
        judge: whether a budget fits these rooms; ``fit`` itself looks at the GPUs alone.
    """

    budget: Budget
    read: Callable[[], Snapshot]
    rooms: Callable[[Snapshot], Sequence[Room]]
    interval: float
    timeout: float | None
    program: Sequence[str]
    judge: Callable[[Budget, Sequence[Room]], Fit] = fit


def program_to_start(options: argparse.Namespace, launch: Sequence[str] | None) -> tuple[str, ...]:
    """The command after ``--exec``, else the launch line itself; empty without ``--exec``.

    Raises:
        InputError: there is none, or no such program.
    """
    if options.exec is None:
        return ()
    program = tuple(options.exec or launch or ())
    if not program:
        raise InputError("--exec: give the command to start, as in --exec python train.py, or a launch line after --")
    if shutil.which(program[0]) is None:
        raise InputError(f"--exec {program[0]}: there is no such program")
    return program


def wait_until_it_fits(
    asked: Wait,
    *,
    reservations: Reservations | None = None,
    say: Callable[[str], None] = lambda sentence: print(sentence, file=sys.stderr, flush=True),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Fit:
    """Look again and again until the job fits, and promise it the room; gives the last verdict.

    Raises:
        CannotTellError: the GPUs cannot be read, or no promise can be made.
    """
    reservations = reservations or Reservations()
    end = None if asked.timeout is None else clock() + asked.timeout
    told: str | None = None
    while True:
        with reservations.locked():
            snapshot = asked.read()
            found = asked.judge(asked.budget, asked.rooms(snapshot))
            if found.verdict == "fits":
                reservations.add(_promise(asked, found))
                return found
        if end is not None and clock() >= end:
            return found
        if found.sentence != told:
            told = found.sentence
            say(f"waiting: {printable(told)}")
        sleep(asked.interval if end is None else max(0.0, min(asked.interval, end - clock())))


def exec_program(program: Sequence[str], found: Fit) -> None:
    """Run the command in this process's place, on the GPUs that it was promised.

    Raises:
        InputError: it cannot be started.
    """
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(found.devices)}
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(program[0], list(program), environ)  # noqa: S606 - the user's own command
    except OSError as error:
        raise InputError(f"--exec {program[0]}: it cannot be started: {error.strerror}") from None


def _promise(asked: Wait, found: Fit) -> Reservation:
    """For the command that this process becomes; else for whoever waited for this process to end."""
    pid = os.getpid() if asked.program else os.getppid()
    started = start_time_of(pid)
    if started is None:
        raise CannotTellError(f"Process {pid}, for which the room would be kept, has ended.")
    return Reservation(
        pid=pid,
        start_time=started,
        job=asked.budget.job.label,
        gpus={room.device: size for room, size in found.taken},
        until=None if asked.program else time.time() + START_SECONDS,
    )
