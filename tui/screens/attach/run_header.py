"""Runs in a few lines of text: tabs for all of them, and the header of the one that is shown."""

from collections.abc import Sequence

from textual.content import Content

from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.board.board import NOT_ON_GPU_YET, ProcessRow, RunRow
from vramtop.monitor.snapshot.snapshot import ProcessKey, gpu_list

from ...draw.labels import MUTED, badge, format_duration, gpu_labels, process_name, shorten, urgent_label, worst_row
from ...draw.palette import STATUSES, colour_of
from ...draw.text_output import printable
from .rank_view import time_words

_MAX_NAME_WIDTH = 28


def run_tabs(runs: Sequence[RunRow], shown: Sequence[ProcessKey], width: int) -> Content:
    """Return the followed runs in one line, the shown one marked; those that do not fit in are counted."""
    if not runs:
        return Content("Attach: compare a running job with its budget")
    at = next((at for at, run in enumerate(runs) if not set(shown).isdisjoint(run.pids)), None)
    if len(runs) == 1 and at == 0:  # its status stands below
        return Content(_name(runs[0])).truncate(width)
    tabs = [_tab(number, run, shown=number == at) for number, run in enumerate(runs)]
    first = 0
    while at is not None and first < at and sum(tab.cell_length + 2 for tab in tabs[first : at + 1]) > width:
        first += 1
    line = Content(f"‹ {first} more  " if first else "")
    for place, tab in enumerate(tabs[first:], start=first):
        if line.cell_length + tab.cell_length > width - 10 and place not in {first, at}:
            return Content.assemble(line, f"{len(tabs) - place} more ›").truncate(width)
        line = Content.assemble(line, tab, "  ")
    return line.truncate(width)


def run_header(attachment: Attachment, rows: Sequence[ProcessRow], missing: str) -> Content:
    """Return the run in one line, and its command in another.

    Args:
        attachment: what was read of the run.
        rows: its processes on GPUs.
        missing: why there are none, if there are none.
    """
    gpus = gpu_labels(rows)
    versions = " ".join(f"{name} {version}" for name, version in sorted(attachment.versions.items()))
    count = len(attachment.ranks)
    facts = [
        f"pid {attachment.pid}" if count < 2 else f"{count} ranks",
        f"by {attachment.launcher}" if attachment.launcher else "started directly",
        *(printable(place) for place in attachment.inside),
        "with the probe" if attachment.probe else "",
        f"GPU {gpu_list(gpus)}" if gpus else missing,
        f"up {format_duration(rows[0].elapsed_seconds)}" if rows else "",
        versions,
    ]
    return _head([fact for fact in facts if fact], rows, attachment.command)


def process_header(rows: Sequence[ProcessRow]) -> Content:
    """Return a process that was not read in one line, and its command in another."""
    first = rows[0].process
    gpus = gpu_labels(rows)
    facts = [f"pid {first.pid}", printable(first.user or "user n/a"), f"GPU {gpu_list(gpus)}"]
    facts.append(f"up {format_duration(rows[0].elapsed_seconds)}")
    return _head(facts, rows, first.command or first.name or "command n/a")


def warnings_content(attachment: Attachment) -> Content:
    """Return the warnings about what could not be read or understood."""
    return Content("\n").join(
        Content.assemble(("! ", f"bold {colour_of('warning')}"), printable(text)) for text in attachment.warnings
    )


def _tab(number: int, run: RunRow, *, shown: bool) -> Content:
    row = worst_row(run.rows)
    words = Content.styled(f" {number + 1} {shorten(_name(run), _MAX_NAME_WIDTH)}", "bold reverse" if shown else "")
    if run.ended_at is not None and (row is None or row.comparison is None or row.comparison.status == "ended"):
        return Content.assemble(words, " ", Content.styled(f"■ ended {time_words(run.ended_at)}", MUTED))
    if row is None or row.comparison is None:
        return Content.assemble(
            words, Content.styled(" no budget" if run.problem else f" {NOT_ON_GPU_YET.short}", MUTED)
        )
    return Content.assemble(words, " ", badge(STATUSES[row.comparison.status], row.comparison.status))


def _name(run: RunRow) -> str:
    """Return the job's name, or else program and model, which distinguishes two runs of one script."""
    if run.job.name:
        return printable(run.job.name)
    program = [process_name(row.process) for row in run.rows[:1]]
    return printable(" ".join([*program, (run.job.model.id or "").rpartition("/")[2]]))


def _head(facts: Sequence[str], rows: Sequence[ProcessRow], command: str) -> Content:
    row = worst_row(rows)
    status = Content()
    if row is not None and row.comparison is not None:
        beside = urgent_label(row, unit=" GiB")
        size = f" {beside} · " if beside else " "
        status = Content.assemble(badge(STATUSES[row.comparison.status], row.comparison.status), size)
    return Content("\n").join(
        [Content.assemble(status, (" · ".join(facts), "bold")), Content.styled(printable(command), "dim")]
    )
