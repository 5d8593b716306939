"""The lines above the GPUs: the machine and its readings, the host's load, warnings, and anomalies."""

import time
from textwrap import wrap

from textual.content import Content

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import Board, Hidden
from vramtop.monitor.snapshot.gpu_list import gpu_list
from vramtop.monitor.snapshot.snapshot import HostLoad

from ...draw.labels import MUTED, SEPARATOR, alarm, join_to_width, left_and_right
from ...draw.palette import colour_of, on_colour
from ...draw.text_output import printable
from ...keys import shown_key
from ..feed import BoardFeed, feed_signs
from .summary_line import unread_processes


def header_line(board: Board | None, feed: BoardFeed, width: int) -> Content:
    """Return the machine at the left, and interval and time of the readings at the right."""
    left: list[Content | str] = [Content.styled("vramtop", "bold")]
    right: list[Content | str] = []
    if feed.recording:
        right.append(
            Content.styled(f" ● recording {printable(feed.recording)} ", f"bold {on_colour(colour_of('bad'))}")
        )
    right += feed_signs(feed)
    if board:
        source = board.snapshot.source
        left += [printable(source.host or "this machine")]
        left += [f"driver {printable(source.driver_version)}"] if source.driver_version else []
        left += [f"CUDA {printable(source.cuda_version)}"] if source.cuda_version else []
        count = sum(bool(gpu.reading.column_label) for gpu in board.gpus)
        right += [f"{count} GPU{'' if count == 1 else 's'}", f"every {feed.interval:g} s"]
        right += [time.strftime("%H:%M:%S", time.localtime(board.snapshot.time))]
    shown = join_to_width(right, width)
    while len(right) > 1 and shown.cell_length > width - 12:
        del right[-2]
        shown = join_to_width(right, width)
    return left_and_right(join_to_width(left, max(0, width - 3 - shown.cell_length)), shown, width)


def notices(board: Board | None, feed: BoardFeed, width: int) -> list[Content]:
    """Return the warnings and the banner, one or more lines each; usually none."""
    lines = []
    banner = feed.banner
    if board and not banner and not board.snapshot.source.is_live and board.sums is None:
        banner = "a recording, not this machine's current state"
    if banner:
        lines.append(
            Content.assemble((" REPLAY ", f"bold {on_colour(colour_of('uncertain'))}"), f" {printable(banner)}")
        )
    if feed.failure:
        lines += _alarm_lines(feed.failure, width)
    elif board is None:
        lines.append(Content.styled("waiting for the first reading …", MUTED))
    if board and board.hidden:
        lines.append(_filter_line(board, board.hidden))
    if board:
        lines += [Content(board.sums)] if board.sums else []
        for fault in board.snapshot.faults:
            lines += _alarm_lines(fault.message, width)
        if not board.gpus:
            lines += [] if board.snapshot.faults else _alarm_lines("no GPU found on this machine", width)
            if board.snapshot.source.is_live:
                key = shown_key("dashboard.fit_check")
                check = f" press {key} to check a job against any GPU; --demo plays a recording"
                lines.append(Content.assemble((" PLANNING ", f"bold {on_colour(colour_of('uncertain'))}"), check))
        lines += _gpu_faults(board, width)
        lines += _anomaly_lines(board)
    return [line.truncate(width, ellipsis=True) for line in lines]


def _filter_line(board: Board, hidden: Hidden) -> Content:
    """Return what the command line asks for, and what is hidden because of it."""
    every = len({row.process.key for row in board.processes})
    words = [f"{every - hidden.processes} of {every} processes", *unread_processes(board)]
    if hidden.processes:
        words.append(f"hidden: {hidden.processes} with {format_gib(hidden.used_bytes)} GiB")
    words += [f"GPU {gpu_list(hidden.labels, most=4)} hidden"] if hidden.labels else []
    words += [f"no GPU {', '.join(map(printable, hidden.missing))} here"] if hidden.missing else []
    tag = Content.styled(" ONLY ", f"bold {on_colour(colour_of('uncertain'))}")
    return Content.assemble(tag, (f" {printable(hidden.by)}: ", "bold"), SEPARATOR.join(words))


def _alarm_lines(sentence: str, width: int) -> list[Content]:
    """Return a warning in full: it also says what to do."""
    words = wrap(printable(sentence), max(20, width - 4))
    return [Content.assemble((" ! ", alarm()) if not at else "   ", f" {line}") for at, line in enumerate(words)]


_MAX_GPU_FAULTS = 2
"""Sentences about faults of whole GPUs."""


def _gpu_faults(board: Board, width: int) -> list[Content]:
    """Return faults of whole GPUs; GPUs with the same fault share a line. Rows of hosts without GPUs say theirs."""
    gpus: dict[str, list[str]] = {}
    for gpu in board.snapshot.gpus:
        for fault in gpu.faults:
            if fault.field is None and gpu.column_label:
                gpus.setdefault(fault.message, []).append(gpu.label)
                break
    shown = list(gpus.items())[: _MAX_GPU_FAULTS if len(gpus) <= _MAX_GPU_FAULTS else _MAX_GPU_FAULTS - 1]
    words = "" if board.sums else "GPU "  # many hosts: labels begin with the name of the host
    lines = [line for message, those in shown for line in _alarm_lines(f"{words}{gpu_list(those)}: {message}", width)]
    if len(gpus) > len(shown):
        unnamed = {label for message, those in gpus.items() if message not in dict(shown) for label in those}
        rest = [gpu.label for gpu in board.snapshot.gpus if gpu.label in unnamed]
        lines += _alarm_lines(f"{words}{gpu_list(rest, most=8)}: more faults; vramtop --once shows all of them", width)
    return lines


_MAX_ANOMALY_LINES = 2
"""Lines about anomalies of GPUs: the rest of the screen is for the GPUs themselves."""


def _anomaly_lines(board: Board) -> list[Content]:
    """Return the anomalies on the GPUs, the one with the most memory first."""
    anomalies = sorted(board.anomalies, key=lambda anomaly: -anomaly.held_bytes)
    shown = anomalies if len(anomalies) <= _MAX_ANOMALY_LINES else anomalies[: _MAX_ANOMALY_LINES - 1]
    lines = [Content.assemble((" ! ", alarm()), f" GPU {each.gpu}: {printable(each.sentence)}") for each in shown]
    if len(anomalies) > len(shown):
        rest = anomalies[len(shown) :]
        gpus = gpu_list(sorted({each.gpu for each in rest}))
        lines.append(
            Content.assemble((" ! ", alarm()), f" {len(rest)} more on GPU {gpus}; vramtop --once shows all of them")
        )
    return lines


MIN_HEIGHT = 30
"""Lines of a terminal in which there is room for this one."""
_MIN_OTHER_LINES = 20
"""Lines for everything but the GPUs."""


def needed_height(board: Board | None) -> int:
    """Return the lines of a terminal that has room for the line beside one line for each of the GPUs."""
    return max(MIN_HEIGHT, (len(board.displayed_gpus) if board else 0) + _MIN_OTHER_LINES)


def host_line(load: HostLoad, width: int) -> Content:
    """Return the line, as much of it as fits."""
    busy = "n/a" if load.cpu_percent is None else f"{load.cpu_percent:.0f} %"
    if load.cpus is not None:
        cores = "core" if load.cpus == 1 else "cores"
        busy = f"{busy} of {load.cpus:g} {cores}{' (container)' if load.cpu_limited else ''}"
    parts = [Content("host"), Content(f"CPU {busy}"), _ram(load)]
    if load.swap_total_bytes:
        parts.append(Content(f"swap {format_gib(load.swap_used_bytes)} of {format_gib(load.swap_total_bytes)} GiB"))
    if load.load:
        parts.append(Content("load " + " ".join(f"{average:.1f}" for average in load.load)))
    return join_to_width(parts, width).stylize_before(MUTED)


_HIGH_RAM = 0.95
"""From this share of the RAM on, the kernel may soon end a process."""


def _ram(load: HostLoad) -> Content:
    used, total = load.ram_used_bytes, load.ram_total_bytes
    if used is None or total is None:
        return Content("RAM n/a")
    words = f"RAM {format_gib(used)} of {format_gib(total)} GiB{' (container)' if load.ram_limited else ''}"
    return Content.styled(f" ! {words} ", alarm()) if used >= _HIGH_RAM * total else Content(words)
