"""Events of a recording: runs that start, end, fail and diverge, GPUs that are lost, and gaps."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vramtop.estimator.common.sizes import format_gib

from ..board.board import Board, ProcessRow
from ..board.comparison import Status
from ..board.process_groups import GroupKey, ProcessGroup
from ..host.plain_text import duration_text
from ..snapshot.snapshot import GpuKey, GpuReading, HistoryKey

EventKind = Literal[
    "started", "ended", "out_of_memory", "diverged", "back_in_budget", "gpu_lost", "gpu_back", "gap", "cut"
]
MAX_EVENTS = 500
"""The first are kept; a recording with more has a run that starts and fails again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    time: float
    """Unix seconds; of a gap, its begin."""
    kind: EventKind
    sentence: str
    end: float | None = None
    """Unix seconds at which a gap ends."""
    gpus: tuple[str, ...] = ()
    """Labels of the GPUs that it concerns; empty: all."""
    run: GroupKey | None = None
    """The run that it concerns."""


_BACK: EventKind = "back_in_budget"
_DIVERGING: Mapping[Status, str] = {"over": "OVER its budget", "under": "UNDER its budget", "growing": "GROWING"}


class EventFinder:
    """Finds events by comparing each board with the one before."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.left_out = 0
        """Events beyond ``MAX_EVENTS``."""
        self._gpus: dict[GpuKey, tuple[str, bool]] = {}
        """Label of each GPU, and whether it could be read last."""
        self._statuses: dict[HistoryKey, Status] = {}
        self._ended: set[GroupKey] = set()
        self._running: dict[GroupKey, ProcessGroup] = {}
        """The first group of each run."""
        self._begin: float | None = None
        """Unix seconds of the first board."""

    def add(self, event: Event) -> None:
        """Keep an event, as long as there are not too many."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        else:
            self.left_out += 1

    def observe(self, board: Board, groups: Sequence[ProcessGroup]) -> None:
        """Look at the next board and its groups of processes."""
        self._observe_gpus(board)
        if self._begin is None:
            self._begin = board.snapshot.time
        time = board.snapshot.time
        for group in groups:
            job = group.job
            if job is not None and group.rows:
                self._observe_run(group, job.label, time, self._begin)
        self._observe_absent({group.key for group in groups}, time)

    def _observe_gpus(self, board: Board) -> None:
        time, present = board.snapshot.time, {gpu.reading.key: gpu.reading for gpu in board.gpus}
        for key, gpu in present.items():
            concerned = (gpu.label,)
            readable = gpu.used_bytes is not None and not gpu.is_stale
            known = self._gpus.get(key)
            if not readable and (known is None or known[1]):
                self.add(Event(time=time, kind="gpu_lost", sentence=_why_lost(gpu), gpus=concerned))
            elif readable and known is not None and not known[1]:
                self.add(
                    Event(time=time, kind="gpu_back", sentence=f"GPU {gpu.label} is read again", gpus=(gpu.label,))
                )
            elif readable and known is None and self._begin is not None:
                self.add(Event(time=time, kind="gpu_back", sentence=f"GPU {gpu.label} is there", gpus=concerned))
            self._gpus[key] = (gpu.label, readable)
        why = next((f": {fault.message}" for fault in board.snapshot.faults), "")
        for key, (label, readable) in self._gpus.items():
            if key not in present and readable:
                self.add(Event(time=time, kind="gpu_lost", sentence=f"GPU {label} is not there{why}", gpus=(label,)))
                self._gpus[key] = (label, False)

    def _observe_run(self, group: ProcessGroup, name: str, time: float, begin: float) -> None:
        if group.key not in self._running and group.key not in self._ended:
            starts = [row.process.start_time for row in group.rows if row.process.start_time is not None]
            start = min(starts, default=time)
            if start > begin:  # else it was running before
                self._add_of_run(group, start, "started", f"{name} started")
        self._running.setdefault(group.key, group)
        ended_at = group.run.ended_at if group.run else None
        for row in group.rows:
            self._observe_row(row, group, name, time, run_goes_on=ended_at is None)
        if ended_at is not None and group.key not in self._ended:
            self._ended.add(group.key)
            failed = [row for row in group.rows if row.comparison and row.comparison.status == "out_of_memory"]
            shown = next(iter(failed), next((row for row in group.rows if row.comparison), None))
            how = f": it {shown.comparison.sentence}" if shown and shown.comparison else ""
            self._add_of_run(group, ended_at, "out_of_memory" if failed else "ended", f"{name} ended{how}")

    def _observe_absent(self, present: Collection[GroupKey], time: float) -> None:
        """Find the end of runs without a budget: their processes are not followed, and are on no GPU any more."""
        readable = {key for key, (_, readable) in self._gpus.items() if readable}
        for key, group in list(self._running.items()):
            if key in self._ended or key in present or not {row.gpu.whole_gpu_key for row in group.rows} <= readable:
                continue
            self._ended.add(key)
            job = group.job
            self._add_of_run(group, time, "ended", f"{job.label if job else 'a run'} has left its GPUs")

    def _add_of_run(self, group: ProcessGroup, time: float, kind: EventKind, sentence: str) -> None:
        gpus = tuple(dict.fromkeys(row.gpu.label for row in group.rows))
        self.add(Event(time=time, kind=kind, sentence=sentence, gpus=gpus, run=group.key))

    def _observe_row(self, row: ProcessRow, group: ProcessGroup, name: str, time: float, *, run_goes_on: bool) -> None:
        if row.comparison is None or row.comparison.status == "unknown":
            return
        now, before = row.comparison.status, self._statuses.get(row.key)
        self._statuses[row.key] = now
        if now == before:
            return
        who = name if len(group.ranks) == 1 else f"{name}, pid {row.process.pid} on GPU {row.gpu.label}"
        at, kind = time, _BACK
        if now in _DIVERGING:
            at, kind = row.comparison.left_budget_at or time, "diverged"
            sentence = f"{who} is {_DIVERGING[now]}: {row.comparison.sentence}"
        elif now == "out_of_memory" and run_goes_on:
            at, kind = row.ended_at or time, "out_of_memory"
            sentence = f"{who} {row.comparison.sentence}"
        elif before in _DIVERGING and now == "on_budget":
            sentence = f"{who} is within its budget again: {row.comparison.sentence}"
        else:
            return
        self.add(Event(time=at, kind=kind, sentence=sentence, gpus=(row.gpu.label,), run=group.key))


def gap_event(begin: float, end: float) -> Event:
    """Return the event of a time without readings."""
    return Event(
        time=begin, end=end, kind="gap", sentence=f"no reading for {duration_text(end - begin)}: this time is unknown"
    )


def _why_lost(gpu: GpuReading) -> str:
    why = gpu.reason("used_bytes")
    if gpu.is_stale:
        held = "" if gpu.used_bytes is None else f"; {format_gib(gpu.used_bytes)} GiB were in use at the last reading"
        return f"GPU {gpu.label} does not answer{held}"
    return f"GPU {gpu.label} cannot be read{f': {why}' if why else ''}"
