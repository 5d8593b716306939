"""The largest tensors at a budget's peak, by module, as text."""

from pathlib import Path

from textual.content import Content

from vramtop.estimator.budget import Budget, LargeTensor
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.untrusted_files import read_file

from ...draw.palette import COMPONENTS, on_colour
from ...draw.text_output import printable
from ...reports.budget_text import line_text, shortened, tensor_rows

_TENSOR_TABLE_WIDE_COLUMNS = 100
"""From this width on the component is written in full."""


def tensor_lines(budget: Budget, *, width: int, marked: int = 0, opened: bool = False) -> list[Content]:
    """Return a line per tensor: component, GiB, module (shortened at its start), line of the program, dtype and shape.

    Args:
        budget: its largest tensors.
        width: of a line.
        marked: index of the tensor with the mark, where a program's lines are known.
        opened: below it stand the lines around the one that made it.
    """
    if not budget.largest:
        return []
    share = sum(tensor.bytes for tensor in budget.largest) / max(1, budget.peak.allocated_bytes)
    percent = f"{100 * share:.0f} %"
    head = f"The {len(budget.largest)} largest tensors at the peak, in the {budget.peak.phase}: {percent} of it"
    lines = [Content.styled(head, "bold")]
    for at, tensor in enumerate(budget.largest):
        mark = "" if not tensor.line else "▸ " if at == marked else "  "
        lines.append(Content.assemble(mark, _line(tensor, width - len(mark))))
        if opened and at == marked:
            for line in filter(None, (tensor.own_line, tensor.line)):
                lines += _source_lines(line, width)
    return lines


def _line(tensor: LargeTensor, width: int) -> Content:
    mark = COMPONENTS[tensor.component]
    ((letter, size, module, dtype, shape),) = tensor_rows((tensor,))
    word = f"{mark.word:<16}" if width >= _TENSOR_TABLE_WIDE_COLUMNS else ""
    tail = f"{dtype:<9} {shape}"
    room = max(12, width - 11 - len(word) - 30)
    if not tensor.line:
        return Content.assemble(
            (letter, on_colour(mark.colour)), f" {word}{size:>7}  {shortened(module, room):<{room}}  ", (tail, "dim")
        )
    half = (room - 2) // 2
    places = f"{shortened(line_text(tensor.own_line or tensor.line), half):<{half}}  {shortened(module, half):<{half}}"
    line = Content.assemble((letter, on_colour(mark.colour)), f" {word}{size:>7}  {places}  ", (tail, "dim"))
    return line.truncate(width, ellipsis=True)


_MAX_SOURCE_BYTES, _LINES_AROUND = 1 << 22, 3


def _source_lines(line: str, width: int) -> list[Content]:
    """Return the lines of the program around one of them, or why they cannot be shown."""
    from vramtop.estimator.readers.source.notebooks import source_of_cell  # only where a line is opened

    name, _, number = line.rpartition(":")
    try:
        text = source_of_cell(name)
        if text is None:
            text = read_file(Path(name), _MAX_SOURCE_BYTES).decode(errors="replace").splitlines()
    except InputError as error:
        return [Content.styled(f"    {printable(error.message)}", "dim")]
    except OSError as error:
        return [Content.styled(f"    {printable(name)}: {error.strerror}", "dim")]
    at = int(number) - 1
    first = max(0, at - _LINES_AROUND)
    found = [Content.styled(f"    {printable(name)}", "dim")]
    for index, each in enumerate(text[first : at + _LINES_AROUND + 1], first):
        style = "bold" if index == at else "dim"
        found.append(Content.styled(f"    {index + 1:>5}  {printable(each)}", style).truncate(width, ellipsis=True))
    return found
