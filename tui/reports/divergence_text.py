"""Why a process holds something else than its budget, in lines."""

from textual.content import Content

from vramtop.estimator.causes.divergence import Divergence

from ..draw.labels import MUTED
from ..draw.text_output import printable


def divergence_content(divergence: Divergence) -> Content:
    """One sentence, and below it the parts that differ and what would predict them, the likeliest first."""
    head, below = divergence.sentence, divergence.lines
    said = next((line for line in below if head.endswith(f"; {line}")), None)
    if said is not None:  # it is the first of those below
        head = head.removesuffix(f"; {said}")
    lines = [Content.assemble(("Why? ", "bold"), printable(head))]
    lines += [Content.assemble(("  · ", MUTED), printable(line)) for line in below]
    return Content("\n").join(lines)
