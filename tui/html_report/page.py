"""The page: one HTML file with everything in it, which asks no server for anything and runs no script.

Its Content-Security-Policy forbids both: only the one style sheet, named by its digest, is allowed.
"""

from __future__ import annotations

import base64
import hashlib
import time as clock
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, tostring

from ..draw.text_output import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

# HTML elements, made by the standard library's ElementTree, which escapes whatever a recording contains.


Node = Element | str


def node(tag: str, *children: Node | None, **attributes: object) -> Element:
    """Return an element.

    Args:
        tag: its name.
        *children: elements and texts, in order; None is left out.
        **attributes: ``class_`` is ``class``, an underscore is a hyphen (``stroke_width``), one that is None is left
            out. Names with capitals, such as ``viewBox``, are kept.
    """
    found = Element(tag, {_name(key): _value(value) for key, value in attributes.items() if value is not None})
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


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def _plain(text: str) -> str:
    """Return a text without control characters and secrets; it keeps its lines."""
    return "\n".join(printable(line) for line in text.split("\n")) if "\n" in text else printable(text)


def page(title: str, subtitle: str, sections: Sequence[Element], *, made_by: str) -> str:
    """Return a whole page.

    Args:
        title: heading and title of the page.
        subtitle: what it is about, in a sentence.
        sections: its content.
        made_by: the program and its version.
    """
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    written = clock.strftime("%Y-%m-%d %H:%M")
    body = node(
        "body",
        node("header", node("h1", title), node("p", subtitle, class_="subtitle")),
        node("main", *sections),
        node("footer", node("p", f"Written by {made_by}, {written}. This file loads nothing and runs no script.")),
    )
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=_policy(style)),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="color-scheme", content="light dark"),
        node("meta", name="referrer", content="no-referrer"),
        node("title", f"{title} - vramtop report"),
    )
    markup = tostring(node("html", head, body, lang="en"), encoding="unicode", method="html")
    return "<!DOCTYPE html>\n" + markup.replace("</head>", f"<style>{style}</style></head>", 1) + "\n"


def section(heading: str, *children: Element | str | None, name: str) -> Element:
    """Return a part of the page with a heading.

    Args:
        heading: its heading.
        *children: its content; None is left out.
        name: by which links find it.
    """
    return node("section", node("h2", heading, id=name), *children)


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
