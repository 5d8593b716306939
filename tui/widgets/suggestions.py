"""What to change so that a job fits, as a list: a digit, Enter or a click applies one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from textual import on
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from vramtop.estimator.sizes import format_gib
from vramtop.estimator.suggestions import Suggestion, Verdict

from ..palette import VERDICTS
from ..words import MUTED

HEADINGS: dict[Verdict, str] = {
    "fits": "what makes it fit, the cheapest first",
    "tight": "nothing makes it fit; what makes it tight, the cheapest first",
    "does_not_fit": "nothing makes it fit; what comes closest",
    "unknown": "what makes it smaller",
}
_HOW = "Alt+1-9 applies, F10 undoes"


class Suggestions(OptionList):
    """Suggestions in their order; nothing is shown where there are none."""

    DEFAULT_CSS = """
    Suggestions { height: auto; max-height: 100%; border: none; padding: 0; background: transparent; margin: 1 0 0 0; }
    Suggestions:focus { border: none; background-tint: transparent 0%; }
    """

    @dataclass
    class Applied(Message):
        """The user takes this one."""

        suggestion: Suggestion

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(compact=True, markup=False, id=id)
        self.suggestions: tuple[Suggestion, ...] = ()
        """What is shown."""
        self._two_lines = False
        self.display = False

    def show(self, suggestions: Sequence[Suggestion], *, two_lines: bool) -> None:
        """Show these from now on.

        Args:
            suggestions: in their order.
            two_lines: there is room to say what each costs on a line of its own.
        """
        if (tuple(suggestions), two_lines) == (self.suggestions, self._two_lines):
            return
        self.suggestions, self._two_lines = tuple(suggestions), two_lines
        at = self.highlighted
        self.clear_options()
        self.display = bool(suggestions)
        if not suggestions:
            return
        heading = Content.assemble((HEADINGS[suggestions[0].verdict], "bold"), (f" · {_HOW}", "dim"))
        self.add_option(Option(heading, disabled=True))
        self.add_options(
            Option(suggestion_content(number, suggestion, two_lines=two_lines))
            for number, suggestion in enumerate(suggestions, start=1)
        )
        self.highlighted = min(at or 1, len(suggestions))

    def apply(self, number: int) -> None:
        """Take the suggestion with this number, from 1."""
        if 1 <= number <= len(self.suggestions):
            self.post_message(self.Applied(self.suggestions[number - 1]))

    @on(OptionList.OptionSelected)
    def selected(self, event: OptionList.OptionSelected) -> None:
        """Take the one under the cursor."""
        event.stop()
        self.apply(event.option_index)


def suggestion_content(number: int, suggestion: Suggestion, *, two_lines: bool) -> Content:
    """What it needs then, the settings, and what they cost."""
    peak, mark = suggestion.budget.peak, VERDICTS[suggestion.verdict]
    low, high = format_gib(peak.low_bytes), format_gib(peak.high_bytes)
    head = Content.assemble(
        (f"{number} ", "bold"),
        (f"{mark.letter} ", f"bold {mark.colour}"),
        f"{format_gib(peak.device_bytes)} GiB ",
        (f"({low} to {high}) ", "dim"),
    )
    settings = settings_words(suggestion.changes)
    if two_lines:
        return Content.assemble(head, (settings, "bold"), "\n    ", (suggestion.why, MUTED))
    return Content.assemble(head, (settings, "bold"), (f"  {suggestion.why}", MUTED))


def settings_words(changes: dict[str, Any]) -> str:
    """Dotted keys and values as a person says them: ``activation checkpointing full, optimizer adamw-8bit``."""
    return ", ".join(f"{_label(key)} {_word(value)}" for key, value in changes.items())


def _label(key: str) -> str:
    table, _, name = key.partition(".")
    words = name.replace("_", " ")
    return f"{table} {words}" if table == "lora" else words


_WORDS: dict[type, Callable[[Any], str]] = {
    bool: lambda value: "yes" if value else "no",
    list: lambda value: ",".join(map(str, value)),
}


def _word(value: Any) -> str:
    return _WORDS.get(type(value), str)(value)
