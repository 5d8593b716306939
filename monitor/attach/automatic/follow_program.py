"""Follows the runs of one command until it has ended, without a screen, so that they become measurements.

``vramtop run`` starts it beside the command: a process at low priority, not a child of the command, that looks
at the GPUs every few seconds and ends with the command. Without a driver it ends at once.
"""

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import parse_assignment

from ...board.watchlist import Watchlist
from ...history.history import History
from ...history.run_recorder import RunRecorder
from ...host.process_stat import ancestor_pids, is_running, start_time_of
from ...snapshot.snapshot import ProcessKey, Snapshot
from ...sources.sampler import SnapshotSource
from .automatic_attach import AutomaticAttach

SECONDS = 5.0
"""Between two readings: torch keeps what it once reserved, and the probe counts peaks itself."""
_LAST_READINGS = 3
"""After the command's end: its processes may leave the GPU a little later."""
_NICE = 10


def follow(
    command: ProcessKey,
    source: SnapshotSource,
    recorder: RunRecorder,
    *,
    wait: Callable[[float], object] = time.sleep,
    is_running: Callable[[ProcessKey], bool] = is_running,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Follow the processes of a command until it has ended.

    Args:
        command: pid and start time.
        source: of snapshots; opened.
        recorder: measures the runs.
        wait: waits for some seconds.
        is_running: returns True if a process still runs.
        settings: of the job that the user has named, by dotted key.
    """
    watchlist = Watchlist(_estimate, is_running=is_running)
    attach = AutomaticAttach(watchlist, recorder=recorder)
    attach.settings = settings or {}
    attach.start()
    family: dict[ProcessKey, bool] = {}
    after = 0
    try:
        while after < _LAST_READINGS:
            after += not is_running(command)
            snapshot = source.read()
            if snapshot is not None:
                board = watchlist.update(_only(snapshot, lambda pid: command[0] in (pid, *ancestor_pids(pid)), family))
                attach.observe(board)
            wait(SECONDS if not after else 1.0)
    finally:
        attach.close()


def _only(snapshot: Snapshot, belongs: Callable[[int], bool], family: dict[ProcessKey, bool]) -> Snapshot:
    """Return the snapshot with the processes of the command alone; a process that has ended stays what it was."""
    for _, process in snapshot.processes():
        if process.key not in family:
            family[process.key] = belongs(process.pid)
    gpus = (
        gpu
        if gpu.processes is None
        else replace(gpu, processes=tuple(each for each in gpu.processes if family[each.key]))
        for gpu in snapshot.gpus
    )
    return replace(snapshot, gpus=tuple(gpus))


def _estimate(job: Job) -> Budget:
    from vramtop.estimator.estimation import estimate  # only if the worker has not estimated it

    return estimate(job)


def wait_until_ended(pid: int) -> Callable[[float], object]:
    """Return a function that waits for some seconds, the first time at most until a process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):  # an older kernel, or it has ended
        return time.sleep
    alive = True

    def wait(seconds: float) -> None:
        nonlocal alive
        if alive and select.select([descriptor], [], [], seconds)[0]:
            alive = False
            os.close(descriptor)
        elif not alive:
            time.sleep(seconds)

    return wait


def main() -> None:
    """Follow the process whose pid is the first argument; the others are settings of its job."""
    from ...sources.nvml.nvml_source import NvmlSource

    pid = int(sys.argv[1])
    settings = dict(parse_assignment(text) for text in sys.argv[2:])
    start_time = start_time_of(pid)
    if start_time is None:
        return
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    source = NvmlSource()
    try:
        source.open()
        follow(
            (pid, start_time),
            source,
            RunRecorder(history=History),
            wait=wait_until_ended(pid),
            settings=settings,
        )
    except VramtopError:  # no driver, or none any more
        pass
    finally:
        source.close()


if __name__ == "__main__":
    main()
