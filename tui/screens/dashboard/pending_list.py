"""The list of pending jobs: their verdicts now, and why."""

from collections.abc import Sequence

from textual.content import Content

from vramtop.estimator.common.errors import NOT_REHEARSED
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import PendingRow

from ...draw.labels import MUTED, alarm, badge
from ...draw.palette import VERDICTS
from ...draw.text_output import printable
from ...keys import shown_key
from ...widgets.static_lines import StaticLines
from ..base import is_view_only

_HIGHLIGHT_SECONDS = 60.0
"""A job is highlighted this long after it started or ceased to fit."""


class PendingList(StaticLines):
    """One line for each pending job, as many as there is room for."""

    def show_pending(self, rows: Sequence[PendingRow], *, width: int, height: int, now: float) -> None:
        """Show these jobs in ``height`` lines; the last line counts those that do not fit in."""
        shown = list(rows) if len(rows) <= height else list(rows[: max(0, height - 1)])
        asks = not is_view_only(self)
        lines = [pending_line(row, width, now, asks=asks) for row in shown]
        if len(rows) > len(shown):
            lines.append(Content.styled(f"pending … and {len(rows) - len(shown)} more", MUTED))
        self.show_if_any(lines[:height])


def pending_line(row: PendingRow, width: int, now: float, *, asks: bool = True) -> Content:
    """Return a pending job with its verdict and the reason; one whose verdict has just changed is highlighted.

    Args:
        row: the job.
        width: in cells.
        now: Unix seconds.
        asks: the fit check can be opened, which asks whether to rehearse a program.
    """
    if row.fit is None:
        verdict, reason = badge(VERDICTS["unknown"], "unknown"), row.sentence or "no budget"
        if asks and reason.startswith(NOT_REHEARSED):
            keys = shown_key("dashboard.fit_check"), shown_key("fit.rehearse")
            reason = f"{NOT_REHEARSED}press {keys[0]}, then {keys[1]} to run it"
    else:
        verdict, reason = badge(VERDICTS[row.fit.verdict], row.fit.verdict), row.sentence or ""
        if row.budget is not None and row.budget.learned is not None:
            reason = f"{reason} · corrected, was {format_gib(row.budget.learned.uncorrected.device_bytes)}"
    is_new = row.fits_changed_at is not None and now - row.fits_changed_at < _HIGHLIGHT_SECONDS
    head = Content.styled(" NOW ", alarm()) if is_new else Content.styled("pending", MUTED)
    name = Content.styled(printable(row.job.label), "bold")
    return Content.assemble(head, " ", name, " ", verdict, " ", printable(reason)).truncate(width, ellipsis=True)
