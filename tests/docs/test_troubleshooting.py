"""Every message that a page below docs/troubleshooting quotes exists."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.docs.user_messages import Message, messages

PAGES = Path(__file__).parents[2] / "docs" / "troubleshooting"
_BLOCK = re.compile(r"^```\{ \.text \.messages \}\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COVERS = re.compile(r"^<!-- covers: (.*?) -->$", re.MULTILINE)
_PLACEHOLDER = re.compile(r" ?<[a-z ]+>")


class Entry(NamedTuple):
    """A line of a page that quotes a message, or the files of which it says that all messages are covered."""

    where: str
    text: str
    is_place: bool

    def covers(self, message: Message) -> bool:
        """Return True if a message is the one that is quoted."""
        if self.is_place:
            return fnmatchcase(message.place, self.text)
        return _expression(self.text.rstrip(".")).fullmatch(message.sentence.rstrip(".")) is not None


@cache
def _expression(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in _PLACEHOLDER.split(text)), re.DOTALL)


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


def test_every_entry_quotes_a_message_that_exists() -> None:
    stale = [entry for entry in ALL if not any(entry.covers(message) for message in messages())]
    assert not stale, "no message is like these any more; correct or remove them:\n" + "\n".join(
        f"docs/troubleshooting/{each.where}: {each.text}" for each in stale
    )


def test_messages_are_found_in_a_module(tmp_path: Path) -> None:
    """The collector, on a module that is not vramtop's."""
    source = '''
class TapeError(VramtopError):
    """An error."""

def read(tape, reason):
    """Not a message, though it may fail."""
    if tape.name == "a name that is compared and cannot be one":
        notify(f"tape {tape.name} has come to its end")
    raise TapeError(f"tape {tape.name} tears: {reason}") from None

def why_no_tape(drive):
    label = "the drive is called by this label"
    return "the drive has no tape in it" if drive else None

REASONS = {"dust": "dust has settled on its head"}
write(Tape(error="nobody has cleaned the drive"))
print("tape", "the drive smells of smoke", file=sys.stderr)
'''
    (tmp_path / "estimator").mkdir()
    (tmp_path / "estimator" / "tape.py").write_text(source)
    found = messages(tmp_path)
    assert [message.text for message in sorted(found, key=lambda message: message.line)] == [
        "tape {tape.name} has come to its end",
        "tape {tape.name} tears: {reason}",
        "the drive has no tape in it",
        "dust has settled on its head",
        "nobody has cleaned the drive",
        "the drive smells of smoke",
    ]
    assert found[0].place == "estimator/tape.py"


def test_an_entry_covers_its_message_alone() -> None:
    entry = Entry("page.md:1", "tape <name> tears: <reason>", is_place=False)
    assert entry.covers(Message("a.py", 1, "tape {tape.name} tears: {why({1: 2})}", "TapeError"))
    assert not entry.covers(Message("a.py", 1, "tape {tape.name} burns: {why}", "TapeError"))


def test_entries_quote_enough_to_be_found() -> None:
    for entry in ALL:
        words = re.findall(r"[A-Za-z]{3,}", _PLACEHOLDER.sub("", entry.text))
        assert entry.is_place or len(words) >= 1, f"{entry.where}: too little to search for: {entry.text}"
