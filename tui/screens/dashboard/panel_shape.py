"""The size of a GPU's panel, and one line of it: a label, a drawing, and figures."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from ...draw.labels import FAINT, MUTED

FRAME_LINES = 4
"""Lines of a panel without a graph: two borders and two bars."""
JOBLESS_LINES = 2
"""Lines of a panel without a job: a rule and a bar."""
LABEL_WIDTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelShape:
    """Size of a panel."""

    width: int
    graph_height: int = 0
    framed: bool = True
    """It has a frame, and a bar for the budget."""

    @property
    def height(self) -> int:
        """Its lines."""
        return FRAME_LINES + self.graph_height if self.framed else JOBLESS_LINES

    @property
    def figures_width(self) -> int:
        """Cells for the figures right of each bar."""
        return min(46, max(22, round(self.width * 0.3)))

    @property
    def bar_width(self) -> int:
        """Cells of each bar, without 4 for the frame, 1 for the bar's end, and 1 for the gap before the figures."""
        return max(8, self.width - 4 - LABEL_WIDTH - self.figures_width - 2)


def panel_line(label: str, drawn: Content, figures: Content, shape: PanelShape, cells: int | None = None) -> Content:
    """Return a line inside of a panel; without figures the drawing may take all of it.

    Args:
        label: at the left.
        drawn: a bar, or words.
        figures: right of the bar.
        shape: of the panel.
        cells: width of the bar; None: that of the panel's bars.
    """
    name = Content.styled(f"{label:{LABEL_WIDTH}}", MUTED)
    if not figures and drawn.cell_length != shape.bar_width:
        return Content.assemble(name, drawn.truncate(shape.width - 4 - LABEL_WIDTH, ellipsis=True))
    gap = " " * ((shape.bar_width if cells is None else cells) - drawn.cell_length)
    return Content.assemble(name, drawn, gap, ("▏", FAINT), " ", figures)
