"""The verdict on a job that is being typed: will it fit, on which GPUs, what it takes, and how sure that is."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from vramtop.estimator.budget import Budget
from vramtop.monitor.fit import Room, fit

from .budget_view import deeper, gpu_legend, gpu_lines, headline, model_lines, peak_line, phase_table, remark_lines
from .lines import Lines

_NO_GPUS = "There is no GPU here to hold it against: choose a card below (F3)."
_OLD = "Below: the last settings that made sense."


class VerdictView(VerticalScroll):
    """Shows the newest budget against the GPUs; when the settings make no sense, the last one, dimmed and marked."""

    DEFAULT_CSS = """
    VerdictView { padding: 0 1; scrollbar-size-vertical: 1; }
    VerdictView Static { height: auto; text-wrap: wrap; }
    VerdictView #doubt { display: none; color: $text-error; }
    VerdictView.-doubtful #doubt { display: block; }
    VerdictView.-doubtful #answer { text-opacity: 50%; }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.budget: Budget | None = None
        """The newest budget; the last good one while the settings make no sense."""
        self._rooms: tuple[Room, ...] = ()

    @property
    def doubtful(self) -> bool:
        """What is shown is not the verdict on the settings as they are now."""
        return self.has_class("-doubtful")

    def compose(self) -> ComposeResult:
        """What is wrong, and the verdict."""
        yield Static(id="doubt", markup=False)
        yield Lines(id="answer")

    def take(self, budget: Budget) -> None:
        """This is the budget from now on, unless there is a better one of the same job already."""
        if deeper(budget, self.budget):
            self.budget = budget
        self.remove_class("-doubtful")

    def doubt(self, sentence: str) -> None:
        """The settings make no sense; say why, and keep the last verdict, marked as old."""
        mark = f"✗ {sentence}"
        self.query_one("#doubt", Static).update(f"{mark}\n{_OLD}" if self.budget else mark)
        self.add_class("-doubtful")

    def judge(self, rooms: Sequence[Room]) -> None:
        """Hold the budget against these GPUs."""
        self._rooms = tuple(rooms)
        self._draw()

    def on_resize(self, _: Resize) -> None:
        """Draw for the new width."""
        self._draw()

    def _draw(self) -> None:
        if self.budget is None or self.size.width == 0:
            return
        content = verdict_content(self.budget, self._rooms, width=self.scrollable_content_region.width)
        self.query_one("#answer", Lines).show(content, layout=True)


def verdict_content(budget: Budget, rooms: Sequence[Room], *, width: int) -> Content:
    """The whole answer, the most important first."""
    lines: list[Content] = []
    if rooms:
        found = fit(budget, rooms)
        lines += [headline(found), peak_line(budget), Content()]
        lines += [*gpu_lines(found, budget, width=width), gpu_legend()]
    else:
        lines += [Content(_NO_GPUS), peak_line(budget)]
    lines += [Content(), *model_lines(budget), Content(), *phase_table(budget)]
    remarks = remark_lines(budget)
    return Content("\n").join([*lines, Content(), *remarks] if remarks else lines)
