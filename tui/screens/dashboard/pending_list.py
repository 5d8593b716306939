"""The jobs that wait: what each needs, and whether it would fit now."""

from collections.abc import Sequence

from textual.content import Content

from vramtop.monitor.board.board import PendingRow

from ...draw.labels import MUTED
from ...widgets.static_lines import StaticLines
from .header_text import pending_line


class PendingList(StaticLines):
    """One line for each pending job, as many as there is room for."""

    def show_pending(self, rows: Sequence[PendingRow], *, width: int, height: int, now: float) -> None:
        """Show these jobs in so many lines; the last line counts what does not fit in."""
        shown = list(rows) if len(rows) <= height else list(rows[: max(0, height - 1)])
        lines = [pending_line(row, width, now) for row in shown]
        if len(rows) > len(shown):
            lines.append(Content.styled(f"pending … and {len(rows) - len(shown)} more", MUTED))
        self.display = height > 0
        self.show(Content("\n").join(lines[:height]), layout=True)
