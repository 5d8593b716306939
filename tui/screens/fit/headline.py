"""The verdict in large letters, with what the job needs and what is free beside it."""

from textual.content import Content

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.fit_result import FitResult

from ...draw.palette import VERDICTS

_PIXELS = {
    "A": ("###", "# #", "###", "# #", "# #"),
    "C": ("###", "#  ", "#  ", "#  ", "###"),
    "D": ("## ", "# #", "# #", "# #", "## "),
    "E": ("###", "#  ", "## ", "#  ", "###"),
    "F": ("###", "#  ", "## ", "#  ", "#  "),
    "G": ("####", "#   ", "# ##", "#  #", "####"),
    "H": ("# #", "# #", "###", "# #", "# #"),
    "I": ("#", "#", "#", "#", "#"),
    "L": ("#  ", "#  ", "#  ", "#  ", "###"),
    "N": ("#  #", "## #", "# ##", "#  #", "#  #"),
    "O": ("###", "# #", "# #", "# #", "###"),
    "S": ("###", "#  ", "###", "  #", "###"),
    "T": ("###", " # ", " # ", " # ", " # "),
    " ": (" ",) * 5,
}
"""The letters of the verdicts, of five rows of pixels; a cell holds two rows."""
_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
_GAP = "   "


def headline(fit: FitResult, budget: Budget, *, width: int, ascii_only: bool = False) -> list[Content]:
    """Return the verdict in letters of three rows, and the figures beside them; below them where there is no room.

    Args:
        fit: the verdict.
        budget: of the job.
        width: of a line, in cells.
        ascii_only: ASCII characters only, so the letters have the usual size.
    """
    mark, figures = VERDICTS[fit.verdict], _figures(fit, budget)
    rows = [] if ascii_only else large_letters(mark.word)
    if not rows or len(rows[0]) > width:
        return [
            Content.assemble((f" {mark.word} ", f"bold reverse {mark.colour}"), "  ", (" · ".join(figures), "bold"))
        ]
    letters = [Content.styled(row, mark.colour) for row in rows]
    if len(rows[0]) + len(_GAP) + max(map(len, figures)) > width:
        return [*letters, Content.styled(" · ".join(figures), "bold")]
    beside = [*figures, *[""] * (len(rows) - len(figures))]
    return [Content.assemble(row, _GAP, (text, "bold")) for row, text in zip(letters, beside, strict=True)]


def large_letters(words: str) -> list[str]:
    """Return words in letters of three rows of half blocks."""
    lines = [" ".join(_PIXELS[letter][row] for letter in words) for row in range(5)] + [""]
    width = len(lines[0])
    pairs = [(lines[row], lines[row + 1].ljust(width)) for row in (0, 2, 4)]
    return ["".join(_HALVES[a == "#", b == "#"] for a, b in zip(top, low, strict=True)) for top, low in pairs]


def _figures(fit: FitResult, budget: Budget) -> list[str]:
    """Return what the job needs, what is free where it would run, and what is left or short."""
    tightest = fit.tightest
    need = tightest.need_bytes if tightest else budget.peak.device_bytes
    figures = [f"needs {format_gib(need):>6} GiB{' each' if len(fit.placement) > 1 else ''}"]
    if tightest is None or tightest.margin_bytes is None:
        return figures
    figures.append(f"free  {format_gib(tightest.device.available_bytes):>6} GiB")
    margin = tightest.margin_bytes
    figures.append(f"left  {format_gib(margin):>6} GiB" if margin >= 0 else f"short {format_gib(-margin):>6} GiB")
    return figures
