"""Suggestions that make a job fit, as a list: a digit, Enter or a click applies one."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Blur, Click, Focus
from textual.message import Message

from vramtop.estimator.advice import Suggestion, Verdict
from vramtop.estimator.common import format_gib

from ...draw import MUTED, VERDICTS
from ...widgets import StaticLines

HEADINGS: dict[Verdict, str] = {
    "fits": "what makes it fit, the cheapest first",
    "tight": "nothing makes it fit; what makes it tight",
    "does_not_fit": "nothing makes it fit; what comes closest",
    "unknown": "what makes it smaller",
}
_NAMES = {"micro_batch": "micro-batch"}
_KEYS_HINT = "Alt+1-9 applies, F10 undoes"


class Suggestions(StaticLines, can_focus=True):
    """A list of suggestions, hidden while it is empty.

    It is drawn as one text: it changes with every key press in the form, and a list of widgets is slow to lay out.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("enter", "apply", "Apply"),
    ]
    DEFAULT_CSS = """
    Suggestions { text-wrap: wrap; margin: 1 0 0 0; display: none; }
    """

    @dataclass
    class Applied(Message):
        """The user applies this suggestion."""

        suggestion: Suggestion

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.suggestions: tuple[Suggestion, ...] = ()
        """The suggestions that are shown."""
        self._two_lines = False
        self._cursor = 0
        self._contents: list[Content] = []
        """The heading, and one text per suggestion, of one or more lines."""

    def show_suggestions(self, suggestions: Sequence[Suggestion], *, two_lines: bool) -> None:
        """Show these suggestions.

        Args:
            suggestions: in display order.
            two_lines: show the cost of each on a line of its own.
        """
        self.suggestions, self._two_lines = tuple(suggestions), two_lines
        self._cursor = min(self._cursor, max(0, len(suggestions) - 1))
        if self.display != bool(suggestions):
            self.display = bool(suggestions)
        self._draw()

    def apply(self, number: int) -> None:
        """Apply the suggestion with this number, counted from 1."""
        if 1 <= number <= len(self.suggestions):
            self.post_message(self.Applied(self.suggestions[number - 1]))

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        if self.suggestions:
            self._cursor = (self._cursor + by) % len(self.suggestions)
            self._draw()

    def action_apply(self) -> None:
        """Apply the suggestion under the cursor."""
        self.apply(self._cursor + 1)

    def on_click(self, event: Click) -> None:
        """Apply the clicked suggestion."""
        width, rules = self.content_size.width, self.styles.get_rules()
        ends = list(accumulate(content.get_height(rules, width) for content in self._contents))
        self.apply(bisect_right(ends, event.y))  # the first is the heading

    def on_focus(self, _: Focus) -> None:
        """Show the cursor."""
        self._draw(focused=True)

    def on_blur(self, _: Blur) -> None:
        """Hide the cursor."""
        self._draw(focused=False)

    def _draw(self, *, focused: bool | None = None) -> None:
        if not self.suggestions:
            return
        cursor = self._cursor if (self.has_focus if focused is None else focused) else None
        heading = Content.assemble((HEADINGS[self.suggestions[0].verdict], "bold"), (f" · {_KEYS_HINT}", "dim"))
        self._contents = [heading]
        for at, suggestion in enumerate(self.suggestions):
            content = suggestion_content(at + 1, suggestion, two_lines=self._two_lines)
            self._contents.append(content.stylize("reverse") if at == cursor else content)
        self.show(Content("\n").join(self._contents), layout=True)


def suggestion_content(number: int, suggestion: Suggestion, *, two_lines: bool) -> Content:
    """Return a suggestion as text: its peak, the settings, and what they cost."""
    peak, mark = suggestion.budget.peak, VERDICTS[suggestion.verdict]
    low, high = format_gib(peak.low_bytes), format_gib(peak.high_bytes)
    head = Content.assemble(
        (f"{number} ", "bold"),
        (f"{mark.letter} ", f"bold {mark.colour}"),
        f"{format_gib(peak.device_bytes)} GiB ",
    )
    settings = (settings_words(suggestion.changes), "bold")
    if two_lines:
        return Content.assemble(head, settings, "\n    ", (f"{low} to {high} GiB; {suggestion.why}", MUTED))
    return Content.assemble(head, settings, (f" · {suggestion.why}", MUTED))


def settings_words(changes: Mapping[str, Any]) -> str:
    """Return changed settings in words, such as ``activation checkpointing full, optimizer adamw-8bit``."""
    return ", ".join(_words(changes))


def _words(changes: Mapping[str, Any]) -> Iterator[str]:
    adapters = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("lora.")}
    if adapters:
        kind = f"QLoRA ({adapters['quantization']})" if "quantization" in adapters else "LoRA"
        rank = f" rank {adapters['rank']}" if "rank" in adapters else ""
        targets = adapters.get("targets")
        yield f"{kind}{rank}{f' on {_word(targets)}' if targets else ''}"
    for key, value in changes.items():
        if not key.startswith("lora."):
            name = key.partition(".")[2]
            yield f"{_NAMES.get(name, name.replace('_', ' '))} {_word(value)}"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
