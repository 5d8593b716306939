"""The GPUs as rows, one line each, with a cursor; the dashboard shows the selected one as a panel."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich.cells import cell_len, set_cell_size
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB, format_gib
from vramtop.monitor.board.board import Board, GpuRow
from vramtop.monitor.snapshot.mig_devices import MigDevice
from vramtop.monitor.snapshot.snapshot import GpuKey, GpuReading

from ...draw.gpu_bars import bar_content, hardware_cell, held_cells_with_budget_mark
from ...draw.labels import (
    FAINT,
    MUTED,
    badge,
    format_duration,
    job_name,
    left_and_right,
    process_name,
    shorten,
    tag,
    urgent_label,
    worst_row,
)
from ...draw.palette import STATUSES
from ...draw.text_output import printable
from ...keys import bind
from ...widgets.row_table import RowTable
from ..base import STALE_INTERVALS, BoardFeed

_UTIL_WIDTH = 5
_MIN_UTIL_WIDTH = 72
"""Width of lines with utilisation."""
_MIN_JOB_WIDTH = 100
"""Width of lines with the job."""
_HARDWARE_WIDTH = 20
_INDEX_WIDTH = 2
_NUMBER_WIDTH, _MAX_HOST_WIDTH = 4, 20
"""Width of the number of a GPU or MIG device beside the name of its host, and the most that this name gets."""


def gpu_name_width(gpus: Sequence[GpuRow]) -> int:
    """Return the width of the names at the left: GPU indices, or MIG devices with profiles, behind their hosts."""
    hosts = [cell_len(gpu.reading.host) for gpu in gpus if gpu.reading.host]
    if hosts:
        return min(_MAX_HOST_WIDTH, max(hosts)) + 1 + _NUMBER_WIDTH
    if not any(gpu.devices for gpu in gpus):
        return _INDEX_WIDTH
    return max(cell_len(_title(gpu.reading)) for gpu in gpus)


def gpu_row_line(
    gpu: GpuRow,
    width: int,
    *,
    selected: bool,
    names: int = _INDEX_WIDTH,
    stale_seconds: float | None = None,
    jobs: bool = True,
) -> Content:
    """Return the GPU's line, exactly ``width`` cells wide.

    Args:
        gpu: the GPU to show.
        width: cells of the line.
        names: cells for the name at the left, from ``gpu_name_width``.
        selected: the cursor is on this GPU.
        stale_seconds: age of its reading if that is stale.
        jobs: some GPU has a job to name.
    """
    reading = gpu.reading
    mark = "▶" if selected else " "
    name = set_cell_size(_title(reading), names)
    if reading.host:
        host = names - 1 - _NUMBER_WIDTH
        name = f"{set_cell_size(shorten(printable(reading.host), host), host)} {reading.column_label:>{_NUMBER_WIDTH}}"
    elif names == _INDEX_WIDTH:
        name = f"{reading.index:>{names}}"
    index = Content.styled(f"{mark}{name} ", "bold" if selected else "")
    if not reading.column_label:  # a host without figures
        reason = printable(reading.reason("total_bytes") or "")
        return Content.assemble(index, _status(gpu, None), " ", (reason, MUTED)).truncate(width, ellipsis=True)
    free = Content(" " * 5 if is_shared(gpu) else f"{format_gib(gpu.reading.free_bytes):>5}")
    right = [_memory(gpu), free, _status(gpu, stale_seconds)]
    if width >= _MIN_UTIL_WIDTH:
        util = "n/a" if reading.utilisation_percent is None else f"{reading.utilisation_percent} %"
        right.insert(2, Content(f"{util:>{_UTIL_WIDTH}}"))
    if jobs and width >= _MIN_JOB_WIDTH:
        right.append(_job(gpu))
    if reading.host is None and shows_hardware(width - names, jobs=jobs):
        right.insert(3, hardware_cell(reading, _HARDWARE_WIDTH))
    words = Content("  ").join(right)
    room = max(4, width - index.cell_length - words.cell_length - 2)
    return Content.assemble(index, _bar(gpu, room), " ", words).truncate(width)


_PROFILE_WIDTH = 12
"""Length of ``1c.7g.141gb``, plus one."""


def _title(reading: GpuReading) -> str:
    """Return the name, such as ``0`` or ``0:3 1g.10gb``."""
    if not isinstance(reading, MigDevice):
        return reading.label
    return f"{reading.label} {shorten(printable(reading.device.profile or 'MIG'), _PROFILE_WIDTH)}"


def _bar(gpu: GpuRow, room: int) -> Content:
    """Return the bar and its end mark, or why there is none."""
    reading = gpu.reading
    if isinstance(reading, MigDevice) and reading.shares_memory_of:
        of = reading.shares_memory_of
        variants = (f"shares the memory of {of}", f"shares {of}'s memory", f"shares {of}'s", f"as {of}")
        words = next((words for words in variants if cell_len(words) <= room), variants[-1])
        return Content.styled(set_cell_size(words, room + 1), MUTED)
    if reading.total_bytes:
        return Content.assemble(bar_content(held_cells_with_budget_mark(gpu, room)), ("▏", FAINT))
    reason = reading.reason("total_bytes") or "total unknown"
    return Content.styled(set_cell_size(shorten(f"n/a: {printable(reason)}", room), room + 1), MUTED)


_MIN_HARDWARE_WIDTH, _MIN_BOTH_WIDTH = 95, 115
"""Width of lines, without the names of GPUs, with power, temperature and what slows the GPU down; with jobs, too."""


def shows_hardware(width: int, *, jobs: bool) -> bool:
    """Return True if lines have power and temperature, beside the jobs if there are any.

    Args:
        width: of a line without the name of its GPU.
        jobs: some GPU has a job to name.
    """
    return width >= (_MIN_BOTH_WIDTH if jobs else _MIN_HARDWARE_WIDTH)


def names_jobs(gpus: Sequence[GpuRow]) -> bool:
    """Return True if the line of some GPU names a job or, of a MIG device, a process."""
    return any(row.job or isinstance(gpu.reading, MigDevice) for gpu in gpus for row in gpu.rows)


_STATUS_WIDTH = 20
_JOB_WIDTH = 22


def gpu_row_titles(width: int, *, names: int = _INDEX_WIDTH, jobs: bool = True, hosts: bool = False) -> Content:
    """Return the titles above the lines of ``gpu_row_line``; ``hosts``: of many hosts."""
    right = [f"{'used/total':>11}", f"{'free':>5}", f"{' status':{_STATUS_WIDTH}}"]
    if width >= _MIN_UTIL_WIDTH:
        right.insert(2, f"{'util':>{_UTIL_WIDTH}}")
    if jobs and width >= _MIN_JOB_WIDTH:
        right.append(f"{'job':{_JOB_WIDTH}}")
    if not hosts and shows_hardware(width - names, jobs=jobs):
        right.insert(3, f"{'power    temp':>{_HARDWARE_WIDTH}}")
    words = "  ".join(right)
    room = max(4, width - names - 2 - len(words) - 2)
    held = shorten("GiB in use, ┃ budget", room + 1)
    name = f" {'HOST':{names - _NUMBER_WIDTH}}{'GPU':>{_NUMBER_WIDTH}}" if hosts else "GPU"
    return Content.styled(f"{name:{names + 1}} {held:{room + 1}} {words}", MUTED).truncate(width)


def _memory(gpu: GpuRow) -> Content:
    if is_shared(gpu):
        return Content.styled(f"{'shared':>11}", MUTED)
    used, total = gpu.reading.used_bytes, gpu.reading.total_bytes
    words = f"{format_gib(used)}/{'n/a' if total is None else f'{total / GIB:.1f}'}"
    return Content(f"{words:>11}")


def is_shared(gpu: GpuRow) -> bool:
    """Return True if the memory is shown in the line of another MIG device."""
    return isinstance(gpu.reading, MigDevice) and gpu.reading.shares_memory_of is not None


def _status(gpu: GpuRow, stale_seconds: float | None) -> Content:
    status = gpu_status(gpu, _STATUS_WIDTH)
    if stale_seconds is not None:
        status = tag(f"! {format_duration(stale_seconds)} old")
    status = status.truncate(_STATUS_WIDTH)
    return Content.assemble(status, " " * (_STATUS_WIDTH - status.cell_length))


_GPU_FAULTS = {
    "GPU_IS_LOST": "lost",
    "RESET_REQUIRED": "reset required",
    "NO_ANSWER": "hangs",
    "NO_PERMISSION": "no permission",
    "NOT_LISTED": "not listed",
    "ASLEEP": "asleep",
    "CONNECTING": "connecting",
    "SILENT": "silent",
    "UNREACHABLE": "unreachable",
    "NO_GPU": "no GPU",
}
"""A word for each fault of a whole GPU, or of a host, by its code."""


def gpu_status(gpu: GpuRow, width: int) -> Content:
    """Return the GPU's state by its worst job: sign, word, and at the right the difference; or why there is no job."""
    for fault in gpu.reading.faults:
        if fault.field is None:
            return tag(f"! {_GPU_FAULTS.get(fault.code, 'cannot be read')}")
    row = worst_row(gpu.rows)
    if row and row.comparison:
        mark, beside = STATUSES[row.comparison.status], urgent_label(row)
        status = badge(mark, row.comparison.status)
        if status.cell_length + len(beside) > width:
            word, beside = (beside, "") if row.comparison.status == "growing" else (mark.short_word, beside)
            status = badge(replace(mark, word=word), row.comparison.status)
        return left_and_right(status, Content.assemble(beside), width)
    if gpu.reading.mig is not None:
        count = len(gpu.reading.mig)
        return Content.styled(f" MIG, {count or 'no'} device{'' if count == 1 else 's'}", MUTED)
    if gpu.reading.processes is None:
        return Content.styled(" processes n/a", MUTED)
    reason = next((row.no_budget_reason for row in gpu.rows if row.no_budget_reason), "no budget")
    return Content.styled(f" {reason}" if gpu.rows else " idle", MUTED)


def _job(gpu: GpuRow) -> Content:
    """Return the job with the worst status; for a MIG device without jobs, its largest process."""
    row = worst_row(gpu.rows)
    if row and row.job:
        return Content(set_cell_size(shorten(job_name(row), _JOB_WIDTH), _JOB_WIDTH))
    if not gpu.rows or not isinstance(gpu.reading, MigDevice):
        return Content(" " * _JOB_WIDTH)
    process = gpu.rows[0].process
    rest = f" {process.pid}{f' +{len(gpu.rows) - 1}' if len(gpu.rows) > 1 else ''}"
    name = shorten(process_name(process), _JOB_WIDTH - len(rest))
    return Content.styled(set_cell_size(name + rest, _JOB_WIDTH), MUTED)


GPU_ROW_KEYS = [
    bind("list.up", "move(-1)"),
    Binding("k", "move(-1)", show=False),
    bind("list.down", "move(1)"),
    Binding("j", "move(1)", show=False),
    bind("list.first", "move_to(0)"),
    bind("list.last", "move_to(-1)"),
    bind("list.open", "open", "Open"),
]


class GpuRows(RowTable[GpuRow], can_focus=True):
    """A scrolling list of all GPUs."""

    HEADER_LINES = 0
    BINDINGS: ClassVar[list[BindingType]] = [*GPU_ROW_KEYS]
    DEFAULT_CSS = "GpuRows { min-height: 0; } GpuRows > .table--cursor { color: $foreground; }"

    _line: Callable[..., Content]
    """Draws the line of a GPU, in the width and with the columns of the board."""
    _stale: Mapping[GpuKey, float | None]
    """Ages of readings in seconds, of those that are stale."""

    @dataclass
    class Selected(Message):
        """The user has moved the cursor to another GPU."""

        position: int
        """Position of the GPU in the list."""

    class Opened(RowTable.Opened):
        """The user opens a GPU; ``row`` is a ``GpuRow``."""

    def show_gpus(
        self, gpus: Sequence[GpuRow], *, width: int, name_width: int, selected: int, stale: Sequence[float | None]
    ) -> None:
        """Show these GPUs; ``stale``: the age in seconds of each reading that is stale, else None."""
        self.cursor_row, self._moved = selected, False
        self._line = partial(gpu_row_line, width=width, names=name_width, jobs=names_jobs(gpus))
        self._stale = {gpu.reading.key: age for gpu, age in zip(gpus, stale, strict=True)}
        self.show_rows(gpus)

    def key_of(self, row: GpuRow) -> GpuKey:
        """Return the GPU or MIG device."""
        return row.reading.key

    def cells_of(self, row: GpuRow) -> Content:
        """Return the line."""
        return self._line(row, selected=row is self.selected, stale_seconds=self._stale[row.reading.key])

    def move_cursor(self, *, row: int) -> None:
        """Select another GPU."""
        super().move_cursor(row=row)
        self.post_message(self.Selected(self.cursor_row))


def stale_seconds(gpu: GpuRow, board: Board, feed: BoardFeed) -> float | None:
    """Return the age of the GPU's reading if it is stale; None if it is recent, or n/a anyway."""
    reading = gpu.reading
    if not reading.read_at or (reading.used_bytes is None and not reading.mig):
        return None
    age = board.snapshot.time - reading.read_at + (feed.age_seconds or 0.0)
    return age if reading.is_stale or age > STALE_INTERVALS * feed.interval else None
