"""The dashboard over many hosts: sums over the fleet, and a table of hosts, worst first."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from textual import on
from textual.content import Content
from textual.widgets import Input

from vramtop.estimator.common.sizes import TIB, UNSEEN_BYTES, format_gib, format_size

from ...draw.labels import MUTED, SEPARATOR, CellText, alarm, format_duration, join_to_width, left_and_right, shorten
from ...draw.palette import VERDICTS, budget_size, colour_of, on_colour, status_mark
from ...draw.text_output import printable
from ...keys import bind, shown_key
from ...widgets.budget_view import short_gpu_name
from ...widgets.keys_line import KeysLine
from ...widgets.row_table import FOLD_SIGNS, MARGIN, ROW_BINDINGS, ContentLines, RowTable, StaticLines, column_gap
from ..base import DrawnScreen, FeedStatus, FilterField, feed_signs
from .host_rows import (
    HOST_COLUMNS,
    REST,
    FleetColumn,
    FleetRow,
    HostRows,
    SortKey,
    columns_for,
    gone_text,
    gpu_rows,
    sorted_rows,
    use_bar,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from vramtop.monitor.fleet.fleet import Fleet, FleetGpu, FleetProcess, HostReading, RankFacts

    from ...widgets.row_table import Column

# One host of the fleet as lines: its state, its GPUs with their processes, pending jobs, faults.


_INDENT = "   "


def host_lines(fleet: Fleet, host: HostReading, width: int) -> tuple[Content, list[Content]]:
    """Return the title and the lines of a host; figures that are not of now are faint, below their age.

    Args:
        fleet: the fleet.
        host: the host.
        width: in columns.
    """
    title = Content(printable(f"Host {host.host}"))
    return title, [line.truncate(width, ellipsis=True) for line in _lines(fleet, host, width)]


def process_line(process: FleetProcess, width: int) -> str:
    """Return a process in one line: memory, budget, status, job, rank, user, command."""
    held = "memory n/a" if process.used_bytes is None else f"{format_gib(process.used_bytes):>6} GiB"
    predicted = process.budget_bytes
    budget = "" if predicted is None else f" of {budget_size(predicted, process.status)} predicted"
    mark = status_mark(process.status) if process.status else None
    status = f"{mark.letter} {mark.word}" if mark else process.note or "no budget"
    pid = "" if process.pid is None else f"pid {process.pid}"
    step = "" if process.steps is None else f"step {process.steps:,}"
    device = f"in {process.device}" if process.device else ""
    user = process.user or "user n/a"
    words = (held + budget, status, process.job or "", _rank(process.facts), step, user, pid, device, process.command)
    return shorten(printable(SEPARATOR.join(filter(None, words))), width)


def _rank(facts: RankFacts | None) -> str:
    if facts is None or facts.rank is None:
        return ""
    return f"rank {facts.rank} of {facts.world_size}" if facts.world_size else f"rank {facts.rank}"


def _lines(fleet: Fleet, host: HostReading, width: int) -> Iterator[Content]:
    yield Content(printable(SEPARATOR.join(_facts(host))))
    if not host.is_live:
        yield Content.assemble((f" {host.state} ", alarm()), f" {gone_text(fleet, host)}")
        age = fleet.age_seconds(host)
        if host.gpus and age is not None:
            yield Content("")
            yield Content.styled(f"Readings from {format_duration(age)} ago, not current:", "bold")
    for fault in host.faults:
        yield Content.assemble((" ! ", alarm()), f" {printable(fault)}")
    for anomaly in host.anomalies:
        yield Content.assemble((" ! ", alarm()), f" {printable(anomaly)}")
    lines = (line for gpu in host.gpus for line in _gpu_lines(gpu, width))
    yield from lines if host.is_live else (line.stylize(MUTED) for line in lines)
    if host.pending and host.is_live:
        yield Content("")
        yield Content.styled("Pending jobs", "bold")
    for pending in host.pending if host.is_live else ():
        word = next((mark.word for name, mark in VERDICTS.items() if name == pending.verdict), pending.verdict)
        need = "" if pending.device_bytes is None else f" ({format_gib(pending.device_bytes)} GiB)"
        sentence = f": {pending.sentence}" if pending.sentence else ""
        yield Content(printable(f"{_INDENT}{pending.job}{need}: {word}{sentence}"))


def _facts(host: HostReading) -> list[str]:
    facts = [f"{len(host.gpus)} GPU{'s' * (len(host.gpus) != 1)}"] if host.gpus else ["no known GPU"]
    facts += [f"driver {host.driver_version}"] if host.driver_version else []
    facts += [f"vramtop {host.vramtop_version}"] if host.vramtop_version else []
    if host.time is not None:
        facts.append(f"read at {time.strftime('%H:%M:%S', time.localtime(host.time))} by its clock")
    return facts


def _gpu_head(gpu: FleetGpu, width: int) -> Content:
    """Return a GPU's name and figures; where there is little room without its bar, then with less of its name."""
    used = f"{format_gib(gpu.used_bytes)} of {format_gib(gpu.total_bytes)} GiB in use"
    parts = ["memory n/a"] if gpu.total_bytes is None else [used, f"{format_gib(gpu.free_bytes)} free"]
    if (gpu.committed_bytes or 0) >= UNSEEN_BYTES:
        parts.append(f"{format_gib(gpu.committed_bytes)} committed")
    if (gpu.unattributed_bytes or 0) >= UNSEEN_BYTES:
        parts.append(f"{format_gib(gpu.unattributed_bytes)} unattributed")
    parts += [f"util {gpu.utilisation_percent} %"] if gpu.utilisation_percent is not None else []
    figures = ", ".join(parts)
    label, name = printable(f"GPU {gpu.shown_label}"), printable(short_gpu_name(gpu.name) if gpu.name else "name n/a")
    bar = use_bar(gpu.used_bytes, gpu.total_bytes)
    middle = f"  {bar}  " if bar else "  "
    if len(label) + 2 + len(name) + len(middle) + len(figures) > width:
        middle = "  "
    name = shorten(name, max(0, width - len(label) - 2 - len(middle) - len(figures)))
    return Content.assemble((f"{label}  {name}" if name else label, "bold"), middle, figures)


def _gpu_lines(gpu: FleetGpu, width: int) -> Iterator[Content]:
    yield Content("")
    yield _gpu_head(gpu, width)
    if gpu.fault:
        words = "its driver hangs; the figures are from an earlier reading: " if gpu.is_stale else ""
        yield Content.assemble(_INDENT, (" ! ", alarm()), f" {words}{printable(gpu.fault)}")
    for device in gpu.devices:
        free = f"{format_gib(device.used_bytes)} of {format_gib(device.total_bytes)} GiB in use"
        yield Content(
            printable(f"{_INDENT}MIG device {device.shown_label}  {free}, {format_gib(device.free_bytes)} free")
        )
    if gpu.processes is None:
        yield Content.styled(f"{_INDENT}vramtop cannot read its processes", MUTED)
    for process in gpu.processes or ():
        yield Content(_INDENT + process_line(process, width - len(_INDENT)))
        if process.diverges and process.sentence:
            yield Content.styled(printable(f"{_INDENT}   {process.sentence}"), MUTED)


# Keys of the dashboard over many hosts, and of its screen of a host.


FLEET_KEYS: list[BindingType] = [
    bind("fleet.sort", "sort", "Sort"),
    bind(
        "list.filter", "filter", "Filter",
        help_text="filter by host, job, user, status: every word must match, or user:ann",
    ),
    bind("app.back", "show_all", "Show all"),
]  # fmt: skip
FLEET_TABLE_KEYS: list[BindingType] = [
    bind("list.open", "open", "Open", help_text="open the host: its GPUs, processes, faults"),
    bind("list.unfold", "unfold", "GPUs", help_text="show the GPUs of a host, or hide them", group="GPUs"),
    bind("list.fold", "fold", group="GPUs"),
    *ROW_BINDINGS,
]
DETAIL_KEYS: list[BindingType] = [
    bind("app.back", "app.pop_screen", "Back"),
    bind("list.fold", "app.pop_screen"),
    bind("list.up", "scroll(-1)"),
    bind("list.down", "scroll(1)"),
    bind("list.page_up", "scroll(-10)"),
    bind("list.page_down", "scroll(10)"),
]


# The screen of one host of the fleet, which follows the readings.


class HostScreen(DrawnScreen[None]):
    """Everything that is known about one host.

    Args:
        fleet: the latest one.
        host: name of the host.
    """

    TITLE = "Host"
    BINDINGS: ClassVar[list[BindingType]] = DETAIL_KEYS
    DEFAULT_CSS = """
    HostScreen #title { height: 1; padding: 0 1; text-style: bold; background: $panel; }
    HostScreen ContentLines { height: 1fr; margin: 0 1; overflow-y: auto; }
    """

    def __init__(self, fleet: Fleet, *, host: str) -> None:
        super().__init__()
        self._fleet, self._host = fleet, host

    def compose(self) -> ComposeResult:
        """Its name, and the lines about it."""
        yield StaticLines(id="title")
        yield ContentLines(id="lines")
        yield KeysLine(show_command_palette=False)

    @property
    def lines(self) -> ContentLines:
        """The lines."""
        return self.query_one(ContentLines)

    def on_mount(self) -> None:
        """Show what is known already."""
        self.redraw()

    def show_fleet(self, fleet: Fleet | None, feed: FleetFeed) -> None:
        """Show the same host in a new fleet."""
        del feed
        if fleet is not None:
            self._fleet = fleet
            self.redraw()

    def action_scroll(self, by: int) -> None:
        """Scroll by lines."""
        self.lines.scroll_to(y=self.lines.scroll_offset.y + by, animate=False)

    def draw(self) -> None:
        """Draw all that is known now."""
        width = self.size.width - 3
        host = next((each for each in self._fleet.hosts if each.host == self._host), None)
        title, lines = host_lines(self._fleet, host, width) if host else (Content(self._host), [])
        if host is None:
            lines = [Content.styled("The host is no longer listed.", MUTED)]
        self.query_one("#title", StaticLines).show(title)
        self.lines.show_lines(lines)


# Table of hosts: of thousands of rows it makes the cells of those in sight, and draws those that changed.


SORT_KEYS: tuple[SortKey, ...] = ("STATUS", "HOST", "JOB", "USER", "FREE", "IN USE")
_TITLE_OF_KEY: dict[SortKey, str] = {"JOB": "JOBS", "USER": "JOBS"}
_EMPTY = CellText("")


class FleetTable(RowTable[FleetRow], can_focus=True):
    """The table; its cursor follows its row once the user has moved it."""

    DEFAULT_CSS = "FleetTable { background: $background; }"
    BINDINGS: ClassVar[list[BindingType]] = FLEET_TABLE_KEYS

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.sort_key: SortKey = "STATUS"
        self._fleet: Fleet | None = None
        self._unfolded: set[str] = set()
        self._host_rows = HostRows()

    def show_fleet(self, fleet: Fleet) -> None:
        """Show this fleet."""
        self._fleet = fleet
        self.lay_out()

    def sort_by_next(self) -> None:
        """Sort by the next column."""
        self.sort_key = SORT_KEYS[(SORT_KEYS.index(self.sort_key) + 1) % len(SORT_KEYS)]
        self.lay_out()

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if row := self.selected:
            self.post_message(self.Opened(row))

    def action_unfold(self) -> None:
        """Show the GPUs of the host under the cursor."""
        if (row := self.selected) and row.fold == "folded":
            self._unfolded.add(row.host)
            self._moved = True
            self.lay_out()

    def action_fold(self) -> None:
        """Hide the GPUs of the host under the cursor, or of the GPU under it."""
        if (row := self.selected) and row.host in self._unfolded:
            self._unfolded.discard(row.host)
            above = next((at for at, each in enumerate(self._rows) if each.key == ("host", row.host)), self.cursor_row)
            self.cursor_row = above
            self.lay_out()
            self.move_cursor(row=self.cursor_row)

    def lay_out(self) -> None:
        """Make the rows and choose the columns again."""
        if self._fleet is None:
            return
        gap = column_gap(self.size.width)
        rows = self._host_rows.rows(self._fleet, self._unfolded)
        if words := self.filter_words.lower().split():
            rows = [row for row in rows if row.matches(words)]
        rows = self._with_gpus(sorted_rows(rows, self.sort_key))
        longest = max((len(row.host) for row in rows), default=0)
        room = max(1, self.size.width - MARGIN - self.scrollbar_size_vertical)
        self.show_rows(rows, columns_for(HOST_COLUMNS, room, gap, longest=longest), gap)

    def _with_gpus(self, rows: list[FleetRow]) -> list[FleetRow]:
        every: list[FleetRow] = []
        for row in rows:
            every.append(row)
            if row.fold == "unfolded" and row.of_host is not None:
                every += gpu_rows(row.of_host)
        return every

    def key_of(self, row: FleetRow) -> Hashable:
        """Return the key of a row."""
        return row.key

    def cells_of(self, row: FleetRow) -> Sequence[CellText]:
        """Return the cells of a row; of a host without figures, its name, its state and why."""
        cells = row.make_cells()
        if REST in cells:
            return [*(cells.get(column.name, _EMPTY) for column in self._columns[:2]), cells[REST]]
        return [cells.get(column.name, _EMPTY) for column in self._columns]

    def signs_of(self, row: FleetRow) -> tuple[str, bool]:
        """Return the sign of its fold."""
        return f" {FOLD_SIGNS[row.fold]}", False

    def title_of(self, column: Column) -> str:
        """Return its title; the column by which the rows are sorted has an arrow in place of its unit."""
        by = _TITLE_OF_KEY.get(self.sort_key, self.sort_key)
        return f"{column.name}↓" if column.name == by else column.title if isinstance(column, FleetColumn) else ""

    def sort_by_title(self, column: Column | None) -> None:
        """Sort by the next column, whichever title was clicked."""
        del column
        self.sort_by_next()


# The lines above the fleet's table: source and time of the readings, and the sums over all live hosts.


_ANY_WIDTH = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFeed(FeedStatus):
    """Interval, age and state of the readings of many hosts."""

    source: str
    """What is read, in a few words: ``12 hosts over ssh``."""


def header_line(fleet: Fleet | None, feed: FleetFeed, width: int) -> Content:
    """Return the source at the left, and interval and time of the readings at the right."""
    right: list[Content | str] = [*feed_signs(feed)]
    if fleet is not None:
        right += [f"every {feed.interval:g} s", time.strftime("%H:%M:%S", time.localtime(fleet.time))]
    shown = join_to_width(right, width)
    left = join_to_width(
        [Content.styled("vramtop", "bold"), printable(feed.source)], max(0, width - 3 - shown.cell_length)
    )
    return left_and_right(left, shown, width)


def fleet_line(fleet: Fleet | None, width: int) -> Content:
    """Return the sums over all live hosts; what needs attention comes first. In few cells it has fewer words."""
    if fleet is None:
        return Content.styled("waiting for the first reading …", MUTED)
    line = join_to_width(_sums(fleet, short=False), _ANY_WIDTH)
    return line if line.cell_length <= width else join_to_width(_sums(fleet, short=True), width)


def _sums(fleet: Fleet, *, short: bool) -> list[Content | str]:
    totals, gpus = fleet.totals, fleet.totals.gpus
    parts: list[Content | str] = []
    if totals.silent_hosts:
        every = "" if short else f" of {totals.hosts} hosts"
        parts.append(Content.styled(f" {totals.silent_hosts}{every} silent ", alarm()))
    if gpus.diverging:
        every = "" if short else f" of {gpus.processes} processes"
        parts.append(Content.styled(f" {gpus.diverging}{every} diverging ", f"bold {on_colour(colour_of('bad'))}"))
    parts += [f"{totals.connecting_hosts} connecting"] if totals.connecting_hosts else []
    if not gpus.gpus:
        return [*parts, Content.styled("no GPU has been read yet", MUTED)]
    size = format_size if gpus.total_bytes >= TIB else format_gib  # beyond one TiB each figure has its own unit
    total = "" if short else f" of {format_size(gpus.total_bytes)}"
    unit = " GiB" if short and size is format_gib else ""
    parts.append(Content.assemble((f"free {size(gpus.free_bytes)}", "bold"), f"{unit}{total}"))
    parts.append(f"{'commit' if short else 'committed'} {size(gpus.committed_bytes)}")
    at_least = "≥ " if gpus.unattributed_unknown else ""
    parts.append(f"{'unattr' if short else 'unattributed'} {at_least}{size(gpus.unattributed_bytes)}")
    parts += [f"{gpus.unknown_gpus} GPU{'s' * (gpus.unknown_gpus != 1)} n/a"] if gpus.unknown_gpus else []
    parts.append(f"{gpus.gpus} GPU{'s' * (gpus.gpus != 1)}")
    parts += [f"{totals.hosts} host{'s' * (totals.hosts != 1)}"] if not totals.silent_hosts else []
    return parts


def notice_lines(fleet: Fleet | None, feed: FleetFeed) -> list[Content]:
    """Return what is wrong with the source as a whole."""
    sentences = [feed.failure, fleet.notice if fleet else None]
    return [Content.assemble((" ! ", alarm()), f" {printable(sentence)}") for sentence in sentences if sentence]


@runtime_checkable
class ShowsFleet(Protocol):
    """A screen that receives every new fleet, and the latest one when it becomes active again."""

    def show_fleet(self, fleet: Fleet | None, feed: FleetFeed) -> None:
        """Show this fleet; called on the UI thread, about once an interval. None: there is none yet."""


class FleetScreen(DrawnScreen[None]):
    """The first screen of the dashboard over many hosts."""

    TITLE = "Fleet"
    AUTO_FOCUS = "FleetTable"
    BINDINGS: ClassVar[list[BindingType]] = FLEET_KEYS
    DEFAULT_CSS = """
    FleetScreen #header { height: 1; padding: 0 1; background: $panel; }
    FleetScreen #sums { height: 1; padding: 0 1; }
    FleetScreen #notices { padding: 0 1; }
    FleetScreen #note { height: 1; padding: 0 1; display: none; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._fleet: Fleet | None = None
        self._feed: FleetFeed | None = None

    def compose(self) -> ComposeResult:
        """The sums, the filter, the table."""
        yield StaticLines(id="header")
        yield StaticLines(id="sums")
        yield StaticLines(id="notices")
        yield FilterField("filter: host, job, user, status; user:ann")
        yield StaticLines(id="note")
        yield FleetTable(id="table")
        yield KeysLine()

    @property
    def table(self) -> FleetTable:
        """The table."""
        return self.query_one(FleetTable)

    def show_fleet(self, fleet: Fleet | None, feed: FleetFeed) -> None:
        """Show this fleet."""
        is_new = fleet is not self._fleet
        self._fleet, self._feed = fleet, feed
        with self.app.batch_update():
            self.redraw()
            if fleet is not None and is_new:
                self.table.show_fleet(fleet)
                self._show_note()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer Esc while there is something to show again."""
        del parameters
        return action != "show_all" or bool(self.query_one("#filter").display)

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.table.sort_by_next()

    def action_filter(self) -> None:
        """Type words by which rows are filtered."""
        self.query_one(FilterField).open()

    def action_show_all(self) -> None:
        """Show all rows again."""
        self.query_one(FilterField).close(self.table)

    @on(Input.Changed, "#filter")
    def _filter(self, event: Input.Changed) -> None:
        self.table.filter_by(event.value)
        self._show_note()

    @on(Input.Submitted, "#filter")
    def _keep_filter(self) -> None:
        self.table.focus()

    @on(FleetTable.Opened)
    def _open(self, event: FleetTable.Opened) -> None:
        if self._fleet is None or self._feed is None or self.app.screen is not self:
            return
        self.app.push_screen(HostScreen(self._fleet, host=event.row.host))

    def draw(self) -> None:
        """Draw the lines above the table."""
        if self._feed is None:
            return
        width = self.size.width - 2
        self.query_one("#header", StaticLines).show(header_line(self._fleet, self._feed, width))
        self.query_one("#sums", StaticLines).show(fleet_line(self._fleet, width))
        self.query_one("#notices", StaticLines).show_if_any(notice_lines(self._fleet, self._feed))

    def _show_note(self) -> None:
        """Say so if the filter leaves no row."""
        table, line = self.table, self.query_one("#note", StaticLines)
        note = ""
        if not table.rows and table.filter_words.split():
            note = f"nothing matches {table.filter_words!r}; {shown_key('app.back')} shows all"
        line.show_if_any([Content.styled(note, MUTED)] if note else [])
