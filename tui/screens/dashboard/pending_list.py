"""The list of pending jobs: their verdicts now, and why."""

from collections.abc import Sequence

from textual.content import Content

from vramtop.estimator.common import format_gib
from vramtop.monitor.board import PendingRow

from ...draw import MUTED, VERDICTS, alarm, badge, printable
from ...widgets import StaticLines

_HIGHLIGHT_SECONDS = 60.0
"""A job is highlighted this long after it started or ceased to fit."""


class PendingList(StaticLines):
    """One line for each pending job, as many as there is room for."""

    def show_pending(self, rows: Sequence[PendingRow], *, width: int, height: int, now: float) -> None:
        """Show these jobs in ``height`` lines; the last line counts those that do not fit in."""
        shown = list(rows) if len(rows) <= height else list(rows[: max(0, height - 1)])
        lines = [pending_line(row, width, now) for row in shown]
        if len(rows) > len(shown):
            lines.append(Content.styled(f"pending … and {len(rows) - len(shown)} more", MUTED))
        self.display = height > 0
        self.show(Content("\n").join(lines[:height]), layout=True)


def pending_line(row: PendingRow, width: int, now: float) -> Content:
    """Return a pending job with its verdict and the reason; one whose verdict has just changed is highlighted."""
    if row.fit is None:
        verdict, reason = badge(VERDICTS["unknown"], "unknown"), row.problem or "no budget"
    else:
        verdict, reason = badge(VERDICTS[row.fit.verdict], row.fit.verdict), row.fit.sentence
        if row.budget is not None and row.budget.learned is not None:
            reason = f"{reason} · corrected, was {format_gib(row.budget.learned.uncorrected.device_bytes)}"
    is_new = row.fits_changed_at is not None and now - row.fits_changed_at < _HIGHLIGHT_SECONDS
    head = Content.styled(" NOW ", alarm()) if is_new else Content.styled("pending", MUTED)
    name = Content.styled(printable(row.job.label), "bold")
    return Content.assemble(head, " ", name, " ", verdict, " ", printable(reason)).truncate(width, ellipsis=True)
