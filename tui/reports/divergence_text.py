"""Why a process holds more or less memory than its budget, as content."""

from textual.content import Content

from vramtop.estimator.causes.divergence import Divergence

from ..draw.labels import MUTED
from ..draw.text_output import printable


def divergence_content(divergence: Divergence) -> Content:
    """Return the sentence, and below it the components that differ and the most likely explanations.

    Of a trend, the status above has the sentence already.
    """
    head, below = divergence.sentence, divergence.lines
    if divergence.is_trend:
        head = "causes of endless growth:"
    repeated = next((line for line in below if head.endswith(f"; {line}")), None)
    if repeated is not None:  # the sentence ends in the first of the lines below
        head = head.removesuffix(f"; {repeated}")
    lines = [Content.assemble(("Why? ", "bold"), printable(head))]
    lines += [Content.assemble(("  · ", MUTED), printable(line)) for line in below]
    return Content("\n").join(lines)
