"""A GPU or MIG device as one line of text: bar with a budget mark, figures, and status."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from vramtop.estimator.common import GIB, format_gib
from vramtop.monitor.board import GpuRow
from vramtop.monitor.snapshot import GpuReading, MigDevice

from ....draw import (
    FAINT,
    MUTED,
    alarm,
    bar_content,
    format_duration,
    gpu_status,
    hardware_cell,
    held_cells_with_budget_mark,
    printable,
    process_name,
    shorten,
    worst_row,
)

_STATUS_WIDTH = 20
_UTIL_WIDTH = 5
_MIN_UTIL_WIDTH = 72
"""Width of lines with utilisation."""
_MIN_JOB_WIDTH = 100
"""Width of lines with the job."""
MIN_HARDWARE_WIDTH = 140
"""Width of lines with power, temperature, and what slows the GPU down."""
_HARDWARE_WIDTH = 20
_JOB_WIDTH = 22
_INDEX_WIDTH = 2
_PROFILE_WIDTH = 12
"""Length of ``1c.7g.141gb``, plus one."""


def gpu_name_width(gpus: Sequence[GpuRow]) -> int:
    """Return the width of the names at the left: GPU indices, or MIG devices with their profiles."""
    if not any(gpu.devices for gpu in gpus):
        return _INDEX_WIDTH
    return max(cell_len(_title(gpu.reading)) for gpu in gpus)


def gpu_row_line(
    gpu: GpuRow, width: int, *, selected: bool, names: int = _INDEX_WIDTH, stale_seconds: float | None = None
) -> Content:
    """Return the GPU's line, exactly ``width`` cells wide.

    Args:
        gpu: the GPU to show.
        width: cells of the line.
        names: cells for the name at the left, from ``gpu_name_width``.
        selected: the cursor is on this GPU.
        stale_seconds: age of its reading if that is stale.
    """
    reading = gpu.reading
    mark = "▶" if selected else " "
    index = Content.styled(f"{mark}{set_cell_size(_title(reading), names)} ", "bold" if selected else "")
    if names == _INDEX_WIDTH:
        index = Content.styled(f"{mark}{reading.index:>{names}} ", "bold" if selected else "")
    right = [_memory(gpu), _free(gpu), _status(gpu, stale_seconds)]
    if width >= _MIN_UTIL_WIDTH:
        util = "n/a" if reading.utilisation_percent is None else f"{reading.utilisation_percent} %"
        right.insert(2, Content(f"{util:>{_UTIL_WIDTH}}"))
    if width >= _MIN_JOB_WIDTH:
        right.append(_job(gpu))
    if width >= MIN_HARDWARE_WIDTH:
        right.insert(3, hardware_cell(reading, _HARDWARE_WIDTH))
    words = Content("  ").join(right)
    room = max(4, width - index.cell_length - words.cell_length - 2)
    drawn = _drawn(gpu, room)
    return Content.assemble(index, drawn, " ", words).truncate(width)


def _title(reading: GpuReading) -> str:
    """Return the name, such as ``0`` or ``0:3 1g.10gb``."""
    if not isinstance(reading, MigDevice):
        return reading.label
    return f"{reading.label} {shorten(printable(reading.device.profile or 'MIG'), _PROFILE_WIDTH)}"


def _drawn(gpu: GpuRow, room: int) -> Content:
    """Return the bar and its end mark, or why there is none."""
    reading = gpu.reading
    if isinstance(reading, MigDevice) and reading.shares_memory_of:
        of = reading.shares_memory_of
        variants = (f"shares the memory of {of}", f"shares {of}'s memory", f"shares {of}'s", f"as {of}")
        words = next((words for words in variants if cell_len(words) <= room), variants[-1])
        return Content.styled(set_cell_size(words, room + 1), MUTED)
    if reading.total_bytes:
        return Content.assemble(bar_content(held_cells_with_budget_mark(gpu, room)), ("▏", FAINT))
    reason = reading.reason("total_bytes") or "total not known"
    return Content.styled(set_cell_size(shorten(f"n/a: {printable(reason)}", room), room + 1), MUTED)


def gpu_row_titles(width: int, *, names: int = _INDEX_WIDTH) -> Content:
    """Return the titles above the lines of ``gpu_row_line``."""
    right = [f"{'used/total':>11}", f"{'free':>5}", f"{' status':{_STATUS_WIDTH}}"]
    if width >= _MIN_UTIL_WIDTH:
        right.insert(2, f"{'util':>{_UTIL_WIDTH}}")
    if width >= _MIN_JOB_WIDTH:
        right.append(f"{'job':{_JOB_WIDTH}}")
    if width >= MIN_HARDWARE_WIDTH:
        right.insert(3, f"{'power    temp':>{_HARDWARE_WIDTH}}")
    words = "  ".join(right)
    room = max(4, width - names - 2 - len(words) - 2)
    held = shorten("GiB in use, ┃ end of its budget", room + 1)
    return Content.styled(f"{'GPU':{names + 1}} {held:{room + 1}} {words}", MUTED).truncate(width)


def _memory(gpu: GpuRow) -> Content:
    if is_shared(gpu):
        return Content.styled(f"{'shared':>11}", MUTED)
    used, total = gpu.reading.used_bytes, gpu.reading.total_bytes
    words = f"{format_gib(used)}/{'n/a' if total is None else _short(total)}"
    return Content(f"{words:>11}")


def _short(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f}"


def _free(gpu: GpuRow) -> Content:
    return Content(" " * 5 if is_shared(gpu) else f"{format_gib(gpu.reading.free_bytes):>5}")


def is_shared(gpu: GpuRow) -> bool:
    """Return True if the memory is shown in the line of another MIG device."""
    return isinstance(gpu.reading, MigDevice) and gpu.reading.shares_memory_of is not None


def _status(gpu: GpuRow, stale_seconds: float | None) -> Content:
    status = gpu_status(gpu, _STATUS_WIDTH)
    if stale_seconds is not None:
        status = Content.styled(f" ! {format_duration(stale_seconds)} old ", alarm())
    status = status.truncate(_STATUS_WIDTH)
    return Content.assemble(status, " " * (_STATUS_WIDTH - status.cell_length))


def _job(gpu: GpuRow) -> Content:
    """Return the job with the worst status; for a MIG device without jobs, its largest process."""
    row = worst_row(gpu.rows)
    if row and row.job:
        return Content(set_cell_size(shorten(printable(row.job.label), _JOB_WIDTH), _JOB_WIDTH))
    if not gpu.rows or not isinstance(gpu.reading, MigDevice):
        return Content(" " * _JOB_WIDTH)
    process = gpu.rows[0].process
    rest = f" {process.pid}{f' +{len(gpu.rows) - 1}' if len(gpu.rows) > 1 else ''}"
    name = shorten(process_name(process), _JOB_WIDTH - len(rest))
    return Content.styled(set_cell_size(name + rest, _JOB_WIDTH), MUTED)
