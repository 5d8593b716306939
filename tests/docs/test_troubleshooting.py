"""Every sentence that tells of trouble has an entry below docs/troubleshooting, or needs none by a rule that says why."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest
from self_explaining import RULES
from user_messages import Message, messages, without_placeholders

from vramtop.tui.cli.main import build_parser

PAGES = Path(__file__).parents[2] / "docs" / "troubleshooting"
_BLOCK = re.compile(r"^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COVERS = re.compile(r"^<!-- covers: (.*?) -->$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"<[a-z ]+>")


class Entry(NamedTuple):
    """A line of a page that quotes a message, or the files of which it says that all messages are covered."""

    where: str
    text: str
    is_place: bool

    def covers(self, message: Message) -> bool:
        """Return True if a message is the one that is quoted."""
        if self.is_place:
            return fnmatchcase(message.place, self.text)
        fixed = ".*".join(re.escape(part) for part in _PLACEHOLDER.split(self.text.rstrip(".")))
        return re.fullmatch(fixed, without_placeholders(message.text).rstrip("."), re.DOTALL) is not None


def entries(page: Path, text: str) -> Iterator[Entry]:
    for block in _BLOCK.finditer(text):
        first = text[: block.start(1)].count("\n") + 1
        for number, line in enumerate(block[1].splitlines(), first):
            yield Entry(f"{page.name}:{number}", line.strip(), is_place=False)
    for found in _COVERS.finditer(text):
        number = text[: found.start()].count("\n") + 1
        for place in found[1].split(","):
            yield Entry(f"{page.name}:{number}", place.strip(), is_place=True)


ALL = tuple(entry for page in sorted(PAGES.glob("*.md")) for entry in entries(page, page.read_text()))


def unexplained(found: tuple[Message, ...]) -> list[Message]:
    return [
        message
        for message in found
        if not any(rule.applies(message) for rule in RULES) and not any(entry.covers(message) for entry in ALL)
    ]


def test_every_message_has_an_entry_or_needs_none() -> None:
    missing = unexplained(messages())
    assert not missing, (
        "add each of these to a page below docs/troubleshooting, in a ```text block, with what to do below it; or let the "
        "sentence itself say what to do:\n" + "\n".join(f"{each.place}:{each.line}: {each.text}" for each in missing)
    )


def test_every_entry_quotes_a_message_that_exists() -> None:
    stale = [entry for entry in ALL if not any(entry.covers(message) for message in messages())]
    assert not stale, "no message is like these any more; correct or remove them:\n" + "\n".join(
        f"docs/troubleshooting/{each.where}: {each.text}" for each in stale
    )


def test_every_rule_is_needed() -> None:
    for rule in RULES:
        assert any(rule.applies(message) for message in messages()), f"no message is excused by the rule: {rule.why}"
