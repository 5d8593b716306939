"""HTML elements, made by the standard library's ElementTree, which escapes whatever a recording contains."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from ..draw.text_output import printable

Node = Element | str


def node(tag: str, *children: Node | None, **attributes: object) -> Element:
    """Return an element.

    Args:
        tag: its name.
        *children: elements and texts, in order; None is left out.
        **attributes: ``class_`` is ``class``, an underscore is a hyphen (``stroke_width``), one that is None is left
            out. Names with capitals, such as ``viewBox``, are kept.
    """
    given = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    found = Element(tag, {key: _value(value) for key, value in given})
    add(found, *children)
    return found


def add(parent: Element, *children: Node | None) -> None:
    """Append elements and texts to an element."""
    for child in children:
        if child is None:
            continue
        if isinstance(child, Element):
            parent.append(child)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + _plain(child)
        else:
            parent.text = (parent.text or "") + _plain(child)


def table(heads: tuple[str, ...], rows: list[tuple[Node, ...]], *, numbers: tuple[int, ...] = ()) -> Element:
    """Return a table that scrolls sideways where it is too wide.

    Args:
        heads: of its columns.
        rows: of its cells.
        numbers: columns of figures, which are aligned at the right.
    """

    def cells(tag: str, row: tuple[Node, ...]) -> list[Element]:
        return [node(tag, cell, class_="number" if at in numbers else None) for at, cell in enumerate(row)]

    head = node("thead", node("tr", *cells("th", heads)))
    body = node("tbody", *(node("tr", *cells("td", row)) for row in rows))
    return node("div", node("table", head, body), class_="scrolls", tabindex="0")


def sentences(texts: Sequence[str]) -> Element:
    """Return a list of sentences."""
    return node("ul", *(node("li", text) for text in texts), class_="lines")


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def _plain(text: str) -> str:
    """Return a text without control characters and secrets; it keeps its lines."""
    return "\n".join(printable(line) for line in text.split("\n")) if "\n" in text else printable(text)
