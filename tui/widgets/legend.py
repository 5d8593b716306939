"""What the letters of a budget bar mean, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content

from ..draw.labels import MUTED
from ..draw.palette import COMPONENTS
from .static_lines import StaticLines

if TYPE_CHECKING:
    from vramtop.estimator.budget.budget import ComponentName

_SHORT: dict[ComponentName, str] = {
    "gradients": "grads",
    "optimizer": "optim",
    "activations": "activ",
    "logits": "logits",
    "temporary": "temp",
    "communication": "comm",
    "context": "CUDA",
}


def legend_line(width: int, *, bars: bool = True) -> Content:
    """The legend; with short words where there is little room, and without the signs of bars where there are none."""
    signs = "  · slack  ├─┤ range  ▓ unattributed  ░ reserved" if bars else ""
    for short, extra in ((False, signs), (False, ""), (True, "")):
        parts = []
        for name, mark in COMPONENTS.items():
            word = _SHORT.get(name, mark.word) if short else mark.word
            parts.append(Content.assemble((mark.letter, f"#0b1220 on {mark.colour}"), (f" {word}", MUTED)))
        line = Content.assemble(Content("  ").join(parts), (extra, MUTED))
        if line.cell_length <= width:
            break
    return line.truncate(width)


class Legend(StaticLines):
    """The legend of the budget bars."""

    DEFAULT_CSS = "Legend { height: 1; }"
