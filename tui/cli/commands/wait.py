"""``vramtop wait JOB``: wait until a job fits on GPUs of this machine, and start it or report."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.secrets import mask_line
from vramtop.estimator.common.sizes import UNSEEN_BYTES
from vramtop.estimator.common.trust import look_up_program
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.monitor.board.capacity import DeviceCapacity, device_capacities
from vramtop.monitor.board.fit_result import FitResult
from vramtop.monitor.host.process_stat import start_time_of
from vramtop.monitor.storage.reservations import Reservation, Reservations

from ...draw.text_output import printable
from ..fitting.fit_check import check_on, judge_on, report_fit
from ..fitting.machine_gpus import committed_bytes, load_for_gpus, open_source, read_gpus, select_devices
from ..option_values import described_gpu

_ADVICE = "vramtop fit with --gpu-type or --gpu-memory checks another machine"


def run(options: argparse.Namespace, launch: Sequence[str] | None) -> int:
    """Wait until the job fits, then start the program, or print the verdict with the exit codes of ``vramtop fit``."""
    program = program_to_start(options, launch)
    loaded = load_for_gpus(options, launch)
    job = loaded.job
    if described_gpu(options, job)[1]:
        cards = "--gpu-type, --gpu with a card, --gpu-memory and target.gpu"
        raise InputError(f"vramtop wait waits for GPUs of this machine; leave out {cards}")
    with open_source(_ADVICE) as source:
        snapshot = read_gpus(source, _ADVICE)
        selection, notes = select_devices(options.gpu, snapshot, loaded.devices)
        loaded = replace(loaded, notes=(*loaded.notes, *notes))
        check = check_on(options, loaded, device_capacities(snapshot, {}, selection))
        stillness = Stillness()

        def judge() -> FitResult:
            now = read_gpus(source, _ADVICE)
            devices = device_capacities(now, committed_bytes(now, selection)[0], selection)
            return judge_on(stillness.mark(devices, time.monotonic()), options, here=True)(check.budget)

        verdict = wait_until_it_fits(
            judge,
            check.budget.job.label,
            interval=options.interval,
            timeout=options.timeout,
            starts=bool(program),
        )
    if program and verdict.verdict == "fits":
        exec_program(program, verdict, loaded.devices)
    devices = tuple(each.device for each in verdict.gpus)
    return report_fit(options, replace(check, judge=judge_on(devices, options, here=True), devices=devices))


RESERVATION_SECONDS = 120.0
"""Time for which memory stays reserved after vramtop has ended, for a caller that starts the job itself."""
_STILL_SECONDS = 10.0
"""Time in which what runs on a GPU must not have taken memory before a job is started beside it."""
_IN_USE_BYTES = 1 << 30
"""What a GPU in use has less than its total; displays and drivers take less."""


class Stillness:
    """Watches the free memory of GPUs that are in use: a job that still grows will take what is free now."""

    def __init__(self) -> None:
        self._free: dict[str, list[tuple[float, int]]] = {}
        """By device, (seconds, bytes) of the last ``_STILL_SECONDS``, and of one reading before."""

    def mark(self, devices: Iterable[DeviceCapacity], now: float) -> tuple[DeviceCapacity, ...]:
        """Return the devices; those that are filled, or have not been watched long enough, say so (``growth``)."""
        return tuple(replace(device, growth=self._growth(device, now)) for device in devices)

    def _growth(self, device: DeviceCapacity, now: float) -> str | None:
        free, total = device.free_bytes, device.total_bytes
        if free is None or total is None or total - device.reserved_bytes - free < _IN_USE_BYTES:
            self._free.pop(device.cuda_device, None)
            return None
        readings = self._free.setdefault(device.cuda_device, [])
        readings.append((now, free))
        while len(readings) > 1 and now - readings[1][0] >= _STILL_SECONDS:
            del readings[0]
        start, before = readings[0]
        if now - start < _STILL_SECONDS:
            return f"vramtop checks for {_STILL_SECONDS:.0f} s whether memory use on {device.label} is growing"
        return f"memory use on {device.label} is growing" if before - free >= UNSEEN_BYTES else None


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
        raise InputError(f"--exec {program[0]}: no such program")
    return program


def wait_until_it_fits(
    judge: Callable[[], FitResult],
    label: str,
    *,
    interval: float,
    timeout: float | None,
    starts: bool,
    reservations: Reservations | None = None,
    report: Callable[[str], None] = lambda sentence: print(sentence, file=sys.stderr, flush=True),
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> FitResult:
    """Read the GPUs until the job fits, reserve its memory, and return the last verdict.

    Args:
        judge: reads this machine's GPUs, without what is reserved and committed, and judges the job on them.
        label: of the job; other users see it beside the reservation.
        interval: seconds between two readings.
        timeout: seconds after which to give up; None: never.
        starts: this process starts the job, otherwise the one that waited for it.
        reservations: this machine's.
        report: told why it waits.
        sleep: waits that many seconds.
        clock: monotonic seconds.

    Raises:
        CannotTellError: the GPUs cannot be read, or the memory cannot be reserved.
    """
    reservations = reservations or Reservations()
    deadline = None if timeout is None else clock() + timeout
    reported: str | None = None
    while True:
        with reservations.locked():
            verdict = judge()
            if verdict.verdict == "fits":
                reservations.add(_reservation(label, verdict, starts=starts))
                return verdict
        if deadline is not None and clock() >= deadline:
            return verdict
        if verdict.sentence != reported:
            reported = verdict.sentence
            report(f"waiting: {printable(reported)}")
        sleep(interval if deadline is None else max(0.0, min(interval, deadline - clock())))


def exec_program(program: Sequence[str], verdict: FitResult, choice: DeviceChoice | None = None) -> None:
    """Replace this process with the command, on the GPUs that are reserved for it.

    Args:
        program: the command.
        verdict: with the GPUs.
        choice: what the job chooses itself; a position counts among the GPUs that it sees now.

    Raises:
        InputError: it cannot be started.
    """
    environ = dict(os.environ)
    if choice is None or choice.index is None:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(verdict.cuda_devices)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(program[0], list(program), environ)  # noqa: S606 - the user's own command
    except OSError as error:
        raise InputError(f"--exec {program[0]}: it cannot be started: {error.strerror}") from None


def _reservation(label: str, verdict: FitResult, *, starts: bool) -> Reservation:
    """Reserve for the command that this process becomes; without one, for the parent that waited for this process."""
    pid = os.getpid() if starts else os.getppid()
    started = start_time_of(pid)
    if started is None:
        raise CannotTellError(f"Process {pid}, which the memory would be reserved for, has ended.")
    return Reservation(
        pid=pid,
        start_time=started,
        job=mask_line(label),
        gpus={device.cuda_device: size for device, size in verdict.bytes_by_device},
        until=None if starts else time.time() + RESERVATION_SECONDS,
    )
