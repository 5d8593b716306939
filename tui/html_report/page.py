"""The page: one HTML file with everything in it, which asks no server for anything and runs no script.

Its Content-Security-Policy forbids both: only the one style sheet, named by its digest, is allowed.
"""

import base64
import hashlib
import time as clock
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from .elements import node


def page(title: str, subtitle: str, sections: Sequence[Element], *, made_by: str) -> str:
    """Return a whole page.

    Args:
        title: heading and title of the page.
        subtitle: what it is about, in a sentence.
        sections: its content.
        made_by: the program and its version.
    """
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
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
        node("meta", http_equiv="Content-Security-Policy", content=policy),
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
