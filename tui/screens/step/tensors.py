"""The largest tensors at a budget's peak, by module, as text."""

from textual.content import Content

from vramtop.estimator.budget import Budget, LargeTensor

from ...draw.palette import COMPONENTS, on_colour
from ...reports.budget_text import line_text, shortened, tensor_rows

_TENSOR_TABLE_WIDE_COLUMNS = 100
"""From this width on the component is written in full."""


def tensor_lines(budget: Budget, *, width: int) -> list[Content]:
    """Return a line per tensor: component, GiB, module (shortened at its start), line of the program, dtype, shape."""
    if not budget.largest:
        return []
    share = sum(tensor.bytes for tensor in budget.largest) / max(1, budget.peak.allocated_bytes)
    percent = f"{100 * share:.0f} %"
    head = f"The {len(budget.largest)} largest tensors at the peak, in the {budget.peak.phase}: {percent} of it"
    return [Content.styled(head, "bold"), *(_line(tensor, width) for tensor in budget.largest)]


def _line(tensor: LargeTensor, width: int) -> Content:
    mark = COMPONENTS[tensor.component]
    ((letter, size, module, dtype, shape),) = tensor_rows((tensor,))
    word = f"{mark.word:<16}{size:>7}" if width >= _TENSOR_TABLE_WIDE_COLUMNS else f"{size:>7}"
    tail = f"{dtype:<9} {shape}"
    room = max(12, width - 4 - len(word) - 30)
    if tensor.line:
        room = (room - 2) // 2
        word += f"  {shortened(line_text(tensor.own_line or tensor.line), room):<{room}}"
    line = Content.assemble(
        (letter, on_colour(mark.colour)), f" {word}  {shortened(module, room):<{room}}  ", (tail, "dim")
    )
    return line.truncate(width, ellipsis=True)
