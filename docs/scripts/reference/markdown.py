"""Markdown: tables, code, and text of docstrings and help as a page shows it."""

import re
from collections.abc import Iterable, Sequence

WRITTEN = "<!-- Written by make reference, from the code: change it there. -->"
_CODE = re.compile(r"``(.+?)``|(`[^`]+`)")
_WORD = re.compile(
    r"(?<![\w`.-])("
    r"--[a-z][a-z-]*(?![\w-])"  # a flag
    r"|[A-Z]+(?:_[A-Z]+)+"  # an environment variable; below, a job key
    r"|(?:model|training|lora|parallel|inference|rollout|software|run|target)\.(?!jsonl)[a-z_]+(?:=\w+(?:\.\w+)*)?"
    r")(?![\w`])"
)
"""What is code also where the help, which is plain text, does not mark it."""


def page(title: str, *parts: str) -> str:
    """Return a page that is generated as a whole."""
    return "\n\n".join([WRITTEN, f"# {title}", *(part.strip("\n") for part in parts if part.strip())]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown already."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def bullets(lines: Iterable[str]) -> str:
    """Return a list; its lines are Markdown already."""
    return "\n".join(f"- {line}" for line in lines)


def code(text: object) -> str:
    """Return text as code, a word or a line."""
    return f"`{text}`" if str(text) else ""


def codes(words: Iterable[object]) -> str:
    """Return words as code, separated by commas."""
    return ", ".join(code(word) for word in words)


def block(text: str, language: str = "") -> str:
    """Return a block of code."""
    return f"```{language}\n{text.strip(chr(10))}\n```"


def prose(text: str) -> str:
    """Return one line of a docstring or a help text: code stays code, other signs that Markdown knows are escaped."""
    parts, end = [], 0
    text = " ".join(text.split())
    for match in _CODE.finditer(text):
        parts += [_escaped(text[end : match.start()]), code(match[1]) if match[1] else match[2]]
        end = match.end()
    return "".join([*parts, _escaped(text[end:])])


def key_line(key: str, values: str, default: str, meaning: str) -> str:
    """Return the line of a key of a file: as it is written with its default, and the values that say more than that."""
    written = code(f"{key} = {default}" if default else key)
    says_all = values in ("text", "the path of a file", "the path of a Python interpreter", "a shell command") or (
        default and values in ("boolean", "integer", "number", "text")
    )
    return f"{written}: {meaning}" if says_all else f"{written} ({values}): {meaning}"


def sentence(text: str) -> str:
    """Return text that begins with a capital and ends with a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?', ')', ':')) else '.'}" if text else ""


def part_between(text: str, name: str, new: str) -> str:
    """Return a page of prose with a part that is written from the code.

    Raises:
        ValueError: the page has no such part.
    """
    begin, end = f"<!-- {name}: written by make reference -->", f"<!-- {name}: end -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"there is no {begin} ... {end}")
    return f"{before}{begin}\n\n{new.strip(chr(10))}\n\n{end}{after}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _escaped(text: str) -> str:
    parts = _WORD.split(text)
    return "".join(code(part) if at % 2 else _plain(part) for at, part in enumerate(parts))


def _plain(text: str) -> str:
    return re.sub(r"([*_\[\]])", r"\\\1", text).replace("<", "&lt;").replace(">", "&gt;")
