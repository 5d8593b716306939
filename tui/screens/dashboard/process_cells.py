"""Texts of the cells of the process table that take more than a format: of one process, and of a group of processes."""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from vramtop.estimator.common.sizes import GIB, format_gib
from vramtop.monitor.host.kinds import kind_label
from vramtop.monitor.snapshot.gpu_list import gpu_list

from ...draw.cell_text import CellText, Tone, status_tone
from ...draw.labels import severity_rank, shorten, worst_row
from ...draw.palette import STATUSES
from ...draw.text_output import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vramtop.estimator.job.job import Job
    from vramtop.monitor.board.board import ProcessRow
    from vramtop.monitor.board.process_groups import ProcessGroup


_USER_WIDTH = 9
STATUS_WIDTH = 12


def user_text(user: str | None) -> str:
    """Return the name of a user."""
    return shorten(printable(user or "n/a"), _USER_WIDTH)


def process_status(row: ProcessRow) -> CellText:
    """Return the status of a process; without a budget, why there is none."""
    if row.gpu.is_stale and row.ended_at is None:
        return CellText("! old figure", "over")
    if row.comparison:
        return CellText(_status_words(row), status_tone(row))
    return CellText(_reason(row), "muted")


def _reason(row: ProcessRow) -> str:
    return row.no_budget_reason or ("? no budget" if row.problem else "-")


def process_command(row: ProcessRow, *, label: bool = True) -> str:
    """Return the command line of a process, after the label of its job and what it is.

    Args:
        row: the process.
        label: name the job, and what it is.
    """
    process = row.process
    command = printable(without_folder(process.command or process.name or process.note or "n/a"))
    if process.note and process.command:
        command = f"({printable(process.note)}) {command}"
    return f"{what}: {command}" if label and (what := _what(row, row.job)) else command


_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
_PYTHON_OPTION = re.compile(r"-([bBdEiIOPqsSuvx]+|[WX].*)")
"""Options before the script that say nothing about what runs."""


def without_folder(command: str) -> str:
    """Return a command line without what is the same for most and leaves little room: folders, and Python's options."""
    words = command.split(" ")
    if words[0].startswith("/"):
        words[0] = words[0].rpartition("/")[2]
    if _PYTHON.fullmatch(words[0].rpartition("/")[2]):
        while len(words) > 1 and _PYTHON_OPTION.fullmatch(words[1]):
            del words[1 : 3 if words[1] in ("-W", "-X") else 2]
        if len(words) > 1 and words[1].startswith("/"):
            words[1] = words[1].rpartition("/")[2] or words[1]
    return " ".join(words)


def figure_tone(row: ProcessRow) -> Tone:
    """Return the tone of a figure that was read from the driver."""
    return "muted" if row.gpu.is_stale else "plain"


def group_count(group: ProcessGroup) -> str:
    """Return the number of its processes; of a single one on several GPUs its pid."""
    count = len(group.process_keys)
    return str(group.rows[0].process.pid) if count == 1 else f"{count} procs"


def group_user(group: ProcessGroup) -> str:
    """Return the user of its processes, or how many users they have."""
    users = {row.process.user for row in group.rows}
    return user_text(group.rows[0].process.user) if len(users) == 1 else f"{len(users)} users"


def group_gpus(group: ProcessGroup) -> str:
    """Return its GPUs in the shortest form: ``0-7``."""
    places = {row.gpu.order: row.gpu.column_label for row in group.rows}
    return short_gpu_list(places[order] for order in sorted(places))


_MAX_GPU_PARTS = 3
"""Maximum of ranges of GPUs that are named; of more, only the first are."""


def short_gpu_list(labels: Iterable[str]) -> str:
    """Return GPUs without blanks: ``0,2,4-7``."""
    return gpu_list(labels, most=_MAX_GPU_PARTS).replace(", ", ",")


def ended_size(row: ProcessRow) -> str:
    """Return what an ended process held at its last reading: ``was 61.2``; in a column of eight cells."""
    size = row.process.used_bytes
    return "-" if size is None else f"was {format_gib(size, digits=1 if size < 100 * GIB else 0)}"


def group_used(group: ProcessGroup) -> CellText:
    """Return the memory of all its processes; ``≥`` if some of them are of unknown size."""
    if not group.present:
        return CellText("-", "muted")
    size = group.used_bytes
    words = format_gib(size) if size is None or not group.has_unknown_sizes else f"≥{format_gib(size)}"
    return CellText(words, "muted" if group.is_stale else "plain")


def group_status(group: ProcessGroup) -> CellText:
    """Return the worst status of its processes, and how many of them have it if not all have."""
    if group.is_stale:
        return CellText("! old figure", "over")
    worst = worst_row(group.rows)
    if worst is None:
        return _common_reason([_reason(row) for row in group.rows])
    rank = severity_rank(worst)
    compared = [row for row in group.rows if row.comparison]
    count = sum(severity_rank(row) == rank for row in compared)
    status = _status_words(worst)
    counted = f"{status} {count}/{len(compared)}"
    fits = count < len(compared) and len(counted) <= STATUS_WIDTH
    return CellText(counted if fits else status, status_tone(worst))


def _common_reason(reasons: Sequence[str]) -> CellText:
    """Return why the most of a group have no budget; ``…`` says that others have another reason, or are being read."""
    counts = Counter(reason for reason in reasons if not reason.endswith("…"))
    if not counts:
        return CellText(reasons[0], "muted")
    words, count = counts.most_common(1)[0]
    return CellText(shorten(words if count == len(reasons) else f"{words} …", STATUS_WIDTH), "muted")


def group_command(group: ProcessGroup) -> str:
    """Return the job's label and the words that the command lines of all processes begin with."""
    ranks = group.ranks or group.rows
    words = _common_words(
        tuple([row.process.command or row.process.name or row.process.note or "n/a" for row in ranks])
    )
    what = _what(ranks[0], group.run.job if group.run else None)
    here, elsewhere = len(group.run.pids) if group.run else 0, group.ranks_elsewhere
    there = f" ({here} of {here + elsewhere} ranks here)" if elsewhere else ""
    return f"{what}{there}: {words}" if what else words


def _what(row: ProcessRow, job: Job | None) -> str:
    """Return a job's label, and what a process is: ``Llama-3.1-8B, vLLM server``; the desktop's status says it."""
    named = None if row.kind == "desktop" else kind_label(row.kind, row.program_name)
    return ", ".join(each for each in (printable(job.label) if job and job.has_label else None, named) if each)


def _status_words(row: ProcessRow) -> str:
    if row.comparison is None:
        return "-"
    mark = STATUSES[row.comparison.status]
    word = "OUT OF MEM" if row.comparison.status == "out_of_memory" else mark.short_word  # the column is no wider
    return f"{mark.letter} {word}"


@lru_cache(512)
def _common_words(commands: tuple[str, ...]) -> str:
    different = [without_folder(command) for command in dict.fromkeys(commands)]
    words: list[str] = []
    for column in zip(*(command.split() for command in different), strict=False):
        if len(set(column)) > 1:
            break
        words.append(column[0])
    return printable(different[0] if len(different) == 1 else " ".join([*words, "…"]))
