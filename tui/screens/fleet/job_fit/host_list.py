"""The hosts of a fleet that a job was judged on, one line each, with a cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.cells import set_cell_size
from textual.content import Content
from textual.message import Message

from vramtop.estimator.common import format_gib

from ....draw import CellText, printable
from ....reports import host_reason, taken_gpus_text
from ....widgets import ContentLines, scroll_to_row
from ....widgets.table_cell import table_cell
from ..columns import FleetColumn, columns_for
from .keys import HOST_LIST_KEYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.binding import BindingType
    from textual.events import Click
    from textual.style import Style

    from vramtop.monitor.board.fit import Verdict
    from vramtop.monitor.fleet.placing import FleetFit, HostFit

_COLUMNS = (
    FleetColumn("HOST", 14),
    FleetColumn("GPU", 7, importance=3),
    FleetColumn("OF", 3, right=True, importance=4),
    FleetColumn("NOW", 9),
    FleetColumn("LATER", 9),
    FleetColumn("EMPTY", 9, importance=2),
    FleetColumn("LEFT", 8, right=True, importance=1, unit="GiB"),
    FleetColumn("CARD", 20),
)
_MARGIN = 2
_GAP = 1
_VERDICTS: dict[Verdict, CellText] = {
    "fits": CellText("✓ fits", "good"),
    "tight": CellText("! tight", "under"),
    "does_not_fit": CellText("✗ no", "over"),
    "unknown": CellText("? unknown", "muted"),
}


def title_line(fit: FleetFit, width: int) -> Content:
    """Return the titles of the columns."""
    columns = _columns(fit, width)
    cells = (f"{each.title:>{each.width}}" if each.right else each.title for each in columns)
    spaced = (set_cell_size(cell, each.width) for cell, each in zip(cells, columns, strict=True))
    return Content.styled((" " * _MARGIN + (" " * _GAP).join(spaced))[:width], "bold")


def host_lines(fit: FleetFit, width: int, *, dark: bool) -> list[Content]:
    """Return a line per host, in the order of the placement; an asterisk marks those where the job should go.

    Args:
        fit: of the job.
        width: cells of a line.
        dark: colours are for a dark ground.
    """
    columns, placed = _columns(fit, width), {host.host for host in fit.placement}
    return [_line(host, columns, width, is_placed=host.host in placed, dark=dark) for host in fit.hosts]


def _columns(fit: FleetFit, width: int) -> tuple[FleetColumn, ...]:
    longest = max((len(host.host) for host in fit.hosts), default=0)
    return columns_for(_COLUMNS, max(1, width - _MARGIN), _GAP, longest=longest)


def _line(host: HostFit, columns: Sequence[FleetColumn], width: int, *, is_placed: bool, dark: bool) -> Content:
    reason = host_reason(host)
    if not host.is_considered:
        name = set_cell_size(printable(host.host), columns[0].width)
        rest = table_cell(CellText(printable(reason or ""), "muted"), width, right=False, dark=dark)
        room = max(0, width - _MARGIN - columns[0].width - _GAP)
        return Content.assemble(f"{' ' * _MARGIN}{name}{' ' * _GAP}", (rest.text[:room], rest.style))
    card = ((host.card.name if host.card else None) or "name n/a").removeprefix("NVIDIA ")
    cells = {
        "HOST": CellText(printable(host.host)),
        "GPU": CellText(taken_gpus_text(host)),
        "OF": CellText(str(host.gpus)),
        "NOW": _VERDICTS[host.now],
        "LATER": _VERDICTS[host.later],
        "EMPTY": _VERDICTS[host.empty],
        "LEFT": CellText("" if host.left_bytes is None else format_gib(host.left_bytes)),
        "CARD": CellText(printable(f"{reason} · {card}" if reason else card), "muted"),
    }
    parts: list[Content | str | tuple[str, str]] = ["* " if is_placed else "  "]
    for column in columns:
        drawn = table_cell(cells[column.name], column.width, right=column.right, dark=dark)
        parts.append((set_cell_size(drawn.text, column.width), drawn.style))
        parts.append(" " * _GAP)
    return Content.assemble(*parts)


class HostList(ContentLines, can_focus=True):
    """The hosts; the cursor follows its host once the user has moved it."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"host-list--cursor"}
    DEFAULT_CSS = """
    HostList { height: 1fr; min-height: 3; overflow-y: auto; }
    HostList > .host-list--cursor { background: $primary 15%; color: $text; }
    HostList:focus > .host-list--cursor { background: $primary 35%; }
    HostList:nocolor > .host-list--cursor { text-style: reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = HOST_LIST_KEYS

    class Opened(Message):
        """The user opens a host."""

        def __init__(self, host: str) -> None:
            super().__init__()
            self.host = host

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self.cursor_row = 0
        self._hosts: tuple[str, ...] = ()
        self._moved = False

    def show_hosts(self, hosts: Sequence[str], lines: Sequence[Content]) -> None:
        """Show these hosts; ``lines`` has one for each."""
        followed = self._hosts[self.cursor_row] if self._moved and self.cursor_row < len(self._hosts) else None
        self._hosts = tuple(hosts)
        row = self._hosts.index(followed) if followed in self._hosts else self.cursor_row
        self._put_cursor(row)
        self.show_lines(lines)

    def action_open(self) -> None:
        """Open the host under the cursor."""
        if self._hosts:
            self.post_message(self.Opened(self._hosts[self.cursor_row]))

    def action_move(self, by: int) -> None:
        """Move the cursor by lines."""
        self._moved = True
        self._put_cursor(self.cursor_row + by)
        scroll_to_row(self, self.cursor_row, page=self.size.height)

    def action_move_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self.action_move(by * max(1, self.size.height - 1))

    def action_move_to(self, row: int) -> None:
        """Move the cursor to the first line, or to the last (-1)."""
        self.action_move((row if row >= 0 else len(self._hosts)) - self.cursor_row)

    def on_click(self, event: Click) -> None:
        """Move the cursor to a clicked line, or open the host if it is there."""
        event.stop()
        row = event.y + self.scroll_offset.y
        if row == self.cursor_row:
            self.action_open()
        elif row < len(self._hosts):
            self.action_move(row - self.cursor_row)

    def _put_cursor(self, row: int) -> None:
        row = max(0, min(row, len(self._hosts) - 1))
        if row != self.cursor_row:
            self._strips.pop(self.cursor_row, None)
            self._strips.pop(row, None)
            self.cursor_row = row
            self.refresh()

    def _style_of(self, at: int) -> Style:
        return self.get_visual_style("host-list--cursor") if at == self.cursor_row else self.visual_style
