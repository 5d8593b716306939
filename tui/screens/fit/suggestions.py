"""Suggestions that make a job fit, as a table: a digit, Enter or a click applies one."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from textwrap import wrap
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Blur, Click, Focus
from textual.message import Message

from vramtop.estimator.advice.suggestion_search import Suggestion
from vramtop.estimator.common.errors import Verdict
from vramtop.estimator.common.sizes import format_gib

from ...draw.labels import MUTED
from ...draw.palette import VERDICTS
from ...job.form.sharding import sharding_word
from ...keys import bind, shown_key
from ...widgets.content_lines import StaticLines

SUGGESTION_KEYS: list[BindingType] = [
    bind("list.up", "move(-1)"),
    Binding("k", "move(-1)", show=False),
    bind("list.down", "move(1)"),
    Binding("j", "move(1)", show=False),
    bind("fit.apply", "apply", "Apply"),
]
_NAMES = {
    "training.micro_batch": "micro-batch",
    "training.activation_checkpointing": "checkpointing",
    "training.gradient_accumulation": "accumulation",
    "parallel.cpu_offload": "CPU offload",
    "parallel.load_on_rank_zero": "load on rank 0",
    "target.gpu": "on",
}
_SENTENCES: Mapping[tuple[str, Any], str] = {
    ("training.activation_offload", True): "activations in CPU RAM",
    ("training.activation_offload", False): "activations on the GPU",
    ("training.loss", "fused-linear"): "fused loss",
    ("training.loss", "chunked"): "chunked loss",
    ("parallel.cpu_offload", "optimizer"): "optimizer in CPU RAM",
    ("parallel.cpu_offload", "all"): "weights and optimizer in CPU RAM",
}
_STRATEGY, _RANKS = "parallel.strategy", ("parallel.data_shard", "parallel.data_replicate")


def settings_words(changes: Mapping[str, Any]) -> Iterator[str]:
    """Yield changed settings in words."""
    yield from _adapters(changes)
    yield from _sharding(changes)
    for key, value in changes.items():
        if key.partition(".")[0] == "lora" or key in (_STRATEGY, *_RANKS):
            continue
        name = _NAMES.get(key) or key.rpartition(".")[2].replace("_", " ")
        yield _SENTENCES.get((key, value if isinstance(value, str | bool) else None)) or f"{name} {_word(value)}"


def _adapters(changes: Mapping[str, Any]) -> Iterator[str]:
    if changes.get("lora", ...) is None:
        yield "full fine-tuning"
        return
    adapters = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("lora.")}
    if not adapters:
        return
    words = ["QLoRA" if adapters.get("quantization", "none") != "none" else "LoRA"]
    if "rank" in adapters:
        words.append(f"rank {adapters['rank']}")
    if targets := adapters.get("targets"):
        words.append(f"on {_word(targets)}")
    yield " ".join(words)


def _sharding(changes: Mapping[str, Any]) -> Iterator[str]:
    gpus = max((changes[key] for key in _RANKS if key in changes), default=None)
    if _STRATEGY in changes:
        word = sharding_word(changes[_STRATEGY])
        yield "no sharding" if word == "none" else f"{word} over {gpus} GPUs" if gpus else word
    elif gpus:
        yield f"over {gpus} GPUs" if gpus > 1 else "on 1 GPU"


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "default"
    return (
        ",".join(map(str, value)) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else str(value)
    )


HEADINGS: dict[Verdict, str] = {
    "fits": "Changes that make it fit, least costly first",
    "tight": "Nothing makes it fit; changes that make it tight",
    "does_not_fit": "Nothing makes it fit; closest changes",
    "unknown": "Changes that make it smaller",
}
_KEYS_HINTS = (" · 1-9 applies, {undo} undoes", " · 1-9 applies", "")
_OUTDATED_HINTS = (" · for the previous settings; searching again", " · for the previous settings", " · outdated", "")
_MARK_CELLS, _NEED_CELLS = 4, 6


class Suggestions(StaticLines, can_focus=True):
    """A table of suggestions, hidden while it is empty.

    It is drawn as one text: it changes with every key press in the form, and a list of widgets is slow to lay out.
    """

    BINDINGS: ClassVar[list[BindingType]] = SUGGESTION_KEYS
    DEFAULT_CSS = """
    Suggestions { margin: 1 0 0 0; display: none; }
    """

    @dataclass
    class Applied(Message):
        """The user applies this suggestion."""

        suggestion: Suggestion

    suggestions: tuple[Suggestion, ...] = ()
    """The suggestions that are shown."""
    _width = 0
    _outdated = False
    _cursor = 0
    _contents: Sequence[Content] = ()
    """The heading, and one text per suggestion, of one or more lines."""

    def show_suggestions(self, suggestions: Sequence[Suggestion], *, width: int, outdated: bool = False) -> None:
        """Show these suggestions as a table.

        Args:
            suggestions: in display order.
            width: of a line, in cells.
            outdated: they are for settings that have changed since, which the heading says.
        """
        self.suggestions, self._width, self._outdated = tuple(suggestions), width, outdated
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
        ends = list(accumulate(content.plain.count("\n") + 1 for content in self._contents))
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
        heading = HEADINGS[self.suggestions[0].verdict]
        hints = [hint.format(undo=shown_key("fit.undo")) for hint in _KEYS_HINTS]
        hints = list(_OUTDATED_HINTS) if self._outdated else hints
        hint = next((hint for hint in hints if len(heading) + len(hint) <= self._width), "")
        title = Content.assemble((heading, "bold"), (hint, MUTED))
        change, _ = _text_widths(self._width)
        head = f"{'':<{_MARK_CELLS}}{'need':>{_NEED_CELLS}}  {'change':<{change}}  cost"
        self._contents = [Content("\n").join([title, Content.styled(head, MUTED)])]
        for at, suggestion in enumerate(self.suggestions):
            content = suggestion_content(at + 1, suggestion, width=self._width)
            self._contents.append(content.stylize("reverse") if at == cursor else content)
        self.show(Content("\n").join(self._contents), layout=True)


def suggestion_content(number: int, suggestion: Suggestion, *, width: int) -> Content:
    """Return a suggestion as a row of the table, of one line or more: number, need, change, cost."""
    mark = VERDICTS[suggestion.verdict]
    change_width, cost_width = _text_widths(width)
    change = wrap(", ".join(settings_words(suggestion.changes)), change_width)
    cost = wrap(suggestion.why, cost_width)
    need = f"{format_gib(suggestion.budget.peak.device_bytes):>{_NEED_CELLS}}"
    head = Content.assemble((f"{number} ", "bold"), (f"{mark.letter} ", f"bold {mark.colour}"), (need, "bold"))
    margin = Content(" " * (_MARK_CELLS + _NEED_CELLS))
    lines = [
        Content.assemble(head if at == 0 else margin, f"  {left:<{change_width}}  ", (right, MUTED))
        for at, (left, right) in enumerate(zip_longest(change, cost, fillvalue=""))
    ]
    return Content("\n").join(lines)


def _text_widths(width: int) -> tuple[int, int]:
    """Return the widths of change and cost."""
    room = max(24, width - _MARK_CELLS - _NEED_CELLS - 4)
    return room - room * 9 // 20, room * 9 // 20
