"""Text for signalling processes: what they are, what depends on them, and their state after a signal."""

import time
from collections.abc import Collection, Iterator, Sequence
from textwrap import wrap

from textual.content import Content

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.board.board import Board, ProcessRow
from vramtop.monitor.host.terminate import GRACE_SECONDS, ProcessTermination, TerminationBatch
from vramtop.monitor.snapshot.snapshot import GpuProcess, ProcessKey

from ...draw.labels import MUTED, SEPARATOR, format_duration, process_name, shorten
from ...draw.text_output import printable


def signal_details(
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


def batch_status(batch: TerminationBatch) -> Content:
    """Return what the signals would do, the state after one, or the outcome."""
    if len(batch.members) == 1 and len(batch.refused) <= 1:
        member = batch.members[0]
        return termination_status(member, batch.refused.get(member.process.key))
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


def termination_status(termination: ProcessTermination, refused: str | None) -> Content:
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
    return Content.styled(still_running_text(termination), "$text-warning" if termination.overdue else "")


def still_running_text(termination: ProcessTermination) -> str:
    """Return the state of a process that has not ended after a signal."""
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
