"""Every message that docs/troubleshooting.md and the page of limits quote is one that the program prints."""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = [
    line.strip()
    for block in re.findall(r"^```\{ \.text \.messages \}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
LIMITS = " ".join((ROOT / "docs" / "explanation" / "limits.md").read_text(encoding="utf-8").split())
_PLACEHOLDER = re.compile(r" ?<[a-z ]+>")


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield every text of a module, with ``{}`` where the program puts something in."""
    for node in ast.walk(tree):
        found = text_of(node)
        if found:
            yield found.strip().rstrip(".")


def text_of(node: ast.AST) -> str:
    """Return the text of a string, of an f-string or of several that are added; empty for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(text_of(part) or "{}" for part in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            sides = (text_of(left), text_of(right))
            return "".join(side or "{}" for side in sides) if any(sides) else ""
    return ""


@pytest.fixture(scope="module")
def printed() -> set[str]:
    """All texts of the three packages."""
    paths = (path for package in ("estimator", "monitor", "tui") for path in (ROOT / package).rglob("*.py"))
    return {text for path in paths for text in texts(ast.parse(path.read_text()))}


def test_every_quoted_message_exists(printed: set[str]) -> None:
    def is_printed(message: str) -> bool:
        parts = _PLACEHOLDER.split(message.rstrip("."))
        longest = max(parts, key=len)
        pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
        return any(pattern.fullmatch(text) for text in printed if longest in text)

    assert len(QUOTED) > 30
    stale = [message for message in QUOTED if not is_printed(message)]
    assert not stale, "no message is like these any more; correct or remove them:\n" + "\n".join(stale)


def test_every_quotation_of_the_limits_exists(printed: set[str]) -> None:
    quotations = re.findall("“(.*?)”", LIMITS)
    assert len(quotations) > 20
    assert not [each for each in quotations if not any(is_part_of(each, text.split("{}")) for text in printed)]


def is_part_of(quotation: str, pieces: list[str]) -> bool:
    """Whether a text with something between each two of its pieces contains the quotation."""
    if any(quotation in piece for piece in pieces):
        return True
    for before, after in itertools.pairwise(pieces):
        start = next((n for n in range(len(quotation), 7, -1) if before.endswith(quotation[:n])), 0)
        end = next((n for n in range(len(quotation), 7, -1) if after.startswith(quotation[-n:])), 0)
        if start + end > len(quotation) // 2:
            return True
    return False
