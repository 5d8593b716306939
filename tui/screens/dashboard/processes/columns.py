"""Columns of the process table: what each shows of a process and of a group, and the user's choice of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, ClassVar, Literal

from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.host.kinds import kind_label
from vramtop.monitor.snapshot.snapshot import DRIVER_FIGURES, Demand, ProcessFigure, ProcessKey, gpu_list

from ....draw.labels import (
    MUTED,
    CellText,
    Tone,
    difference_label,
    figure_text,
    format_duration,
    gpu_labels,
    severity_rank,
    shorten,
    status_tone,
    worst_row,
)
from ....draw.palette import STATUSES
from ....draw.text_output import printable
from ....keys import bind, shown_key
from ....widgets.row_table import ContentLines, StaticLines

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from vramtop.estimator.job.job import Job
    from vramtop.monitor.board.board import ProcessGroup, ProcessRow

# A column of the process table as plain data.


ColumnName = Literal[
    "PID", "USER", "GPU", "VRAM GiB", "MAX", "SPREAD", "BUDGET", "DIFF", "STATUS", "SM %", "BW %", "CPU %", "RAM GiB",
    "THR", "UP", "RUNS IN", "COMMAND",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table."""

    name: ColumnName
    about: str
    """What it shows, in a few words."""
    width: int
    """Cells; the last column of text takes the rest of the line."""
    right: bool = False
    """Right-aligned, for numbers."""
    importance: int
    """Unless the user chooses, columns are taken from the lowest number on, until the line is full."""
    is_default: bool = True
    """Shown unless the user chooses."""
    of_groups: bool = False
    """Shown only while there is a group of several rows."""
    figure: ProcessFigure | None = None
    """The figure that it shows, which is read only while it does."""
    process: Callable[[ProcessRow], CellText]
    """Returns the cell of one process on one GPU."""
    group: Callable[[ProcessGroup], CellText]
    """Returns the cell of a group of several rows."""


# Texts of the cells of the process table that take more than a format: of one process, and of a group of processes.


_USER_WIDTH = 9
_MAX_GPU_PARTS = 3
"""Maximum of ranges of GPUs that are named; of more, only the first are."""
STATUS_WIDTH = 12
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
_PYTHON_OPTION = re.compile(r"-([bBdEiIOPqsSuvx]+|[WX].*)")
"""Options before the script that say nothing about what runs."""


def process_user(row: ProcessRow) -> str:
    """Return the user of a process."""
    return user_text(row.process.user)


def user_text(user: str | None) -> str:
    """Return the name of a user."""
    return shorten(printable(user or "n/a"), _USER_WIDTH)


def process_status(row: ProcessRow) -> CellText:
    """Return the status of a process; without a budget, why there is none."""
    if row.gpu.is_stale and row.ended_at is None:
        return CellText("! old figure", "over")
    if row.comparison:
        return CellText(_status_words(row), status_tone(row))
    return CellText(_reason(row), "muted")


def _reason(row: ProcessRow) -> str:
    return row.no_budget_reason or ("? no budget" if row.problem else "-")


def process_command(row: ProcessRow, *, label: bool = True) -> str:
    """Return the command line of a process, after the label of its job and what it is.

    Args:
        row: the process.
        label: name the job, and what it is.
    """
    process = row.process
    command = printable(without_folder(process.command or process.name or process.note or "n/a"))
    if process.note and process.command:
        command = f"({printable(process.note)}) {command}"
    return f"{what}: {command}" if label and (what := _what(row, row.job)) else command


def without_folder(command: str) -> str:
    """Return a command line without what is the same for most and leaves little room: folders, and Python's options."""
    words = command.split(" ")
    if words[0].startswith("/"):
        words[0] = words[0].rpartition("/")[2]
    if _PYTHON.fullmatch(words[0].rpartition("/")[2]):
        while len(words) > 1 and _PYTHON_OPTION.fullmatch(words[1]):
            del words[1 : 3 if words[1] in ("-W", "-X") else 2]
        if len(words) > 1 and words[1].startswith("/"):
            words[1] = words[1].rpartition("/")[2] or words[1]
    return " ".join(words)


def figure_tone(row: ProcessRow) -> Tone:
    """Return the tone of a figure that was read from the driver."""
    return "muted" if row.gpu.is_stale else "plain"


def group_count(group: ProcessGroup) -> str:
    """Return the number of its processes; of a single one on several GPUs its pid."""
    count = len(group.process_keys)
    return str(group.rows[0].process.pid) if count == 1 else f"{count} procs"


def group_user(group: ProcessGroup) -> str:
    """Return the user of its processes, or how many users they have."""
    users = {row.process.user for row in group.rows}
    return process_user(group.rows[0]) if len(users) == 1 else f"{len(users)} users"


def group_gpus(group: ProcessGroup) -> str:
    """Return its GPUs in the shortest form: ``0-7``."""
    return short_gpu_list(gpu_labels(group.rows))


def short_gpu_list(labels: Iterable[str]) -> str:
    """Return GPUs without blanks: ``0,2,4-7``."""
    return gpu_list(labels, most=_MAX_GPU_PARTS).replace(", ", ",")


def group_used(group: ProcessGroup) -> CellText:
    """Return the memory of all its processes; ``≥`` if some of them are of unknown size."""
    size = group.used_bytes
    words = format_gib(size) if size is None or not group.has_unknown_sizes else f"≥{format_gib(size)}"
    return CellText(words, "muted" if group.is_stale else "plain")


def group_status(group: ProcessGroup) -> CellText:
    """Return the worst status of its processes, and how many of them have it if not all have."""
    if group.is_stale:
        return CellText("! old figure", "over")
    worst = worst_row(group.rows)
    if worst is None:
        return _common_reason([_reason(row) for row in group.rows])
    rank = severity_rank(worst)
    compared = [row for row in group.rows if row.comparison]
    count = sum(severity_rank(row) == rank for row in compared)
    status = _status_words(worst)
    counted = f"{status} {count}/{len(compared)}"
    fits = count < len(compared) and len(counted) <= STATUS_WIDTH
    return CellText(counted if fits else status, status_tone(worst))


def _common_reason(reasons: Sequence[str]) -> CellText:
    """Return why the most of a group have no budget; ``…`` says that others have another reason, or are being read."""
    counts = Counter(reason for reason in reasons if not reason.endswith("…"))
    if not counts:
        return CellText(reasons[0], "muted")
    words, count = counts.most_common(1)[0]
    return CellText(shorten(words if count == len(reasons) else f"{words} …", STATUS_WIDTH), "muted")


def group_command(group: ProcessGroup) -> str:
    """Return the job's label and the words that the command lines of all processes begin with."""
    ranks = group.ranks or group.rows
    words = _common_words(
        tuple([row.process.command or row.process.name or row.process.note or "n/a" for row in ranks])
    )
    what = _what(ranks[0], group.run.job if group.run else None)
    here, elsewhere = len(group.run.pids) if group.run else 0, group.ranks_elsewhere
    there = f" ({here} of {here + elsewhere} ranks here)" if elsewhere else ""
    return f"{what}{there}: {words}" if what else words


def _what(row: ProcessRow, job: Job | None) -> str:
    """Return a job's label, and what a process is: ``Llama-3.1-8B, vLLM server``; the desktop's status says it."""
    named = None if row.kind == "desktop" else kind_label(row.kind, row.program_name)
    return ", ".join(each for each in (printable(job.label) if job and job.has_label else None, named) if each)


def _status_words(row: ProcessRow) -> str:
    if row.comparison is None:
        return "-"
    mark = STATUSES[row.comparison.status]
    word = "OUT OF MEM" if row.comparison.status == "out_of_memory" else mark.short_word  # the column is no wider
    return f"{mark.letter} {word}"


@lru_cache(512)
def _common_words(commands: tuple[str, ...]) -> str:
    different = [without_folder(command) for command in dict.fromkeys(commands)]
    words: list[str] = []
    for column in zip(*(command.split() for command in different), strict=False):
        if len(set(column)) > 1:
            break
        words.append(column[0])
    return printable(different[0] if len(different) == 1 else " ".join([*words, "…"]))


# Columns of figures that are read only while they are shown: of a process, and of a group as sum or mean.


def is_figure(name: ColumnName) -> bool:
    """Return True for a column of a figure that is read only while it is shown."""
    return name in _FIGURES


def figure_demand(columns: Iterable[ColumnName], sorted_by: ColumnName, processes: Iterable[ProcessKey]) -> Demand:
    """Return what readings are to contain for a table.

    Args:
        columns: those that are shown.
        sorted_by: the column by which all of its rows are sorted.
        processes: those in sight.
    """
    figures = frozenset(_FIGURES[name] for name in columns if name in _FIGURES)
    if not figures:
        return Demand()
    of_all = frozenset({_FIGURES[sorted_by]}) if sorted_by in _FIGURES else frozenset[ProcessFigure]()
    return Demand(process_figures=figures, processes=frozenset(processes), figures_of_all=of_all)


def figure_order(figure: ProcessFigure, rows: Iterable[ProcessRow]) -> tuple[bool, float]:
    """Return the sort key of a process or a group by a figure: the highest first, unknown last."""
    value, _ = _total(figure, rows)
    return (value is None, -(value or 0.0))


def _of_process(figure: ProcessFigure, row: ProcessRow) -> CellText:
    text = figure_text(figure, row.process.figures, live=row.is_live)
    return CellText(text, figure_tone(row) if text[0].isdigit() else "muted")


def _of_group(figure: ProcessFigure, group: ProcessGroup) -> CellText:
    """Return the sum over its processes, or of what a GPU does the mean; ``≥`` and ``~`` if some are unknown."""
    value, complete = _total(figure, group.present)
    if value is None:
        texts = {_of_process(figure, row).text for row in group.present}
        return CellText("…" if "…" in texts else "n/a" if texts else "-", "muted")
    number = format_gib(round(value)) if figure == "rss_bytes" else f"{value:.0f}"
    sign = "" if complete else "~" if figure in DRIVER_FIGURES else "≥"
    return CellText(sign + number, "muted" if any(row.gpu.is_stale for row in group.present) else "plain")


def _total(figure: ProcessFigure, rows: Iterable[ProcessRow]) -> tuple[float | None, bool]:
    """Return the mean over GPUs of what the driver measures, else the sum over processes; and whether all are known."""
    listed = list(rows)
    if figure not in DRIVER_FIGURES:
        listed = list({row.process.key: row for row in listed}.values())
    values = [getattr(row.process.figures, figure, None) for row in listed]
    known = [float(value) for value in values if value is not None]
    if not known:
        return None, False
    total = sum(known) / len(known) if figure in DRIVER_FIGURES else sum(known)
    return total, len(known) == len(values)


def _cells(figure: ProcessFigure) -> tuple[Callable[[ProcessRow], CellText], Callable[[ProcessGroup], CellText]]:
    return partial(_of_process, figure), partial(_of_group, figure)


_SM, _BW, _CPU, _RAM, _THREADS = (
    _cells(figure) for figure in ("sm_percent", "bandwidth_percent", "cpu_percent", "rss_bytes", "threads")
)
FIGURE_COLUMNS = (
    Column(
        name="SM %", about="share of time its kernels ran on the GPU; for a run, the mean", width=4, right=True,
        importance=41, is_default=False, figure="sm_percent", process=_SM[0], group=_SM[1],
    ),
    Column(
        name="BW %", about="share of time it read or wrote GPU memory; for a run, the mean", width=4, right=True,
        importance=42, is_default=False, figure="bandwidth_percent", process=_BW[0], group=_BW[1],
    ),
    Column(
        name="CPU %", about="CPU time, 100 is one core; for a run, the sum", width=6, right=True,
        importance=43, is_default=False, figure="cpu_percent", process=_CPU[0], group=_CPU[1],
    ),
    Column(
        name="RAM GiB", about="resident host memory; for a run, the sum", width=7, right=True,
        importance=44, is_default=False, figure="rss_bytes", process=_RAM[0], group=_RAM[1],
    ),
    Column(
        name="THR", about="threads; for a run, the sum", width=5, right=True,
        importance=45, is_default=False, figure="threads", process=_THREADS[0], group=_THREADS[1],
    ),
)  # fmt: skip
_FIGURES: dict[ColumnName, ProcessFigure] = {column.name: column.figure for column in FIGURE_COLUMNS if column.figure}


# The columns of the process table, and which of them fit into a width.
#
# To add a column, write what it shows of a process and of a group, and a row in ``COLUMNS``.


_NOTHING = CellText("")
_UNKNOWN = CellText("-", "muted")
PROCESS_COLUMNS: tuple[ColumnName, ...] = (
    *("PID", "GPU", "VRAM GiB", "COMMAND", "USER", "SM %", "CPU %", "UP", "RAM GiB", "STATUS"),
    *("BW %", "DIFF", "BUDGET"),
)
"""Columns of the view of single processes unless the user chooses: those of other monitors, before the budget's."""
_EVEN_SHARE = 0.02
"""Ranks that differ by no more than this share of the highest hold the same."""


def default_columns() -> tuple[ColumnName, ...]:
    """Return the columns that are shown unless the user chooses, the most important first."""
    shown = (column for column in COLUMNS if column.is_default)
    return tuple(column.name for column in sorted(shown, key=lambda column: column.importance))


def columns_for(
    width: int,
    gap: int = 2,
    *,
    widths: Mapping[ColumnName, int] | None = None,
    groups: bool = False,
    wanted: Sequence[ColumnName] | None = None,
) -> list[Column]:
    """Return the columns that fit, in order; the least important are left out, and the last text fills the width.

    Args:
        width: cells of the table.
        gap: cells between two columns.
        widths: least widths of columns that need more than usual.
        groups: there is a group of several rows.
        wanted: the user's choice, the most important first; None: the default.
    """
    least = widths or {}
    places = {name: place for place, name in enumerate(default_columns() if wanted is None else wanted)}
    every = [
        replace(column, width=max(column.width, least.get(column.name, 0)))
        for column in COLUMNS
        if column.name in places and (groups or not column.of_groups)
    ]
    chosen: set[ColumnName] = set()
    left = width
    for column in sorted(every, key=lambda column: places[column.name]):
        if column.width + gap > left and chosen:
            break
        chosen.add(column.name)
        left -= column.width + gap
    shown = [column for column in every if column.name in chosen]
    widest = next((column for column in reversed(shown) if not column.right), shown[-1])
    return [replace(each, width=max(1, each.width + left)) if each is widest else each for each in shown]


def _used(row: ProcessRow) -> CellText:
    return CellText(format_gib(row.process.used_bytes), figure_tone(row))


def _budget(row: ProcessRow) -> CellText:
    return _UNKNOWN if row.budget is None else CellText(format_gib(row.budget.steady_device_bytes))


def _difference(row: ProcessRow) -> CellText:
    comparison = row.comparison
    return CellText("-" if comparison is None else difference_label(comparison) or "-", status_tone(row))


def _of_highest(cell: Callable[[ProcessRow], CellText]) -> Callable[[ProcessGroup], CellText]:
    """Show a group as its rank that holds the most."""

    def of_group(group: ProcessGroup) -> CellText:
        return _UNKNOWN if (highest := group.highest) is None else cell(highest)

    return of_group


def _spread(group: ProcessGroup) -> CellText:
    size, highest = group.spread_bytes, group.highest
    if size is None or highest is None:
        return _UNKNOWN
    is_even = size <= _EVEN_SHARE * (highest.process.used_bytes or 0)
    return CellText(format_gib(size), "muted" if is_even else "plain")


def _common_place(group: ProcessGroup) -> str:
    """Return where all processes of a group run; of several places, the first and a sign that there are more."""
    places = list(dict.fromkeys(row.process.runs_in or "" for row in group.rows))
    return f"{printable(places[0])}{' …' if len(places) > 1 else ''}"


COLUMNS = (
    Column(
        name="PID", about="process id; for a run, the number of processes", width=7, right=True, importance=0,
        process=lambda row: CellText(str(row.process.pid)),
        group=lambda group: CellText(group_count(group)),
    ),
    Column(
        name="USER", about="whose process it is", width=9, importance=90,
        process=lambda row: CellText(process_user(row)),
        group=lambda group: CellText(group_user(group)),
    ),
    Column(
        name="GPU", about="GPU index or MIG device; for a run, all of them", width=3, right=True, importance=10,
        process=lambda row: CellText(row.gpu.label),
        group=lambda group: CellText(group_gpus(group)),
    ),
    Column(
        name="VRAM GiB", about="GPU memory in use; for a run, the sum", width=8, right=True, importance=20,
        process=_used, group=group_used,
    ),
    Column(
        name="MAX", about="for a run: memory of the rank that holds the most", width=5, right=True,
        importance=50, of_groups=True,
        process=lambda _: _NOTHING, group=_of_highest(_used),
    ),
    Column(
        name="SPREAD", about="for a run: highest rank minus lowest rank", width=6, right=True,
        importance=60, of_groups=True,
        process=lambda _: _NOTHING, group=_spread,
    ),
    Column(
        name="BUDGET", about="predicted memory; for a run, of its highest rank", width=6,
        right=True, importance=80, process=_budget, group=_of_highest(_budget),
    ),
    Column(
        name="DIFF", about="memory in use minus the budget", width=6, right=True, importance=70,
        process=_difference, group=_of_highest(_difference),
    ),
    Column(
        name="STATUS", about="how it compares with its budget, or why there is none", width=STATUS_WIDTH, importance=30,
        process=process_status, group=group_status,
    ),
    *FIGURE_COLUMNS,
    Column(
        name="UP", about="run time", width=7, right=True, importance=100,
        process=lambda row: CellText(format_duration(row.elapsed_seconds)),
        group=lambda group: CellText(format_duration(group.elapsed_seconds)),
    ),
    Column(
        name="RUNS IN", about="Slurm job, pod or container, with its name", width=27, importance=95, is_default=False,
        process=lambda row: CellText(printable(row.process.runs_in or "")),
        group=lambda group: CellText(_common_place(group)),
    ),
    Column(
        name="COMMAND", about="job and command line", width=12, importance=40,
        process=lambda row: CellText(process_command(row)),
        group=lambda group: CellText(group_command(group)),
    ),
)  # fmt: skip
"""In the order in which they are shown."""


# The user's choice of columns, the most important first: read from a setting, changed, and written to it.


def columns_named(names: object) -> tuple[ColumnName, ...] | None:
    """Return the columns that a setting names; names of no column are left out. None: the default."""
    known: dict[object, ColumnName] = {column.name: column.name for column in COLUMNS}
    found = dict.fromkeys(names) if isinstance(names, tuple) else {}
    return tuple(known[name] for name in found if name in known) or None


def all_columns(choice: Sequence[ColumnName]) -> list[ColumnName]:
    """Return all columns: the chosen ones in their order, each other one behind what is more important than it."""
    order = list(choice)
    by_default = [column.name for column in sorted(COLUMNS, key=lambda column: column.importance)]
    for place, name in enumerate(by_default):
        if name not in order:
            order.insert(order.index(by_default[place - 1]) + 1 if place else 0, name)
    return order


def moved(order: Sequence[ColumnName], name: ColumnName, by: int) -> list[ColumnName]:
    """Return the columns with this one nearer to the beginning (-1) or to the end (1)."""
    others = [each for each in order if each != name]
    others.insert(max(0, order.index(name) + by), name)
    return others


# Keys of the choice of columns.


COLUMN_KEYS = [
    bind("columns.keep", "keep", "Keep"),
    bind("processes.columns", "keep", help_text=""),
    bind("app.back", "cancel", "Cancel"),
    bind("columns.switch", "switch", "On/off"),
    bind("columns.more_important", "shift(-1)", "More important"),
    bind("columns.less_important", "shift(1)", "Less important"),
    bind("columns.default", "default", "Default"),
    bind("list.up", "cursor(-1)"),
    bind("list.down", "cursor(1)"),
]


# The dialog in which the columns of the process table are chosen; the table shows each change at once.


_NAME_WIDTH = 9


class ColumnDialog(ModalScreen[tuple[ColumnName, ...] | None]):
    """Lists all columns, the chosen ones first and by importance; returns the choice, or None if it was cancelled.

    Args:
        choice: the columns that are chosen now, the most important first.
        show: shows a choice in the table, and returns the columns for which there was room.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*COLUMN_KEYS]
    DEFAULT_CSS = """
    ColumnDialog { align: center top; }
    ColumnDialog > Vertical {
        width: 84; max-width: 96%; height: auto; background: $surface; border: solid $primary; padding: 0 1;
    }
    ColumnDialog ContentLines { width: 1fr; }
    """

    def __init__(
        self, choice: Sequence[ColumnName], show: Callable[[Sequence[ColumnName]], Collection[ColumnName]]
    ) -> None:
        super().__init__()
        self._before = tuple(choice)
        self._order = all_columns(choice)
        self._chosen = set(choice)
        self._show = show
        self._selected = self._order[0]
        self._with_room: Collection[ColumnName] = ()
        """The columns that the table shows."""

    @property
    def choice(self) -> tuple[ColumnName, ...]:
        """The columns that are chosen now, the most important first."""
        return tuple(name for name in self._order if name in self._chosen)

    def compose(self) -> ComposeResult:
        """The columns, and the keys."""
        with Vertical() as box:
            box.border_title = "Columns of the table"
            yield ContentLines(id="columns")
            yield StaticLines(id="keys")

    def on_mount(self) -> None:
        """Draw the columns."""
        if not self.query("#keys"):  # the app is being closed
            return
        self.query_one(ContentLines).styles.height = len(COLUMNS)
        more, less = shown_key("columns.more_important"), shown_key("columns.less_important")
        keys = (
            f"{shown_key('columns.switch')} on/off · {more} {less} importance · "
            f"{shown_key('columns.default')} default · "
            f"{shown_key('columns.keep')} keeps · {shown_key('app.back')} cancels"
        )
        self.query_one("#keys", StaticLines).show(Content.styled(keys, MUTED))
        self._show_choice()

    def action_cursor(self, by: int) -> None:
        """Go to the next column, or to the previous one."""
        at = self._order.index(self._selected) + by
        self._selected = self._order[max(0, min(len(self._order) - 1, at))]
        self._draw()

    def action_switch(self) -> None:
        """Show the column, or do not; one column stays."""
        self._chosen ^= {self._selected}
        self._chosen = self._chosen or {self._selected}
        self._show_choice()

    def action_shift(self, by: int) -> None:
        """Make the column more or less important."""
        self._order = moved(self._order, self._selected, by)
        self._show_choice()

    def action_default(self) -> None:
        """Choose what is chosen without a setting."""
        self._order, self._chosen = all_columns(default_columns()), set(default_columns())
        self._show_choice()

    def action_keep(self) -> None:
        """Keep the choice."""
        self.dismiss(self.choice)

    def action_cancel(self) -> None:
        """Show again what was shown before."""
        self._show(self._before)
        self.dismiss(None)

    def _show_choice(self) -> None:
        """Show the choice in the table, and here."""
        self._with_room = self._show(self.choice)
        self._draw()

    def _draw(self) -> None:
        """Draw the columns with their places."""
        columns = {column.name: column for column in COLUMNS}
        self.query_one(ContentLines).show_lines([self._line(columns[name]) for name in self._order])

    def _line(self, column: Column) -> Content:
        is_chosen, at_cursor = column.name in self._chosen, column.name == self._selected
        place = f"{self.choice.index(column.name) + 1:>2}" if is_chosen else "  "
        note = "" if not is_chosen or column.name in self._with_room or column.of_groups else "(no room now) "
        line = Content.assemble(
            f"{'▸' if at_cursor else ' '} {place} [{'x' if is_chosen else ' '}] ",
            (f"{column.name:<{_NAME_WIDTH}}", "bold" if is_chosen else ""),
            (note, "$text-warning"),
            (column.about, "" if at_cursor else MUTED),
        )
        return line.stylize("reverse") if at_cursor else line
