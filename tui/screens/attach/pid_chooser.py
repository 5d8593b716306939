"""The choice of a process: a typed pid, or one of the processes that hold GPU memory now."""

from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Label, OptionList, Static
from textual.widgets.option_list import Option

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import Board, ProcessRow

from ...draw.text_output import printable
from ..base import is_view_only


class PidChooser(Vertical):
    """Asks for a process and posts ``Chosen``; shows why the last one could not be read."""

    DEFAULT_CSS = """
    PidChooser { height: 1fr; padding: 1 1 0 1; }
    PidChooser Horizontal { height: 1; margin: 0 0 1 0; }
    PidChooser Input { width: 20; }
    PidChooser #failure { height: auto; display: none; margin: 0 0 1 0; color: $text-error; }
    PidChooser #failure.-shown { display: block; }
    PidChooser OptionList { height: auto; max-height: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    """

    @dataclass
    class Chosen(Message):
        """The user has chosen a process."""

        pid: int

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(id=id)
        self._lines: list[str] = []

    def compose(self) -> ComposeResult:
        """The pid, a line for failures, and the processes on GPUs."""
        picks_only = is_view_only(self)  # else any process of the machine could be read
        with Horizontal():
            yield Label("PID ")
            hint = "one of these" if picks_only else "type it, then press Enter"
            yield Input(placeholder=hint, compact=True, id="pid", disabled=picks_only)
        yield Static(id="failure", markup=False)
        yield Label("or choose one of these (Tab, then Enter):", id="these")
        yield OptionList(id="running", compact=True, markup=False)

    def show_board(self, board: Board) -> None:
        """List the processes that hold GPU memory on this board."""
        rows: dict[int, ProcessRow] = {}
        for row in board.processes:
            rows.setdefault(row.process.pid, row)
        lines = [_line(row) for row in rows.values()]
        if lines == self._lines:
            return
        self._lines = lines
        options = self.query_one(OptionList)
        at = options.highlighted_option.id if options.highlighted_option else None
        options.clear_options()
        options.add_options(Option(line, id=str(pid)) for pid, line in zip(rows, lines, strict=True))
        if rows:  # Enter takes the first until another one is chosen
            options.highlighted = options.get_option_index(at) if at and int(at) in rows else 0
        self.query_one("#these").display = bool(rows)

    def show_failure(self, sentence: str) -> None:
        """Say why the process could not be read."""
        line = self.query_one("#failure", Static)
        line.update(f"✗ {sentence}" if sentence else "")
        line.set_class(bool(sentence), "-shown")

    @on(Input.Submitted, "#pid")
    def typed(self, event: Input.Submitted) -> None:
        """Post the typed pid if it is a number."""
        event.stop()
        text = event.value.strip()
        if not text.isdecimal() or len(text) > 9:
            self.show_failure(f"{text!r} is not a pid; a pid is a whole number." if text else "Enter a pid first.")
            return
        self.post_message(self.Chosen(int(text)))

    @on(OptionList.OptionSelected, "#running")
    def picked(self, event: OptionList.OptionSelected) -> None:
        """Post the selected process."""
        event.stop()
        self.post_message(self.Chosen(int(event.option.id or 0)))


def _line(row: ProcessRow) -> str:
    process = row.process
    size = f"{format_gib(process.used_bytes)} GiB"
    command = printable(process.command or process.name or "?")
    return f"{process.pid:>8}  {printable(process.user or '?'):<9} GPU {row.gpu.label:<3} {size:>10}  {command}"
