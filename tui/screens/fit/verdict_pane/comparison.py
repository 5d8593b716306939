"""Two candidates side by side: what each needs, by component, and the difference."""

from collections.abc import Iterator

from textual.content import Content

from vramtop.estimator.budget import Budget
from vramtop.estimator.common import format_gib
from vramtop.estimator.job import job_differences

from ....draw import COMPONENTS, MUTED, VERDICTS, bar_content
from ....keys import shown_key
from ....widgets import budget_bar
from .capacity import Capacity
from .setting_words import settings_words

_NAME_CELLS, _FIGURE_CELLS = 18, 13


def comparison_lines(kept: Budget, now: Budget, capacity: Capacity, *, width: int) -> list[Content]:
    """Return the comparison of candidate A with the job as it is now, B.

    Args:
        kept: the budget of A.
        now: the budget of B.
        capacity: of the GPUs that both are compared with.
        width: of a line, in cells.
    """
    return [*_settings(kept, now), *_bars(kept, now, width=width), *_table(kept, now, capacity)]


def _settings(kept: Budget, now: Budget) -> Iterator[Content]:
    """Yield what differs between the two, in words."""
    keys = f" · {shown_key('fit.keep')} drops A, {shown_key('fit.swap')} goes back to A"
    yield Content.assemble(("A and B", "bold"), (keys, MUTED))
    changes = {key: value for key, value in job_differences(kept.job, now.job).items() if key != "name"}
    back = job_differences(now.job, kept.job)
    if not changes and not back:
        yield Content.styled("B is still the same as A: change a setting to see the difference", MUTED)
        return
    yield Content.assemble(
        ("A  ", "bold"), settings_words({key: value for key, value in back.items() if key != "name"})
    )
    yield Content.assemble(("B  ", "bold"), settings_words(changes))


def _bars(kept: Budget, now: Budget, *, width: int) -> Iterator[Content]:
    """Yield a bar of each by component, on one scale."""
    scale = max(kept.peak.high_bytes, now.peak.high_bytes, 1)
    for name, budget in (("A", kept), ("B", now)):
        bar = bar_content(budget_bar(budget, scale_bytes=scale, width=max(8, width - 3)))
        yield Content.assemble((f"{name}  ", "bold"), bar)


def _table(kept: Budget, now: Budget, capacity: Capacity) -> Iterator[Content]:
    yield Content.styled(_row("GiB at the peak", "A", "B", "B − A"), MUTED)
    for name, mark in COMPONENTS.items():
        sizes = [getattr(budget.peak.components, name) for budget in (kept, now)]
        if any(sizes):
            line = _sizes_row(mark.word, *sizes)
            yield Content.assemble((f"{mark.letter} ", f"bold {mark.colour}"), line[2:])
    yield Content.styled(_sizes_row("need", kept.peak.device_bytes, now.peak.device_bytes), "bold")
    verdicts = [VERDICTS[capacity.verdict(budget)] for budget in (kept, now)]
    words = [f"{mark.word:>{_FIGURE_CELLS}}" for mark in verdicts]
    parts = [(word, f"bold {mark.colour}") for word, mark in zip(words, verdicts, strict=True)]
    yield Content.assemble(f"{'':<{_NAME_CELLS}}", *parts)


def _sizes_row(name: str, a: int, b: int) -> str:
    sign = "+" if b > a else "−" if b < a else ""
    first, second = (format_gib(size, digits=2) if size else "·" for size in (a, b))
    return _row(f"  {name}", first, second, f"{sign}{format_gib(abs(b - a), digits=2)}" if a != b else "same")


def _row(name: str, a: str, b: str, difference: str) -> str:
    return f"{name:<{_NAME_CELLS}}{a:>{_FIGURE_CELLS}}{b:>{_FIGURE_CELLS}}{difference:>{_FIGURE_CELLS}}"
