"""A run in a few lines of text: its name, its facts, and the warnings about it."""

from collections.abc import Sequence

from textual.content import Content

from vramtop.monitor.attach.attachment import Attachment
from vramtop.monitor.board.board import ProcessRow, RunRow
from vramtop.monitor.host.plain_text import gpu_list

from ...draw.labels import badge, format_duration, gpu_labels, process_name, urgent_label, worst_row
from ...draw.palette import STATUSES
from ...draw.text_output import printable


def run_title(run: RunRow | None) -> Content:
    """Return the name of a followed run: its job's, or else program and model; None: it is not followed yet."""
    if run is None:
        return Content("Attach: compare a running job with its budget")
    if run.job.name:
        return Content(printable(run.job.name))
    program = [process_name(row.process) for row in run.rows[:1]]
    return Content(printable(" ".join([*program, (run.job.model.id or "").rpartition("/")[2]])))


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
