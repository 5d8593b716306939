"""What if: the need of a job over its micro-batch or its sequence length, against what the card gives."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Resize
from textual.screen import Screen

from vramtop.estimator.common.sizes import format_gib

from ...draw.labels import badge
from ...draw.palette import VERDICTS
from ...widgets.keys_line import KeysLine
from ...widgets.static_lines import StaticLines
from .sweep import AXES, Axis, Sweep, point_words
from .what_if_plot import WhatIfPlot


class WhatIfScreen(Screen[tuple[Axis, int] | None]):
    """Shows sweeps, one at a time, with a cursor over their values; returns the value that the user takes.

    Args:
        sweeps: one for each setting.
        label: the job's name.
        ascii_only: draw with ASCII characters.
    """

    TITLE = "What if"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f7,i", "dismiss(None)", "Back", key_display="Esc"),
        Binding("tab,m,s", "axis", "Other setting", key_display="Tab", priority=True),
        Binding("left", "step(-1)", "Less", key_display="←"),
        Binding("right", "step(1)", "More", key_display="→"),
        Binding("pageup", "step(-8)", show=False),
        Binding("pagedown", "step(8)", show=False),
        Binding("l", "largest", "Largest"),
        Binding("home", "present", "Now", key_display="Home"),
        Binding("enter", "take", "Take it", key_display="Enter"),
    ]
    DEFAULT_CSS = """
    WhatIfScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    WhatIfScreen #facts { padding: 0 1; text-wrap: wrap; }
    WhatIfScreen WhatIfPlot { margin: 1 1 0 1; }
    WhatIfScreen #signs { padding: 0 1; height: 1; }
    """

    def __init__(self, sweeps: Sequence[Sweep], *, label: str, ascii_only: bool = False) -> None:
        super().__init__()
        self._sweeps = tuple(sweeps)
        self._label = label
        self._ascii_only = ascii_only
        self._at = 0
        self._cursor: int | None = None
        """The value under the cursor; None: the job's own."""

    @property
    def swept(self) -> Sweep:
        """What is shown."""
        return self._sweeps[self._at]

    def compose(self) -> ComposeResult:
        """Facts, plot, legend."""
        yield StaticLines(id="title")
        yield StaticLines(id="facts")
        yield WhatIfPlot(id="plot", ascii_only=self._ascii_only)
        yield StaticLines(id="signs")
        yield KeysLine(show_command_palette=False)

    def on_resize(self, _: Resize) -> None:
        """Draw for the new size."""
        self._draw()

    def take(self, sweeps: Sequence[Sweep]) -> None:
        """The GPUs have changed: show these from now on."""
        self._sweeps = tuple(sweeps)
        self._draw()

    def action_axis(self) -> None:
        """Show the other setting."""
        self._at = (self._at + 1) % len(self._sweeps)
        self._cursor = None
        self._draw()

    def action_step(self, by: int) -> None:
        """Move the cursor by so many values."""
        values = [point.value for point in self.swept.points]
        at = values.index(self._value) if self._value in values else 0
        self._cursor = values[min(len(values) - 1, max(0, at + by))]
        self._draw()

    def action_largest(self) -> None:
        """Go to the largest value that fits for sure; where there is none, to what is tight."""
        found = self.swept.largest or self.swept.largest_tight
        if found is None:
            self.notify(f"No {AXES[self.swept.axis]} of this job fits, however small.", severity="warning")
            return
        self._cursor = found.value
        self._draw()

    def action_present(self) -> None:
        """Go back to the value as it is."""
        self._cursor = None
        self._draw()

    def action_take(self) -> None:
        """Set the job to this value."""
        self.dismiss((self.swept.axis, self._value))

    @property
    def _value(self) -> int:
        return self.swept.present if self._cursor is None else self._cursor

    def _draw(self) -> None:
        swept = self.swept
        title = f"What if {self._label} had another {AXES[swept.axis]}?"
        self.query_one("#title", StaticLines).show(Content(title))
        self.query_one("#facts", StaticLines).show(Content("\n").join(facts(swept, self._value)), layout=True)
        self.query_one("#plot", WhatIfPlot).show(swept, cursor=self._value)
        self.query_one("#signs", StaticLines).show(self._signs())

    def _signs(self) -> Content:
        limit, card, high = ("=", "-", ".") if self._ascii_only else ("━", "╌", "·")
        words = f"{limit} can be had  {card} the card  {high} upper bound"
        marks = (VERDICTS[name] for name in ("fits", "tight", "does_not_fit"))
        fills = dict(zip(("fits", "tight", "does not fit"), marks, strict=True))
        parts = [(f"  {mark.letter} {word}", mark.colour) for word, mark in fills.items()]
        return Content.assemble((words, "dim"), *parts)


def facts(swept: Sweep, value: int) -> list[Content]:
    """The value under the cursor, what fits at most, and what the card gives."""
    lines = []
    point = swept.at(value)
    if point is not None:
        lines.append(Content.assemble(badge(VERDICTS[point.verdict], point.verdict), f" {point_words(swept, point)}"))
    largest, tight = swept.largest, swept.largest_tight
    name = AXES[swept.axis]
    if largest is not None:
        beyond = tight is not None and tight.value > largest.value
        more = f"; up to {tight.value:,} it is tight" if beyond and tight else ""
        end = swept.points[-1].value
        said = f"every {name} up to {end:,} fits" if largest.value == end else f"fits up to {name} {largest.value:,}"
        lines.append(Content(f"{said}{more}"))
    elif tight is not None:
        lines.append(Content(f"tight up to {name} {tight.value:,}; none fits for sure"))
    else:
        lines.append(Content(f"no {name} fits, however small"))
    limits = swept.limits
    if limits.available_bytes is not None and limits.card_bytes is not None:
        can = f"{format_gib(limits.available_bytes)} of {format_gib(limits.card_bytes)} GiB can be had"
        lines.append(Content.styled(f"{can} on the fullest GPU it would go to", "dim"))
    return lines
