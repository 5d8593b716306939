"""What a run is, in a few lines: who launched it, its ranks, its GPUs, and how it stands."""

from collections.abc import Sequence

from textual.content import Content

from vramtop.monitor.attach import Attachment
from vramtop.monitor.board import ProcessRow

from .palette import STATUSES
from .terminal import clean
from .words import badge, signed_gib, span_words, worst


def run_content(attachment: Attachment, rows: Sequence[ProcessRow]) -> Content:
    """The run in one line, its command in another; ``rows`` are its processes on GPUs."""
    gpus = sorted({row.gpu.index for row in rows})
    versions = " ".join(f"{name} {version}" for name, version in sorted(attachment.versions.items()))
    facts = [
        _ranks(attachment),
        f"by {attachment.launcher}" if attachment.launcher else "started directly",
        *(clean(place) for place in attachment.inside),
        "with the probe" if attachment.probe else "",
        f"GPU {', '.join(map(str, gpus))}" if gpus else "on no GPU yet",
        f"up {span_words(rows[0].elapsed_seconds)}" if rows else "",
        versions,
    ]
    lines = [
        Content.assemble(_status(rows), (" · ".join(fact for fact in facts if fact), "bold")),
        Content.styled(clean(attachment.command), "dim"),
    ]
    return Content("\n").join(lines)


def warnings_content(attachment: Attachment) -> Content:
    """What could not be seen or understood."""
    return Content("\n").join(Content.assemble(("! ", "bold #f59e0b"), clean(text)) for text in attachment.warnings)


def _ranks(attachment: Attachment) -> str:
    pids = ", ".join(str(rank.pid) for rank in attachment.ranks)
    count = len(attachment.ranks)
    return f"{count} ranks: pid {pids}" if count > 1 else f"pid {pids}"


def _status(rows: Sequence[ProcessRow]) -> Content:
    row = worst(rows)
    if row is None or row.comparison is None:
        return Content()
    comparison = row.comparison
    difference = signed_gib(comparison.difference_bytes)
    return Content.assemble(badge(STATUSES[comparison.status], comparison.status), f" {difference} GiB · ")
