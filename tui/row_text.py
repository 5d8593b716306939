"""A GPU in one line: what is held with the budget's mark on it, the figures, and the status in a word."""

from textual.content import Content

from vramtop.estimator.sizes import GIB, format_gib
from vramtop.monitor.board import GpuRow

from .gpu_bars import bar_content, marked_cells
from .terminal import clean
from .words import ALARM, FAINT, MUTED, gpu_status, shorten, span_words, worst

_STATUS_WIDTH = 20
_UTIL_WIDTH = 6
_JOB_WIDTH = 22


def row_line(gpu: GpuRow, width: int, *, chosen: bool, stale_seconds: float | None = None) -> Content:
    """The GPU's line, exactly ``width`` cells.

    Args:
        gpu: what to show.
        width: cells.
        chosen: it is the one whose panel is open.
        stale_seconds: how old its figures are, where that is worth saying.
    """
    reading = gpu.reading
    index = Content.styled(f"{'▶' if chosen else ' '}{reading.index:>2} ", "bold" if chosen else "")
    right = [_memory(gpu), _free(gpu), _status(gpu, stale_seconds)]
    if width >= 100:
        util = "n/a" if reading.utilisation_percent is None else f"{reading.utilisation_percent} %"
        right.insert(2, Content(f"{util:>{_UTIL_WIDTH}}"))
        right.append(_job(gpu))
    words = Content("  ").join(right)
    room = max(4, width - index.cell_length - words.cell_length - 2)
    if reading.total_bytes:
        drawn = Content.assemble(bar_content(marked_cells(gpu, room)), ("▏", FAINT))
    else:
        reason = reading.reason("total_bytes") or "total not known"
        drawn = Content.styled(f"{shorten('n/a: ' + clean(reason), room):{room + 1}}", MUTED)
    return Content.assemble(index, drawn, " ", words).truncate(width)


def row_titles(width: int) -> Content:
    """The titles over the lines of ``row_line``."""
    right = [f"{'held/total':>11}", f"{'free':>5}", f"{' status':{_STATUS_WIDTH}}"]
    if width >= 100:
        right.insert(2, f"{'util':>{_UTIL_WIDTH}}")
        right.append(f"{'job':{_JOB_WIDTH}}")
    words = "  ".join(right)
    room = max(4, width - 4 - len(words) - 2)
    held = shorten("held GiB, ┃ where its budget says it ends", room + 1)
    return Content.styled(f"GPU {held:{room + 1}} {words}", MUTED).truncate(width)


def _memory(gpu: GpuRow) -> Content:
    used, total = gpu.reading.used_bytes, gpu.reading.total_bytes
    words = f"{format_gib(used)}/{'n/a' if total is None else _short(total)}"
    return Content(f"{words:>11}")


def _short(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f}"


def _free(gpu: GpuRow) -> Content:
    return Content(f"{format_gib(gpu.reading.free_bytes):>5}")


def _status(gpu: GpuRow, stale_seconds: float | None) -> Content:
    status = gpu_status(gpu)
    if stale_seconds is not None:
        status = Content.styled(f" ! {span_words(stale_seconds)} old ", ALARM)
    status = status.truncate(_STATUS_WIDTH)
    return Content.assemble(status, " " * (_STATUS_WIDTH - status.cell_length))


def _job(gpu: GpuRow) -> Content:
    row = worst(gpu.rows)
    name = clean(row.job.label) if row and row.job else ""
    return Content(f"{shorten(name, _JOB_WIDTH):{_JOB_WIDTH}}")
