"""One training step: its memory by component over the step's allocations, and the largest tensors at the peak."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import CancelledError, VramtopError
from vramtop.estimator.common.sizes import format_gib

from ...background.latest_only_task import LatestOnlyTask
from ...draw.text_output import printable
from ...widgets.budget_view import peak_line
from ...widgets.keys_line import KeysLine
from ...widgets.legend import legend_line
from ...widgets.static_lines import StaticLines
from .step_graph import StepGraph
from .step_graph_rows import CARD, RESERVED, step_top_bytes
from .tensor_table import tensor_lines

_UNTRACED = "The step was not traced: "
_WIDE = 110
WAITING = "Not traced yet: below, the phases of the closed form, each at its fullest. Tracing goes on."
_NO_TRACE = "There is no traced step of this job: below, the phases of the closed form, each at its fullest."


class StepScreen(Screen[None]):
    """Draws a budget; a deeper one that comes later is drawn in its place.

    Args:
        budget: what is known at the beginning.
        card_bytes: the memory of the card that the job is held against; None: not known.
        refine: a deeper estimate of the same job, called on a thread of its own where ``budget`` has no timeline; None:
            whoever opened the screen brings it with ``take`` or ``give_up``, or there is none.
        waiting: a deeper one is on its way.
        ascii_only: draw with ASCII characters.
    """

    TITLE = "Step"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,t", "dismiss", "Back", key_display="Esc"),
    ]
    DEFAULT_CSS = """
    StepScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    StepScreen #facts { padding: 0 1; text-wrap: wrap; }
    StepScreen #state { padding: 0 1; text-wrap: wrap; color: $text-warning; display: none; }
    StepScreen #state.-told { display: block; }
    StepScreen StepGraph { height: 3fr; margin: 0 1; }
    StepScreen #lines { padding: 0 1; height: 1; }
    StepScreen #letters { padding: 0 1; height: 1; }
    StepScreen #tensors { height: 2fr; min-height: 3; padding: 0 1; scrollbar-size-vertical: 1; }
    """

    @dataclass
    class Refined(Message):
        """The deeper estimate has come, or the sentence why there is none."""

        answer: Budget | str

    def __init__(
        self,
        budget: Budget,
        *,
        card_bytes: int | None = None,
        refine: Callable[[], Budget] | None = None,
        waiting: bool = False,
        ascii_only: bool = False,
    ) -> None:
        super().__init__()
        self.budget = budget
        """What is drawn."""
        self._card_bytes = card_bytes
        self._refine = refine if budget.timeline is None else None
        self._state: str | None = WAITING if waiting or self._refine else None
        self._ascii_only = ascii_only
        self._work = LatestOnlyTask("step")
        self._gone = threading.Event()

    def compose(self) -> ComposeResult:
        """Facts, graph, legend, tensors."""
        yield StaticLines(id="title")
        yield StaticLines(id="facts")
        yield StaticLines(id="state")
        yield StepGraph(id="graph", ascii_only=self._ascii_only)
        yield StaticLines(id="lines")
        yield StaticLines(id="letters")
        with VerticalScroll(id="tensors", can_focus=True):
            yield StaticLines(id="table")
        yield KeysLine()

    def on_mount(self) -> None:
        """Draw what there is, and ask for more."""
        self.query_one("#tensors").focus()
        self._draw()
        if self._refine is not None:
            self._work.submit(self._answer)

    def on_unmount(self) -> None:
        """Nobody waits for the answer any more."""
        self._gone.set()
        self._work.interrupt()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self._draw()

    def take(self, budget: Budget, *, waiting: bool = False) -> None:
        """Draw this budget from now on; ``waiting``: a deeper one is on its way."""
        self.budget = budget
        self._state = WAITING if waiting and budget.timeline is None else None
        self._draw()

    def give_up(self, sentence: str) -> None:
        """There will be no deeper budget, and why."""
        self._state = f"{_NO_TRACE} {sentence}"
        self._draw()

    @on(Refined)
    def refined(self, event: Refined) -> None:
        """Draw the deeper budget."""
        if isinstance(event.answer, str):
            self.give_up(event.answer)
        else:
            self.take(event.answer)

    def _answer(self) -> None:
        """Runs on a thread of its own."""
        answer: Budget | str
        try:
            assert self._refine is not None  # noqa: S101 - submitted only where there is one
            answer = self._refine()
        except CancelledError:
            return
        except VramtopError as error:
            answer = error.message
        if not self._gone.is_set():
            self.post_message(self.Refined(answer))

    def _draw(self) -> None:
        if not self.is_mounted or self.size.width == 0:
            return
        budget, width = self.budget, self.size.width - 2
        state = self._state or (None if budget.timeline else _why_untraced(budget))
        self.query_one("#title", StaticLines).show(Content(f"One training step: {printable(budget.job.label)}"))
        self.query_one("#facts", StaticLines).show(peak_line(budget), layout=True)
        box = self.query_one("#state", StaticLines)
        box.set_class(state is not None, "-told")
        box.show(Content(state or ""), layout=True)
        self.query_one(StepGraph).show(budget, card_bytes=self._card_bytes)
        self.query_one("#lines", StaticLines).show(
            Content.styled(self._line_words(), "dim").truncate(width, ellipsis=True)
        )
        self.query_one("#letters", StaticLines).show(legend_line(width, bars=False))
        table = tensor_lines(budget, width=width - 1)
        self.query_one("#table", StaticLines).show(Content("\n").join(table), layout=True)
        self.query_one("#tensors").display = bool(table)

    def _line_words(self) -> str:
        """What the lines are, and what left to right means."""
        budget, wide = self.budget, self.size.width >= _WIDE
        words = ["▲ peak"]
        if budget.timeline:
            cache = "with the allocator's cache" if wide else "with cache"
            device = format_gib(max(budget.timeline.reserved_bytes) + budget.timeline.outside_bytes)
            words.append(f"{RESERVED} {cache}, to {device} GiB")
        if self._card_bytes is not None:
            above = " (above)" if self._card_bytes > step_top_bytes(budget, self._card_bytes) else ""
            words.append(f"{CARD} card {format_gib(self._card_bytes)}{above}")
        order = "allocations in order" if wide else "in order"
        words.append(f"→ {order if budget.timeline else 'phases'}, not time")
        return "  ".join(words)


def _why_untraced(budget: Budget) -> str:
    """The reason among the budget's assumptions, where one was written down."""
    reason = next((sentence for sentence in budget.assumptions if sentence.startswith(_UNTRACED)), "")
    return f"{_NO_TRACE} {reason}".rstrip()
