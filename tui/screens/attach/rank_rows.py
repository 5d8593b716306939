"""Rows and columns of the rank table as plain data: all ranks of a run side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vramtop.estimator.common import format_gib
from vramtop.monitor.board import NOT_ON_GPU_YET, ProcessRow
from vramtop.monitor.board.divergence import PeakUsage
from vramtop.monitor.snapshot import ProcessKey

from ...draw import PHASES, STATUSES, CellText, difference_label, status_tone

RankColumn = Literal[
    "RANK", "PID", "GPU", "HOLDS", "PEAK", "KNOWN BY", "BUDGET", "DIFF", "STATUS", "PHASE", "STEP", "S/STEP"
]
_WIDTHS: dict[RankColumn, int] = {
    "RANK": 4, "PID": 7, "GPU": 3, "HOLDS": 6, "PEAK": 6, "KNOWN BY": 10, "BUDGET": 6, "DIFF": 6, "STATUS": 15,
    "PHASE": 10, "STEP": 7, "S/STEP": 6,
}  # fmt: skip
_BY_IMPORTANCE: tuple[RankColumn, ...] = (
    "PID", "GPU", "HOLDS", "STATUS", "DIFF", "RANK", "PEAK", "PHASE", "STEP", "KNOWN BY", "BUDGET", "S/STEP",
)  # fmt: skip
_LEFT = ("KNOWN BY", "STATUS", "PHASE")
_GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """A line of the table."""

    key: str
    row: ProcessRow | None
    """None: this rank is on no GPU."""
    cells: dict[RankColumn, CellText]


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Rank and GPU of a process."""

    rank: int | None = None
    gpu: str = "-"
    """The GPU that the process will take according to its environment."""
    missing: str = NOT_ON_GPU_YET.short
    """Why it is on no GPU, if it is on none."""


def rank_columns(width: int, *, gpu_width: int = 3) -> dict[RankColumn, int]:
    """Return the columns that fit, with their widths, in order; the least important ones are dropped first.

    Args:
        width: cells of the table.
        gpu_width: cells of the longest GPU or MIG device name.
    """
    chosen: set[RankColumn] = set()
    widths = _WIDTHS | {"GPU": max(_WIDTHS["GPU"], gpu_width)}
    left = width
    for name in _BY_IMPORTANCE:
        left -= widths[name] + _GAP
        if left < 0 and chosen:
            break
        chosen.add(name)
    return {name: size for name, size in widths.items() if name in chosen}


def is_right(name: RankColumn) -> bool:
    """Return True if the column is right-aligned: it holds numbers."""
    return name not in _LEFT


def rank_rows(rows: Sequence[ProcessRow], ranks: Mapping[ProcessKey, RankPlacement]) -> list[RankRow]:
    """Return a row for each process on each GPU, and for each rank on no GPU; in order of ranks.

    Args:
        rows: the processes on GPUs, including ended ones.
        ranks: the placement of each process of the run, in order.
    """
    found = [_on_gpu(row, ranks.get(row.process.key, RankPlacement()).rank) for row in rows]
    present = {row.process.key for row in rows}
    missing = [_missing_row(key, place) for key, place in ranks.items() if key not in present]
    order = {key: at for at, key in enumerate(ranks)}
    by_place = sorted(found, key=lambda each: order.get(each.row.process.key, len(order)) if each.row else 0)
    return [*by_place, *missing]


def _on_gpu(row: ProcessRow, rank: int | None) -> RankRow:
    comparison, counters = row.comparison, row.process.counters
    tone = status_tone(row)
    status = CellText("? no budget" if row.problem else "-", "muted")
    phase = peak = known = ""
    if comparison is not None:
        mark = STATUSES[comparison.status]
        status = CellText(f"{mark.letter} {mark.word}", tone)
        phase = PHASES[comparison.phase] if comparison.phase else ""
        if comparison.peak_usage:
            peak, known = format_gib(comparison.peak_usage.size_bytes), _known_by(comparison.peak_usage)
    ended = row.ended_at is not None
    texts: dict[RankColumn, CellText] = {
        "RANK": CellText("-" if rank is None else str(rank)),
        "PID": CellText(str(row.process.pid)),
        "GPU": CellText(row.gpu.label),
        "HOLDS": CellText("-" if ended else format_gib(row.process.used_bytes)),
        "PEAK": CellText(peak or "-"),
        "KNOWN BY": CellText(known or "-", "muted"),
        "BUDGET": CellText(format_gib(row.budget.steady_device_bytes) if row.budget else "-"),
        "DIFF": CellText("-" if comparison is None or ended else difference_label(comparison) or "-", tone),
        "STATUS": status,
        "PHASE": CellText(phase or "-"),
        "STEP": CellText("-" if counters is None or counters.steps is None else f"{counters.steps:,}"),
        "S/STEP": CellText(
            "-" if counters is None or counters.step_seconds is None else f"{counters.step_seconds:.2f}"
        ),
    }
    return RankRow(key="/".join(map(str, row.key)), row=row, cells=texts)


def _missing_row(key: ProcessKey, place: RankPlacement) -> RankRow:
    texts = dict.fromkeys(_WIDTHS, CellText("-", "muted"))
    texts["RANK"] = CellText("-" if place.rank is None else str(place.rank))
    texts["PID"] = CellText(str(key[0]))
    texts["GPU"] = CellText(place.gpu, "muted")
    texts["STATUS"] = CellText(place.missing, "muted")
    return RankRow(key=f"none/{key[0]}/{key[1]}", row=None, cells=texts)


def _known_by(high: PeakUsage) -> str:
    if high.source == "seen":
        return "seen" if high.interval_seconds is None else f"seen {high.interval_seconds:.1f} s"
    return {"probe": "probe", "accounting": "driver"}[high.source]
