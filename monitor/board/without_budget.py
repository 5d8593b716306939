"""Processes without a budget: which of them grow, and those that have just ended."""

from collections.abc import Callable, Collection, Mapping

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import MIB, format_gib

from ..snapshot.memory_history import MemoryHistory, usual_interval
from ..snapshot.snapshot import HistoryKey, ProcessKey, Snapshot
from .board import ProcessRow
from .endings import process_end

ENDED_SECONDS = 60.0
"""Time for which a process that has ended is still shown."""
_KINDS = ("desktop", "helper")
"""Kinds of processes that come, grow and go all the time."""
_LEAST_RISE_BYTES = 64 * MIB
"""A process that has risen by less since it was first seen is not looked at: there are hundreds of processes."""
RECENT_SECONDS = 200.0
"""Nor is one whose highest reading is older."""


class _Seen(msgspec.Struct):
    """A process on one GPU."""

    row: ProcessRow
    """Its last row while it was on the GPU."""
    lowest_bytes: int
    highest_bytes: int
    rose_at: float
    """Unix seconds of the last reading above all before."""
    ended_at: float | None = None
    """Unix seconds of the first reading without it."""


class ProcessesWithoutBudget:
    """Remembers processes whose jobs are not known. Not safe for concurrent use.

    Args:
        history: memory of all processes; each snapshot is added before its rows are compared.
        is_running: returns True if a process of this machine still runs.
    """

    def __init__(self, history: MemoryHistory, is_running: Callable[[ProcessKey], bool]) -> None:
        self._history = history
        self._is_running = is_running
        self._seen: dict[HistoryKey, _Seen] = {}
        self._time = 0.0
        """Unix seconds of the latest snapshot."""

    def compare_process(self, row: ProcessRow, time: float) -> ProcessRow:
        """Return the row of a process without a budget, with what its memory says if it grows.

        Args:
            row: the process.
            time: of its snapshot, in Unix seconds.
        """
        held = None if row.gpu.is_stale else row.process.used_bytes
        seen = self._seen.get(row.key)
        if row.kind in _KINDS or (seen is None and held is None):
            return row
        if seen is None:
            seen = self._seen[row.key] = _Seen(row, held or 0, held or 0, time)
        if held is not None:
            seen.lowest_bytes = min(held, seen.lowest_bytes)
            if held > seen.highest_bytes:
                seen.highest_bytes, seen.rose_at = held, time
            seen.row = self._compared(row, seen, time)
        return replace(row, comparison=seen.row.comparison) if held is not None else row

    def ended_rows(self, snapshot: Snapshot, present: Mapping[HistoryKey, ProcessRow]) -> tuple[ProcessRow, ...]:
        """Return the processes that have ended within the last minute, with their last figures.

        Args:
            snapshot: the machine now.
            present: rows of the processes that are on GPUs; those with a budget are forgotten here.
        """
        if not 0 <= snapshot.time - self._time < ENDED_SECONDS:  # a recording was wound on or back
            self._seen = {key: seen for key, seen in self._seen.items() if key in present}
        self._time = snapshot.time
        readable = {gpu.key for gpu in snapshot.gpus if gpu.processes is not None and not gpu.is_stale}
        ended = []
        for key, seen in list(self._seen.items()):
            if key in present:
                seen.ended_at = None
                if present[key].budget is not None:
                    del self._seen[key]
            elif seen.ended_at is not None and snapshot.time - seen.ended_at >= ENDED_SECONDS:
                del self._seen[key]
            elif seen.ended_at is not None or seen.row.gpu.whole_gpu_key in readable:
                if seen.ended_at is None:
                    seen.ended_at = snapshot.time
                    seen.row = self._ended(seen, is_live=snapshot.source.is_live)
                ended.append(seen.row)
        return tuple(ended)

    def forget(self, pids: Collection[ProcessKey]) -> None:
        """Show these processes no longer, now that they have ended."""
        self._seen = {key: seen for key, seen in self._seen.items() if seen.row.process.key not in pids}

    def _compared(self, row: ProcessRow, seen: _Seen, time: float) -> ProcessRow:
        if seen.highest_bytes - seen.lowest_bytes < _LEAST_RISE_BYTES or time - seen.rose_at > RECENT_SECONDS:
            return row
        from .comparison import compare_without_budget

        comparison = compare_without_budget(
            self._history.process(row.key),
            left_bytes=row.gpu.free_bytes,
            previous=seen.row.comparison.status if seen.row.comparison else None,
        )
        return replace(row, comparison=comparison)

    def _ended(self, seen: _Seen, *, is_live: bool) -> ProcessRow:
        from .comparison import Comparison, peak_usage

        row, history = seen.row, self._history.process(seen.row.key)
        last = row.comparison
        trend = last.trend if last else None
        status, how = process_end(
            last.status if last else None,
            "steady",  # nothing says that it was not
            row.process.counters,
            row.gpu,
            ended_at=seen.ended_at or 0.0,
            grew_bytes=round(trend.bytes_per_second * (usual_interval(history) or 0.0)) if trend else 0,
            still_runs=is_live and self._is_running(row.process.key),
        )
        held = f"held {format_gib(row.process.used_bytes)} GiB at the last reading"
        comparison = Comparison(
            status=status,
            observed_bytes=None,
            peak_usage=peak_usage(seen.highest_bytes, history, row.process),
            expected_bytes=None,
            sentence=f"{how}; {held}, at most {format_gib(seen.highest_bytes)} GiB",
        )
        return replace(row, comparison=comparison, ended_at=seen.ended_at)
