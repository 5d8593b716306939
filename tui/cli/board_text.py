"""One reading as text: each figure with its label, so that screen readers can read it."""

import os
from collections.abc import Iterator, Sequence
from itertools import islice

from vramtop.estimator.common.sizes import UNSEEN_BYTES, format_gib
from vramtop.monitor.board.board import Board, GpuRow, ProcessRow
from vramtop.monitor.host.known_programs import kind_label
from vramtop.monitor.snapshot.mig_devices import MigDevice

from ..draw.labels import budget_label
from ..draw.palette import STATUSES, VERDICTS, colour_of, unattributed_label
from ..draw.text_output import TextOutput, format_table, truncate

_INDENT = "     "
"""Before the anomalies of a GPU."""


def board_lines(board: Board, output: TextOutput) -> Iterator[str]:
    """Yield the GPUs with their anomalies, the processes, the pending jobs, and what could not be read."""
    source = board.snapshot.source
    count = sum(bool(gpu.reading.column_label) for gpu in board.gpus)
    facts = [source.host or os.uname().nodename]
    facts += [f"driver {source.driver_version}"] if source.driver_version else []
    facts += [f"CUDA {source.cuda_version}"] if source.cuda_version else []
    yield output.text(", ".join([*facts, f"{count} GPU{'s' * (count != 1)}"]))
    yield from [output.text(board.sums)] if board.sums else []
    gpu_lines = iter(_aligned([_gpu_cells(row) for row in board.displayed_gpus], "<<>>>>>", output))
    for gpu in board.gpus:
        yield from islice(gpu_lines, sum(board.displays_gpu(each.reading) for each in (gpu, *gpu.devices)))
        if not board.displays_gpu(gpu.reading):
            continue
        for anomaly in board.anomalies:
            if anomaly.gpu == gpu.reading.index:
                sentence = output.wrapped(f"! {anomaly.sentence}", indent=_INDENT, further=f"{_INDENT}  ")
                yield from (output.paint(line, colour_of("warning")) for line in sentence)
                yield from output.wrapped(anomaly.advice, indent=f"{_INDENT}  ")
    yield ""
    yield from _process_lines(board, output)
    for row in board.pending:
        word = VERDICTS[row.fit.verdict if row.fit else "unknown"].word
        yield output.text(f"pending {row.job.label}: {word}: {row.sentence or ''}")
    yield from (output.text(fault.message) for fault in board.snapshot.faults)
    for gpu in board.gpus:
        labels: dict[str, str] = {}
        for each in (gpu.reading, *(device.reading for device in gpu.devices)):
            for fault in each.faults:
                labels.setdefault(fault.message, each.label)
        of = "GPU " if gpu.reading.column_label else "host "
        yield from (output.text(f"{of}{label}: {message}") for message, label in labels.items())


def _process_lines(board: Board, output: TextOutput) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    for gpu in board.gpus:
        if not board.displays_gpu(gpu.reading):
            continue
        rows += [_process_cells(row, output) for row in gpu.rows if board.displays(row)]
        if board.hidden and (hidden := [row for row in gpu.rows if not board.displays(row)]):
            size = f"{format_gib(sum(row.process.used_bytes or 0 for row in hidden))} GiB"
            words = f"{len(hidden)} hidden by {board.hidden.by}"
            rows.append(("", "", f"GPU {gpu.reading.label}", size, "", "", words))
        for each in (gpu, *gpu.devices):
            if (each.unattributed_bytes or 0) >= UNSEEN_BYTES:
                where, size = f"GPU {each.reading.label}", f"{format_gib(each.unattributed_bytes)} GiB"
                rows.append(("", "", where, size, "", "", unattributed_label(each.reading)))
    for line in _aligned(rows, "<<<>><<", output):
        yield line if output.unlimited_width else truncate(line, output.width)


def _aligned(rows: Sequence[tuple[str, ...]], align: str, output: TextOutput) -> list[str]:
    """Return lines in which each figure has its label, for screen readers, and columns are aligned."""
    used = [place for place in range(len(align)) if any(row[place] for row in rows)]
    return format_table([[output.text(row[at]) for at in used] for row in rows], "".join(align[at] for at in used))


def _command(row: ProcessRow) -> str:
    """Return the command line of a process, after its note and what it is."""
    process, label = row.process, kind_label(row.kind, row.program_name)
    if row.gpu.host and row.job:  # another host's command line may be hidden, and its job is not attached to here
        label = row.job.label
    command = process.command or process.name
    line = f"({process.note}) {command}" if command and process.note else command or process.note or "n/a"
    return f"{label}: {line}" if label else line


def _gpu_cells(row: GpuRow) -> tuple[str, ...]:
    gpu = row.reading
    used, total, free = (format_gib(size) for size in (gpu.used_bytes, gpu.total_bytes, gpu.free_bytes))
    sizes = (f"{used} of {total} GiB in use", f"{free} free")
    if isinstance(gpu, MigDevice):
        name = f"MIG {gpu.device.profile or 'device'}"
        if gpu.shares_memory_of:
            return (f"GPU {gpu.label}", f"{name}, memory of {gpu.shares_memory_of}", "", "", "", "", "")
        return (f"GPU {gpu.label}", name, *sizes, "", "", "")
    if not gpu.column_label:
        return (f"host {gpu.label}", "no GPU, or no figures", "", "", "", "", "")
    util = "util n/a" if gpu.utilisation_percent is None else f"util {gpu.utilisation_percent} %"
    if gpu.host:  # nothing else is known of other hosts
        return (f"GPU {gpu.label}", gpu.name or "name n/a", *sizes, util, "", "")
    return (
        f"GPU {gpu.index}",
        gpu.name or "name n/a",
        *sizes,
        util,
        "W n/a" if gpu.power_w is None else f"{gpu.power_w:.0f} W",
        "C n/a" if gpu.temperature_c is None else f"{gpu.temperature_c} C",
    )


def _status(row: ProcessRow, output: TextOutput) -> str:
    """Return the status of a process, with the settings that are missing, or why it has no budget."""
    if row.comparison is None:
        return row.no_budget_reason or ""
    word = STATUSES[row.comparison.status].word
    is_wide = output.unlimited_width or output.width >= 120  # else they leave no room for the command line
    return f"{word}: {', '.join(row.missing)}" if row.missing and is_wide else word


def _process_cells(row: ProcessRow, output: TextOutput) -> tuple[str, ...]:
    process = row.process
    return (
        f"pid {process.pid}" if process.pid >= 0 else "",
        process.user or "user n/a",
        f"GPU {row.gpu.label}",
        "memory n/a" if process.used_bytes is None else f"{format_gib(process.used_bytes)} GiB",
        f"budget {budget_label(row)}" if row.budget else "",
        _status(row, output),
        _command(row),
    )
