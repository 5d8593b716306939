"""Follows the runs of one command until it has ended, without a screen, so that they become measurements.

``vramtop run`` starts it beside the command: a process at low priority, not a child of the command, that looks
at the GPUs every few seconds and ends with the command. Without a driver it ends at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job_file.changes import parse_assignment

from ...board.board import REASONS_IN_WORDS, Board
from ...board.watchlist import Watchlist
from ...history.history import History
from ...history.run_recorder import RunRecorder
from ...host.process_stat import ancestor_pids, is_running, start_time_of
from .automatic_attach import AutomaticAttach

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.job import Job

    from ...snapshot.snapshot import ProcessKey, Snapshot
    from ...sources.sampler import SnapshotSource
    from .candidates import Candidate


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
    stderr: CommandStderr | None = None,
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
        stderr: of the command, which is told why no measurement is kept, if none is; None: nobody is told.
    """
    watchlist = Watchlist(_estimate, is_running=is_running)
    attach = AutomaticAttach(watchlist)
    attach.settings = settings or {}
    recorder.facts = attach.known.get
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
                recorder.observe(board)
                if stderr is not None and stderr.is_open:
                    why = why_no_measurement(board, attach.candidate, ended=after > 0)
                    if why is not None and not recorder.any_kept():
                        stderr.say(why)
            if stderr is not None and after:
                stderr.close()
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


_MOST_KEYS = 4


def why_no_measurement(board: Board, candidate: Callable[[ProcessKey], Candidate | None], *, ended: bool) -> str | None:
    """Return why no measurement of the processes on a board is kept; None: one is, or it is not decided yet.

    Args:
        board: with the processes of one command alone.
        candidate: returns what is known about a process.
        ended: the command has ended, so that nothing more will be read.
    """
    for run in board.runs:
        if run.budget is not None and not run.missing:
            return None
    for run in board.runs:
        known = [found for key in run.pids if (found := candidate(key)) is not None]
        if not ended and any(each.due is not None for each in known):
            return None  # it is read again
        first = run.pids[0][0] if run.pids else None
        if run.missing:
            more = len(run.missing) - _MOST_KEYS
            keys = ", ".join(run.missing[:_MOST_KEYS]) + (f" and {more} more" if more > 0 else "")
            return _sentence(f"{keys} could not be read from the run", first, ended=ended, one=len(run.missing) == 1)
        if run.problem is not None:
            return _sentence(f"there is no budget ({run.problem.rstrip('.')})", first, ended=ended)
    for row in board.processes:
        found = candidate(row.process.key)
        if found is None or found.reason is None or not (ended or found.due is None):
            continue
        if words := REASONS_IN_WORDS.get(found.reason):
            return _sentence(words, row.process.pid, ended=ended)
    return None


def _sentence(reason: str, pid: int | None, *, ended: bool, one: bool = False) -> str:
    if ended or pid is None:
        what = "it" if one else "them"
        helps = f"name {what} on its command line or with vramtop run --fit --set KEY=VALUE -- COMMAND"
    else:
        helps = f"vramtop attach {pid} shows the settings; add --set KEY=VALUE to keep a measurement"
    return f"no measurement of this run is kept: {reason}; {helps}"


class CommandStderr:
    """Standard error of a command, for one sentence; held open until that is written, or until the command has ended.

    Args:
        descriptor: a duplicate of it; negative: there is none.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, False)

    @property
    def is_open(self) -> bool:
        """True while something may be said."""
        return self._descriptor >= 0

    def say(self, sentence: str) -> None:
        """Write a line, and close."""
        if self.is_open:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, f"vramtop: {sentence}\n".encode())
            self.close()

    def close(self) -> None:
        """Let go of it: a pipe ends when nobody holds it open."""
        if self.is_open:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def main() -> None:
    """Follow the process whose pid is the first argument; then its standard error, and settings of its job."""
    from ...sources.nvml.nvml_source import NvmlSource

    pid, stderr = int(sys.argv[1]), CommandStderr(int(sys.argv[2]))
    settings = dict(parse_assignment(text) for text in sys.argv[3:])
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
            stderr=stderr,
            settings=settings,
        )
    except VramtopError:  # no driver, or none any more
        pass
    finally:
        stderr.close()
        source.close()


if __name__ == "__main__":
    main()
