"""Conditions of the rules on one board: which hold, and which cannot be told.

A figure that is missing neither raises nor ends an alert. The ranks of a run are one condition, told of the worst
rank.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.sizes import format_gib

from ..board.board import Board, ProcessRow, stale_after_seconds
from ..host.plain_text import displayed_line, duration_text
from ..snapshot.faults import NO_DRIVER, NOT_LISTED
from ..snapshot.gpu_list import gpu_list
from .rules import (
    FULL_WITHIN_SECONDS,
    GPU_LOST,
    GROWING,
    MIN_UNATTRIBUTED_BYTES,
    NO_READINGS,
    OVER_BUDGET,
    UNATTRIBUTED,
    Rule,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ..snapshot.snapshot import GpuReading, ProcessKey


Key = tuple["Hashable", ...]
"""What an alert is about: the name of its rule, and a run or a GPU."""
MAX_SENTENCE = 400
"""Length of a driver's sentence in an alert."""
_MAX_NAME = 120
"""Length of a name in an alert: of a user or a job."""


def find_conditions(feed: Feed) -> Conditions:
    """Return the conditions at this moment; of what is not displayed (``--user``, ``--gpu``) there are none."""
    problem = feed.problem
    if problem is not None:
        sentence = f"there is no recent reading of the GPUs: {displayed_line(problem, MAX_SENTENCE)}"
        stale = Condition(rule=NO_READINGS, key=(NO_READINGS.name,), sentence=sentence)
        return Conditions(present=(stale,), all_unknown=True)
    if feed.board is None:
        return Conditions(all_unknown=True)
    found = _Found(feed.board)
    found.look_at_processes()
    found.look_at_gpus()
    return Conditions(
        present=tuple(found.present), unknown=frozenset(found.unknown), unknown_gpus=frozenset(found.unknown_gpus)
    )


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """The readings at one moment."""

    board: Board | None
    """The latest board; None: there was none yet."""
    age_seconds: float
    """Age of that board; without one, the time since the sampler was started."""
    interval: float
    """Seconds between two readings."""
    failure: str | None = None
    """Why the source gives no readings now, in one sentence."""

    @property
    def problem(self) -> str | None:
        """Why the board is not that of this moment; None: it is."""
        if self.failure is not None:
            return self.failure
        if self.age_seconds > stale_after_seconds(self.interval):
            return f"the last reading is {duration_text(self.age_seconds)} old"
        faults = self.board.snapshot.faults if self.board else ()
        return next((fault.message for fault in faults if fault.code == NO_DRIVER), None)


_EARLY_SECONDS = 10.0


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong now."""

    rule: Rule
    key: Key
    sentence: str
    gpus: tuple[str, ...] = ()
    """Labels of the GPUs or MIG devices, the worst first."""
    full_seconds: float | None = None
    """Time until the GPU is full."""
    has_budget: bool = False
    """The processes have a budget, so that it is known that they do not only load."""

    @property
    def fires_after(self) -> float:
        """Seconds for which it must hold: those of its rule, but few where the GPU would be full by then."""
        is_late = self.has_budget and self.full_seconds is not None and self.full_seconds < self.rule.fires_after
        return _EARLY_SECONDS if is_late else self.rule.fires_after


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What is true of one board."""

    present: tuple[Condition, ...] = ()
    unknown: frozenset[Key] = frozenset()
    """Conditions that cannot be told now."""
    unknown_gpus: frozenset[str] = frozenset()
    """Labels of the GPUs and MIG devices whose processes cannot be read now."""
    all_unknown: bool = False
    """Nothing can be told now, but that there are no readings."""

    def is_unknown(self, condition: Condition) -> bool:
        """Return True if it cannot be told whether an earlier condition still holds."""
        if condition.rule is NO_READINGS:
            return False
        if self.all_unknown or condition.key in self.unknown:
            return True
        return condition.rule in (OVER_BUDGET, GROWING) and not self.unknown_gpus.isdisjoint(condition.gpus)


class _Found(msgspec.Struct):
    """What was found on a board so far."""

    board: Board
    present: list[Condition] = msgspec.field(default_factory=list)
    unknown: set[Key] = msgspec.field(default_factory=set)
    unknown_gpus: set[str] = msgspec.field(default_factory=set)

    def look_at_processes(self) -> None:
        """Find runs that are over their budget, or that grow and fill a GPU."""
        board = self.board
        run_of: dict[ProcessKey, ProcessKey] = {key: run.pids[0] for run in board.runs for key in run.pids}
        over: dict[ProcessKey, list[ProcessRow]] = defaultdict(list)
        growing: dict[ProcessKey, list[ProcessRow]] = defaultdict(list)
        for gpu in board.gpus:
            if _is_unreadable(gpu.reading):
                self.unknown_gpus |= {gpu.reading.label, *(device.reading.label for device in gpu.devices)}
                continue
            for row in gpu.rows:
                if row.comparison is None or not board.displays(row):
                    continue
                run = run_of.get(row.process.key, row.process.key)
                status = row.comparison.status
                if status == "over":
                    over[run].append(row)
                full = row.full_seconds if status == "growing" else None
                if full is not None and full < FULL_WITHIN_SECONDS:
                    growing[run].append(row)
                if status == "unknown" or (status == "growing" and full is None):
                    self.unknown.add((GROWING.name, run))
                if status == "unknown" or (status == "growing" and _is_above(row)):
                    self.unknown.add((OVER_BUDGET.name, run))
        self.present += (_over(run, rows) for run, rows in over.items())
        self.present += (_growing(run, rows) for run, rows in growing.items())

    def look_at_gpus(self) -> None:
        """Find GPUs that are lost, and memory that belongs to no visible process."""
        board = self.board
        for fault in board.snapshot.faults:
            if fault.code == NOT_LISTED:
                message = displayed_line(fault.message, MAX_SENTENCE)
                self.present.append(Condition(rule=GPU_LOST, key=(GPU_LOST.name, message), sentence=message))
        for gpu in board.gpus:
            reading = gpu.reading
            if not board.displays_gpu(reading):
                continue
            if reading.loss is not None:
                sentence = f"GPU {reading.label} cannot be read: {displayed_line(reading.loss.message, MAX_SENTENCE)}"
                self.present.append(_gpu_condition(GPU_LOST, reading, sentence))
            size = gpu.unattributed_bytes if reading.attributed_bytes is not None else None
            if size is None or _is_unreadable(reading):
                self.unknown.add((UNATTRIBUTED.name, reading.key))
            elif size > MIN_UNATTRIBUTED_BYTES:
                sentence = f"{format_gib(size)} GiB of GPU {reading.label} belong to no visible process"
                self.present.append(_gpu_condition(UNATTRIBUTED, reading, sentence))


def _gpu_condition(rule: Rule, reading: GpuReading, sentence: str) -> Condition:
    return Condition(rule=rule, key=(rule.name, reading.key), sentence=sentence, gpus=(reading.label,))


def _is_unreadable(reading: GpuReading) -> bool:
    return reading.is_stale or reading.processes is None


def _is_above(row: ProcessRow) -> bool:
    """Return True if a process is above the upper bound of its budget, whatever its status says first."""
    held = row.process.used_bytes
    return row.budget is not None and held is not None and held > row.budget.peak.shown_high_bytes


def _over(run: ProcessKey, rows: list[ProcessRow]) -> Condition:
    def excess(row: ProcessRow) -> int:
        return (row.comparison.difference_bytes if row.comparison else None) or 0

    rows = sorted(rows, key=excess, reverse=True)
    most = excess(rows[0])
    up_to = "up to " if len(rows) > 1 else ""
    labels = dict.fromkeys(row.gpu.label for row in sorted(rows, key=lambda row: row.gpu.order))
    words = f"holds {up_to}{format_gib(most)} GiB more than predicted on GPU {gpu_list(labels, most=4)}"
    return _condition(OVER_BUDGET, run, rows, words)


def _growing(run: ProcessKey, rows: list[ProcessRow]) -> Condition:
    def seconds(row: ProcessRow) -> float:
        return row.full_seconds or 0.0

    rows = sorted(rows, key=seconds)
    words = f"grows and fills GPU {rows[0].gpu.label} in about {duration_text(seconds(rows[0]))}"
    return _condition(GROWING, run, rows, words, full_seconds=seconds(rows[0]))


def _condition(
    rule: Rule,
    run: ProcessKey,
    rows: list[ProcessRow],
    words: str,
    *,
    full_seconds: float | None = None,
) -> Condition:
    first = rows[0]
    job, user = (
        displayed_line(first.job.label, _MAX_NAME) if first.job and first.job.has_label else "",
        displayed_line(first.process.user, _MAX_NAME),
    )
    return Condition(
        rule=rule,
        key=(rule.name, run),
        sentence=f"{job or 'a job'}{f' of {user}' if user else ''} (process {first.process.pid}) {words}",
        gpus=tuple(dict.fromkeys(row.gpu.label for row in rows)),
        full_seconds=full_seconds,
        has_budget=first.budget is not None,
    )
