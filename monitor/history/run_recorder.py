"""Makes a measurement of every followed run of this user: when it is steady, when its peak rises, and at its end."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Protocol

import msgspec

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.process_limit import ProcessLimitError, start_thread
from vramtop.estimator.common.trust import process_owner

from ..host.process_stat import read_stat
from .history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.learning.measurement import Observed, RunState

    from ..board.board import Board, ProcessRow, RunRow
    from ..snapshot.snapshot import ProcessKey


MIN_SECONDS = 60.0
"""Between two measurements of one run, unless it ends."""
_MIN_RISE = 1.005
"""Rise of the peak that is worth another write."""
THREAD = "keep measured run"


class _Kept(msgspec.Struct, frozen=True):
    """The figures of a run that were handed to the thread that keeps them."""

    time: float
    """Unix seconds of their reading."""
    peak_bytes: int
    state: RunState
    method: str
    """Method of the estimate beside them."""


class _Followed(msgspec.Struct):
    """A run while it is followed."""

    identity: str
    """What identifies it on this machine, the same for every program that follows it."""
    own: bool
    """It belongs to this user."""
    was_steady: bool = False
    grew: bool = False
    kept: _Kept | None = None
    """What was kept last; None: nothing yet."""


class RunFacts(Protocol):
    """What was read of a run's process, as far as a measurement needs it."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the installed frameworks, by name."""

    @property
    def estimate_environ(self) -> Mapping[str, str]:
        """The Hugging Face cache and the allocator's settings."""

    @property
    def command(self) -> str:
        """Command line without secrets."""


class RunRecorder(msgspec.Struct):
    """Keeps measurements of the runs on the boards that it observes; the file is written on a thread of its own.

    Args:
        history: opens the history; may raise CannotTellError.
        facts: what was read of a process; None: it was not read here.
        notify: called with a sentence, once, if the history cannot be written; everything else goes on.
        on_kept: called, on the writing thread, after a measurement was kept.
    """

    history: Callable[[], History] = History
    facts: Callable[[ProcessKey], RunFacts | None] = lambda _: None
    notify: Callable[[str], object] = lambda _: None
    on_kept: Callable[[], object] = lambda: None
    _runs: dict[tuple[ProcessKey, ...], _Followed] = msgspec.field(default_factory=dict)
    _failed: bool = False
    _writing: threading.Lock = msgspec.field(default_factory=threading.Lock)

    def observe(self, board: Board) -> None:
        """Take note of the runs on a board of this machine; costs next to nothing while none changes."""
        if not board.snapshot.source.is_live:
            return
        self._runs = {run.pids: self._runs.get(run.pids) or _follow(run) for run in board.runs}
        for run in board.runs:
            followed = self._runs[run.pids]
            if followed.own and run.budget is not None and not run.missing and not run.job.is_served:
                self._observe_run(run, run.budget, followed, board)

    def _observe_run(self, run: RunRow, budget: Budget, followed: _Followed, board: Board) -> None:
        row = max(run.rows, key=_peak_bytes, default=None)
        if row is None or row.comparison is None or not _peak_bytes(row):
            return
        followed.grew = followed.grew or row.comparison.status == "growing"
        followed.was_steady = followed.was_steady or row.comparison.phase == "steady"
        state = _state(run, row, followed)
        if state is None or run.job.program is not None:  # a program has no settings that other jobs share
            return
        now = board.snapshot.time
        found = _Kept(time=now, peak_bytes=_peak_bytes(row), state=state, method=budget.method)
        if (before := followed.kept) is not None:  # only what is new, and not too soon
            rose = found.peak_bytes > _MIN_RISE * before.peak_bytes
            if (found.state, found.method) == (before.state, before.method) and not rose:
                return
            if run.ended_at is None and now - before.time < MIN_SECONDS:
                return
        facts = next((known for key in run.pids if (known := self.facts(key)) is not None), None)
        driver = board.snapshot.source.driver_version

        def keep() -> None:
            from vramtop.estimator.common.allocator_variables import allocator_settings

            from .new_measurement import new_measurement

            environ = None if facts is None else facts.estimate_environ
            _, allocator = (allocator_settings(environ) if environ else None) or (None, None)
            measurement = new_measurement(
                run.job,
                [budget],
                _observed(row),
                run=followed.identity,
                state=state,
                time=now,
                card=row.gpu.name,
                card_bytes=row.gpu.total_bytes,
                driver=driver,
                versions=dict(facts.versions) if facts else None,
                command=facts.command if facts else row.process.command,
                allocator=allocator,
                environ=environ,
            )
            with self._writing:
                try:
                    warning = self.history().add(measurement)
                except CannotTellError as error:
                    warning, self._failed = None if self._failed else error.message, True
                else:
                    self.on_kept()
            if warning:
                self.notify(warning)

        with contextlib.suppress(ProcessLimitError):  # the next board tries again
            start_thread(threading.Thread(target=keep, name=THREAD))  # not a daemon: the program waits for it at exit
            followed.kept = found


def _follow(run: RunRow) -> _Followed:
    first = min((pid for pid, _ in run.pids), default=None)
    identity = run_identity(first) if first is not None else None
    own = identity is not None and all(process_owner(pid) == os.geteuid() for pid, _ in run.pids)
    return _Followed(identity=identity or "", own=own)


def _state(run: RunRow, row: ProcessRow, followed: _Followed) -> RunState | None:
    """Return what the figures of a run are the peaks of; None: nothing yet."""
    if row.comparison is not None and row.comparison.status == "out_of_memory":
        return "out_of_memory"
    if followed.grew:
        return "growing"
    if run.ended_at is not None:
        return "ended" if followed.was_steady else "short"
    return "steady" if followed.was_steady else None


def _peak_bytes(row: ProcessRow) -> int:
    usage = row.comparison.peak_usage if row.comparison else None
    return usage.size_bytes if usage else 0


def run_identity(pid: int) -> str | None:
    """Return what identifies a process on this machine for all time; None: it has ended, or may not be read."""
    stat = read_stat(pid)
    if stat is None:
        return None
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123 - a file of the kernel
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{boot} {pid} {stat.start_ticks}"


def _observed(row: ProcessRow) -> Observed:
    from vramtop.estimator.learning.measurement import Observed

    counters, usage = row.process.counters, row.comparison.peak_usage if row.comparison else None
    allocated, reserved = (counters.allocated_peak_bytes, counters.reserved_peak_bytes) if counters else (None, None)
    return Observed(
        allocated_bytes=allocated or None,
        reserved_bytes=reserved or None,
        device_bytes=usage.size_bytes if usage else None,
        allocator_source="probe" if allocated or reserved else None,
        device_source=None if usage is None else "readings" if usage.source == "seen" else usage.source,
    )
