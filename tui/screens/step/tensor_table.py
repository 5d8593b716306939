"""The largest tensors at a budget's peak, by module, as text."""

from textual.content import Content

from vramtop.estimator.budget import Budget, LargeTensor

from ...draw import COMPONENTS, on_colour
from ...reports import tensor_rows

_WIDE_COLUMNS = 100
"""From this width on the component is written in full."""


def tensor_lines(budget: Budget, *, width: int) -> list[Content]:
    """Return a line per tensor: component, GiB, module (shortened at its start), dtype and shape."""
    if not budget.largest:
        return []
    share = sum(tensor.bytes for tensor in budget.largest) / max(1, budget.peak.allocated_bytes)
    percent = f"{100 * share:.0f} %"
    head = f"The {len(budget.largest)} largest tensors at the peak, in the {budget.peak.phase}: {percent} of it"
    return [Content.styled(head, "bold"), *(_line(tensor, width) for tensor in budget.largest)]


def _line(tensor: LargeTensor, width: int) -> Content:
    mark = COMPONENTS[tensor.component]
    ((letter, size, module, dtype, shape),) = tensor_rows((tensor,))
    word = f"{mark.word:<16}" if width >= _WIDE_COLUMNS else ""
    tail = f"{dtype:<9} {shape}"
    room = max(12, width - 11 - len(word) - 30)
    module = module if len(module) <= room else f"…{module[1 - room :]}"
    return Content.assemble((letter, on_colour(mark.colour)), f" {word}{size:>7}  {module:<{room}}  ", (tail, "dim"))
