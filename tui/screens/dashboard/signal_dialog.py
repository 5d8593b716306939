"""The question which signal to send to processes, what depends on them, and their state after one."""

import signal
import time
from collections.abc import Collection, Iterator, Sequence
from textwrap import wrap
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Button

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import Board, ProcessRow
from vramtop.monitor.host.terminate import GRACE_SECONDS, ProcessTermination, TerminationBatch
from vramtop.monitor.snapshot.snapshot import GpuProcess, ProcessKey

from ...draw.labels import MUTED, SEPARATOR, format_duration, process_name, shorten
from ...draw.text_output import printable
from ...keys import bind, shown_key
from ...widgets.content_lines import StaticLines
from ..base import BoardApp, DrawnScreen

SIGNAL_KEYS = [
    bind("app.back", "leave", "Leave it"),
    bind("signal.leave", "leave"),
    bind("signal.terminate", "send('terminate')", "TERM"),
    bind("signal.interrupt", "send('interrupt')", "INT"),
    bind("signal.kill", "send('kill')", "KILL"),
    bind("list.fold", "app.focus_previous"),
    bind("list.unfold", "app.focus_next", help_text=""),
    bind("list.up", "scroll(-1)"),
    bind("list.down", "scroll(1)"),
]
ARMING_SECONDS = 1.0
"""A choice works only this long after it appeared: keys typed ahead are meant for something else. Browsers delay the
button of their warnings as long (Firefox: ``security.dialog_enable_delay``, 1000 ms)."""
_SIGNALS = {"terminate": signal.SIGTERM, "interrupt": signal.SIGINT, "kill": signal.SIGKILL}
"""By the id of the button."""
_REFRESH_SECONDS = 0.2
_FRAME_LINES = 8
"""Lines of frame, status and choices around the details."""


def ask_which_signal(screen: Screen[None], rows: Sequence[ProcessRow], board: Board) -> None:
    """Ask which signal to send to processes, or say why none may be sent.

    Args:
        screen: the screen that asks.
        rows: the processes; one that is on several GPUs counts once.
        board: the latest board.
    """
    chosen = {row.process.key: row for row in reversed(rows)}
    rows = [chosen[key] for key in dict.fromkeys(row.process.key for row in rows)]
    batch = TerminationBatch(row.process for row in rows)
    if batch.running or not batch.refused:
        screen.app.push_screen(TerminateScreen(rows, batch, board))
    else:
        screen.notify("\n".join(batch.refused.values()), severity="warning", markup=False)
        batch.close()


class TerminateScreen(ModalScreen[None], DrawnScreen[None]):
    """Asks which signal to send to processes, and shows their state until they have ended.

    Args:
        rows: the processes, each on one of the GPUs where it was selected.
        batch: signals and watches them.
        board: the latest board.
    """

    app: "BoardApp"
    AUTO_FOCUS = "#leave"
    BINDINGS: ClassVar[list[BindingType]] = [*SIGNAL_KEYS]
    DEFAULT_CSS = """
    TerminateScreen { align: center middle; }
    TerminateScreen #box {
        width: 84; max-width: 96%; height: auto; background: $surface; border: solid $error; padding: 0 1;
    }
    TerminateScreen VerticalScroll { height: auto; scrollbar-size-vertical: 1; }
    TerminateScreen #status { height: auto; text-wrap: wrap; margin: 1 0; }
    TerminateScreen Horizontal { height: 1; }
    TerminateScreen Button { margin: 0 2 0 0; min-width: 8; }
    """

    def __init__(self, rows: Sequence[ProcessRow], batch: TerminationBatch, board: Board) -> None:
        super().__init__()
        self._rows = rows
        self._batch = batch
        self._board = board
        self._offered_at: dict[str, float] = {}
        """Time at which each choice appeared, by the id of its button; monotonic seconds."""

    def compose(self) -> ComposeResult:
        """The details, the status, and the choices; the harmless one has the focus at first."""
        with Vertical(id="box") as box:
            count = len(self._rows)
            box.border_title = "Signal this process?" if count == 1 else f"Signal these {count} processes together?"
            with VerticalScroll(can_focus=False):
                yield StaticLines(id="details")
            yield StaticLines(id="status")
            with Horizontal():
                yield Button("Leave it", id="leave", compact=True)
                for name, word in (("terminate", "TERM"), ("interrupt", "INT"), ("kill", "KILL")):
                    yield Button(f"{shown_key(f'signal.{name}')} {word}", id=name, compact=True, variant="error")

    def on_mount(self) -> None:
        """Draw, and refresh several times a second."""
        self.set_interval(_REFRESH_SECONDS, self.redraw)
        self.redraw()

    def show_board(self, board: Board) -> None:
        """Show what the process holds now."""
        self._board = board
        self.redraw()

    def on_unmount(self) -> None:
        """Watch the processes no longer."""
        self._batch.close()

    def action_leave(self) -> None:
        """Close without another signal."""
        self.dismiss()

    def action_scroll(self, by: int) -> None:
        """Scroll the details, on small terminals."""
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_send(self, choice: str) -> None:
        """Send the signal of a choice, if it is armed."""
        if self._is_armed(choice):
            self._batch.send(_SIGNALS[choice])
            self.redraw()

    @on(Button.Pressed)
    def pressed(self, event: Button.Pressed) -> None:
        """Run the action of a button, on a click or Enter."""
        event.stop()
        if event.button.id in _SIGNALS:
            self.action_send(event.button.id)
        else:
            self.action_leave()

    def draw(self) -> None:
        """Draw the details and the status, and offer what can be done now."""
        batch = self._batch
        self.query_one(VerticalScroll).styles.max_height = max(3, self.size.height - _FRAME_LINES)
        width = (self.query_one("#box").content_size.width or 60) - 1
        details = _signal_details(self._rows, self._board, batch, width=width, age=self.app.feed.age_seconds)
        self.query_one("#details", StaticLines).show(details, layout=True)
        self.query_one("#status", StaticLines).show(_batch_status(batch), layout=True)
        asks = bool(batch.running) and batch.sent is None
        self._offer("terminate", asks)
        self._offer("interrupt", asks)
        self._offer("kill", asks or batch.overdue)
        leave = "Leave it" if len(self._rows) == 1 else "Leave them"
        self.query_one("#leave", Button).label = leave if asks else "Close"
        self.query_one("#box").border_subtitle = f"{shown_key('app.back')} {'sends nothing' if asks else 'closes'}"

    def _offer(self, choice: str, offered: bool) -> None:
        button = self.query_one(f"#{choice}", Button)
        if not offered:
            self._offered_at.pop(choice, None)
            if button.has_focus:
                self.query_one("#leave").focus()
        elif choice not in self._offered_at:
            self._offered_at[choice] = time.monotonic()
        button.display = offered
        button.disabled = not self._is_armed(choice)

    def _is_armed(self, choice: str) -> bool:
        since = self._offered_at.get(choice)
        return since is not None and time.monotonic() - since >= ARMING_SECONDS


def _signal_details(
    rows: Sequence[ProcessRow], board: Board, batch: TerminationBatch, *, width: int, age: float | None = None
) -> Content:
    """Return what the processes are, what they hold, what depends on them, and what is refused.

    Args:
        rows: the processes, each on one of the GPUs where it was selected.
        board: the latest board.
        batch: signals and watches them.
        width: cells that a line may take.
        age: seconds since those figures were read, if they are stale.
    """
    keys = {member.process.key for member in batch.members}
    held = [row for row in board.processes if row.process.key in keys]
    held = held or [row for row in rows if row.process.key in keys]  # they have left the GPUs: as they were selected
    alone = rows[0].process if len(rows) == 1 else None
    users = ", ".join(sorted({printable(row.process.user or "n/a") for row in rows}))
    entries = [("user" if alone else "users", users, "")]
    if alone:
        if batch.members[0].is_other_users:
            entries = [("user", f"{users}{SEPARATOR}not you", "bold")]
        command = printable(alone.command or alone.name or "n/a")
        entries = [("pid", str(alone.pid), ""), *entries, ("command", command, ""), ("started", _started(alone), "")]
    entries.append(("holds", _held(held) + ("" if age is None else f" (as of {format_duration(age)} ago)"), ""))
    entries += [("job", words, "") for words in list(_jobs(keys, board)) or ["unknown"]]
    if alone:
        entries += [("", words, "$text-warning") for words in _related(alone, board)]
    entries += [("!", words, "$text-warning") for words in sorted({each.uncertainty or "" for each in batch.members})]
    lines = [_entry(label, words, style, width) for label, words, style in entries if words]
    if not alone:
        sizes: dict[ProcessKey, list[int]] = {}
        for row in held:
            if row.process.used_bytes is not None:
                sizes.setdefault(row.process.key, []).append(row.process.used_bytes)
        lines += [_member_line(member, batch, sizes.get(member.process.key, ()), width) for member in batch.members]
    for process in (row.process for row in rows if row.process.key not in keys):
        refusal = f"{process.pid:>8}  ✗ {printable(batch.refused.get(process.key, ''))}"
        lines.append(Content.styled(shorten(refusal, width), "$text-error"))
    return Content("\n").join(lines)


def _batch_status(batch: TerminationBatch) -> Content:
    """Return what the signals would do, the state after one, or the outcome."""
    if len(batch.members) == 1 and len(batch.refused) <= 1:
        member = batch.members[0]
        return _termination_status(member, batch.refused.get(member.process.key))
    if batch.sent is None and batch.running:
        return Content.styled(_SIGNAL_HELP, MUTED)
    running = len(batch.running)
    ended = [member for member in batch.members if member.ended]
    words = f"{_count(ended, 'process')} {'has' if len(ended) == 1 else 'have'} ended"
    if batch.sent is not None and ended:
        last = ", the last" if len(ended) > 1 else ""
        words += f"{last} {max(member.seconds for member in ended):.1f} s after {batch.sent.name}"
    refused = f"; {len(batch.refused)} got no signal" if batch.refused else ""
    if not running:
        return Content.styled(f"✓ {words}{refused}.", "$text-success")
    return Content.styled(f"… {words}, {running} still running{refused}.", "$text-warning" if batch.overdue else "")


_SIGNAL_HELP = "SIGTERM asks a process to end, SIGINT is Ctrl-C, SIGKILL ends it at once. Unsaved work is lost."


def _termination_status(termination: ProcessTermination, refused: str | None) -> Content:
    """Return what a signal would do to one process, the state after one, or the outcome.

    Args:
        termination: signals and watches the process.
        refused: why the last signal could not be sent.
    """
    if termination.ended:
        after = f"{termination.seconds:.1f} s after {termination.sent.name}" if termination.sent else "without a signal"
        return Content.styled(f"✓ Process {termination.process.pid} has ended {after}.", "$text-success")
    if refused:
        return Content.styled(f"✗ {printable(refused)}", "$text-error")
    if termination.sent is None:
        return Content.styled(_SIGNAL_HELP, MUTED)
    return Content.styled(_still_running_text(termination), "$text-warning" if termination.overdue else "")


def _still_running_text(termination: ProcessTermination) -> str:
    """Say what holds up a process that has been sent a signal and has not ended."""
    signal = termination.sent.name if termination.sent else "SIGTERM"
    hindrance = {
        None: "",
        "stopped": " The process is stopped, as by Ctrl-Z, and handles SIGTERM only when it continues.",
        "in the kernel": (
            " The process waits inside the kernel, often for the GPU driver, and ends when that call returns."
        ),
    }[termination.blocker]
    if not termination.overdue:
        left = f" You can send SIGKILL in {GRACE_SECONDS - termination.seconds:.0f} s." if signal != "SIGKILL" else ""
        return f"… {signal} was sent {termination.seconds:.0f} s ago; it has not ended yet.{left}{hindrance}"
    advice = " SIGKILL ends it at once: it saves nothing and notifies no other process." if signal != "SIGKILL" else ""
    return f"! Still there {format_duration(termination.seconds)} after {signal}.{advice}{hindrance}"


def _held(rows: Sequence[ProcessRow]) -> str:
    """Return the memory that the processes hold on each GPU."""
    sizes: dict[str, list[int | None]] = {}
    for row in rows:
        sizes.setdefault(row.gpu.label, []).append(row.process.used_bytes)
    return SEPARATOR.join(f"{_sum_words(each)} of GPU {label}" for label, each in sizes.items())


def _sum_words(sizes: Sequence[int | None]) -> str:
    """Return the sum in GiB; n/a if no size is known, a lower bound if some are not."""
    known = [size for size in sizes if size is not None]
    if not known:
        return "n/a"
    return f"{'at least ' if len(known) < len(sizes) else ''}{format_gib(sum(known))} GiB"


def _started(process: GpuProcess) -> str:
    if process.start_time is None:
        return "n/a"
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(process.start_time))
    return f"{when}, {format_duration(max(0.0, time.time() - process.start_time))} ago"


def _jobs(keys: Collection[ProcessKey], board: Board) -> Iterator[str]:
    """Yield for each followed job how many of its ranks are among these processes."""
    for run in board.runs:
        count = sum(key in keys for key in run.pids)
        total = max(len(run.pids), run.job.parallel.processes)
        if not count:
            continue
        label = printable(run.job.label) if run.job.has_label else "an attached run"
        if count == total:
            yield f"{label}: {'its only rank' if total == 1 else f'all {total} ranks'}; the run ends with them"
        else:
            yield f"{label}: {count} of {total} ranks; the others hang or die with them, or all are restarted"


def _member_line(member: ProcessTermination, batch: TerminationBatch, sizes: Sequence[int], width: int) -> Content:
    """Return the line of one of several processes: pid, user, memory, state, name."""
    process = member.process
    size = f"{format_gib(sum(sizes))} GiB" if sizes else "n/a"
    refusal = batch.refused.get(process.key)
    if member.ended:
        state, style = "✓ ended", "$text-success"
    elif refusal:
        state, style = "✗ no signal", "$text-error"
    else:
        state = "" if batch.sent is None else "! still there" if member.overdue else "… running"
        style = "$text-warning" if member.overdue else ""
    user = printable(process.user or "n/a")
    owner = f"{shorten(user, 9)}{' (not you)' if member.is_other_users else ''}"
    words = f"{process.pid:>8}  {owner:<9}  {size:>9}  {f'{state}  ' if state else ''}{process_name(process)}"
    return Content.styled(shorten(words, width), style or ("bold" if member.is_other_users else ""))


def _related(process: GpuProcess, board: Board) -> Iterator[str]:
    """Yield warnings about processes on GPUs that may belong to this one, although no followed job says so."""
    run = board.run_of(process.key)
    followed = run.pids if run else (process.key,)
    around = {row.process.key: row.process for row in board.processes if row.process.key not in followed}
    siblings = [
        each
        for each in around.values()
        if (process.parent or 0) > 1 and each.parent == process.parent and process_name(each) == process_name(process)
    ]
    if siblings:
        yield (
            f"{_count(siblings)} on GPUs run{'s' if len(siblings) == 1 else ''} {process_name(process)} under the same "
            f"parent ({process.parent}): if these are ranks of one job, they hang or die with it"
        )
    children = [each for each in around.values() if each.parent == process.pid]
    if children:
        yield f"it started {_count(children)} on GPUs, which may still hold memory after it ends"


def _count(processes: Sequence[object], name: str = "other process") -> str:
    return f"{len(processes)} {name}{'' if len(processes) == 1 else 'es'}"


_LABEL_WIDTH = 9
_MAX_COMMAND_LINES = 4
"""Longer command lines are cut: the other details must be visible at 80x24."""


def _entry(label: str, words: str, style: str, width: int) -> Content:
    lines = wrap(words, max(20, width - _LABEL_WIDTH), break_on_hyphens=False) or [""]
    if len(lines) > _MAX_COMMAND_LINES:
        lines = [*lines[: _MAX_COMMAND_LINES - 1], f"{lines[_MAX_COMMAND_LINES - 1][:-2]} …"]
    return Content.assemble((f"{label:<{_LABEL_WIDTH}}", MUTED), (f"\n{'':{_LABEL_WIDTH}}".join(lines), style))
