"""All samples of one moment: of the sampler itself, and of the board if it is recent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import metric_table as table
from .gpu_samples import gpu_samples
from .job_samples import pending_samples, process_samples
from .label_text import label_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .latest_board import ReadingState
    from .metric_table import Metric

    Sample = tuple[Metric, tuple[str, ...], float | int | None]
    """A metric, the values of its labels, and its value; None: unknown, so there is no such series."""


def all_samples(state: ReadingState, version: str) -> Iterator[Sample]:
    """Yield the samples of a moment; without a recent board only those of the sampler.

    Args:
        state: the sampler and the board.
        version: of vramtop.
    """
    yield table.BUILD, (version,), 1
    yield table.SAMPLER_UP, (), int(state.board is not None)
    yield table.LAST_READING, (), state.read_at
    yield table.READING_AGE, (), state.age_seconds
    yield table.INTERVAL, (), state.interval_seconds
    yield table.READINGS, (), state.readings
    yield table.FAILURES, (), state.failures
    if state.failure is not None:
        yield table.HOST_FAULT, (state.failure,), 1
    if state.board is not None:
        yield from _board_samples(state)


def _board_samples(state: ReadingState) -> Iterator[Sample]:
    board = state.board
    if board is None:
        return
    source = board.snapshot.source
    yield table.HOST, tuple(map(label_text, (source.host, source.driver_version, source.cuda_version))), 1
    for reason in sorted({label_text(fault.code) for fault in board.snapshot.faults}):
        yield table.HOST_FAULT, (reason,), 1
    yield table.ATTACHED, (), sum(run.ended_at is None for run in board.runs)
    if (progress := board.attach_progress) is not None:
        yield table.UNREAD, (), progress.total - progress.read
    yield from gpu_samples(board)
    yield from process_samples(board, state.facts_of)
    yield from pending_samples(board)
