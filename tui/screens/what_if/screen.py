"""The what-if screen: memory of a job over its micro-batch or sequence length, compared with the GPU's memory."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen

from vramtop.estimator.common import format_gib

from ...draw import VERDICTS, badge
from ...widgets import KeysLine, StaticLines
from ..base import is_ascii_only
from .keys import WHAT_IF_KEYS
from .plot import WhatIfPlot
from .sweep import AXES, Axis, Sweep, point_words

_NEED_SWEEPS = frozenset(("next_setting", "step", "largest", "reset", "apply"))
_WAITING = "… estimating the job over its micro-batch and sequence length"


class WhatIfScreen(Screen[tuple[Axis, int] | None]):
    """Plots one sweep at a time, with a cursor; returns the setting and the value that the user applies.

    Args:
        sweeps: one for each setting; none: they are being estimated, and ``show_sweeps`` brings them.
        label: the job's name.
    """

    TITLE = "What-if"
    BINDINGS: ClassVar[list[BindingType]] = WHAT_IF_KEYS
    DEFAULT_CSS = """
    WhatIfScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    WhatIfScreen #facts { padding: 0 1; text-wrap: wrap; }
    WhatIfScreen WhatIfPlot { margin: 1 1 0 1; }
    WhatIfScreen #legend { padding: 0 1; height: 1; }
    """

    def __init__(self, sweeps: Sequence[Sweep], *, label: str) -> None:
        super().__init__()
        self._sweeps = tuple(sweeps)
        self._label = label
        self._shown = 0
        """Index of the sweep that is plotted."""
        self._cursor: int | None = None
        """The value under the cursor; None: the job's current value."""

    @property
    def sweep(self) -> Sweep:
        """The sweep that is plotted."""
        return self._sweeps[self._shown]

    def compose(self) -> ComposeResult:
        """The figures, the plot, and its legend."""
        yield StaticLines(id="title")
        yield StaticLines(id="facts")
        yield WhatIfPlot(id="plot", ascii_only=is_ascii_only(self))
        yield StaticLines(id="legend")
        yield KeysLine(show_command_palette=False)

    def on_resize(self, _: Resize) -> None:
        """Draw for the new size."""
        self._draw()

    @property
    def is_waiting(self) -> bool:
        """True until there are sweeps."""
        return not self._sweeps

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002 - Textual's
        """Without sweeps there is nothing to choose from: those keys are dim."""
        return None if self.is_waiting and action in _NEED_SWEEPS else True

    def show_sweeps(self, sweeps: Sequence[Sweep]) -> None:
        """Plot these sweeps: they are there at last, or the GPUs have changed."""
        self._sweeps = tuple(sweeps)
        self.refresh_bindings()
        if self.query("#title"):  # new sweeps may arrive before the screen is composed, or after it is closed
            self._draw()

    def action_next_setting(self) -> None:
        """Plot the other setting."""
        self._shown = (self._shown + 1) % len(self._sweeps)
        self._cursor = None
        self._draw()

    def action_step(self, by: int) -> None:
        """Move the cursor by this number of values."""
        values = [point.value for point in self.sweep.points]
        at = values.index(self._value) if self._value in values else 0
        self._cursor = values[min(len(values) - 1, max(0, at + by))]
        self._draw()

    def action_largest(self) -> None:
        """Move the cursor to the largest value that fits, or else to the largest tight one."""
        found = self.sweep.largest or self.sweep.largest_tight
        if found is None:
            self.notify(f"No {AXES[self.sweep.axis]} fits.", severity="warning")
            return
        self._cursor = found.value
        self._draw()

    def action_reset(self) -> None:
        """Move the cursor back to the job's current value."""
        self._cursor = None
        self._draw()

    def action_apply(self) -> None:
        """Return the value under the cursor."""
        self.dismiss((self.sweep.axis, self._value))

    @property
    def _value(self) -> int:
        return self.sweep.current_value if self._cursor is None else self._cursor

    def _draw(self) -> None:
        self.query_one("#plot").visible = self.query_one("#legend").visible = not self.is_waiting
        if self.is_waiting:
            self.query_one("#title", StaticLines).show(Content(f"What-if: {self._label}"))
            self.query_one("#facts", StaticLines).show(Content(_WAITING), layout=True)
            return
        sweep = self.sweep
        title = f"What-if: {self._label} with another {AXES[sweep.axis]}"
        self.query_one("#title", StaticLines).show(Content(title))
        self.query_one("#facts", StaticLines).show(Content("\n").join(facts(sweep, self._value)), layout=True)
        self.query_one("#plot", WhatIfPlot).show(sweep, cursor=self._value)
        self.query_one("#legend", StaticLines).show(self._legend())

    def _legend(self) -> Content:
        limit, total, high = ("=", "-", ".") if is_ascii_only(self) else ("━", "╌", "·")
        words = f"{limit} available  {total} the GPU  {high} upper bound"
        marks = (VERDICTS[name] for name in ("fits", "tight", "does_not_fit"))
        fills = dict(zip(("fits", "tight", "does not fit"), marks, strict=True))
        parts = [(f"  {mark.letter} {word}", mark.colour) for word, mark in fills.items()]
        return Content.assemble((words, "dim"), *parts)


def facts(sweep: Sweep, value: int) -> list[Content]:
    """Return the figures: the value under the cursor, the largest value that fits, and the GPU's memory."""
    lines = []
    point = sweep.at(value)
    if point is not None:
        lines.append(Content.assemble(badge(VERDICTS[point.verdict], point.verdict), f" {point_words(sweep, point)}"))
    largest, tight = sweep.largest, sweep.largest_tight
    name = AXES[sweep.axis]
    if largest is not None:
        beyond = tight is not None and tight.value > largest.value
        more = f"; up to {tight.value:,} it is tight" if beyond and tight else ""
        end = sweep.points[-1].value
        sentence = (
            f"every {name} up to {end:,} fits" if largest.value == end else f"fits up to {name} {largest.value:,}"
        )
        lines.append(Content(f"{sentence}{more}"))
    elif tight is not None:
        lines.append(Content(f"tight up to {name} {tight.value:,}; none surely fits"))
    else:
        lines.append(Content(f"no {name} fits"))
    limits = sweep.limits
    if limits.available_bytes is not None and limits.gpu_bytes is not None:
        can = f"{format_gib(limits.available_bytes)} of {format_gib(limits.gpu_bytes)} GiB available"
        lines.append(Content.styled(f"{can} on the GPU with the least available memory", "dim"))
    return lines
