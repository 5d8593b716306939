"""Events of pending jobs that start or cease to fit: an alert for the user, and a command of theirs."""

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from vramtop.estimator.common import ProcessLimitError, process_limit_error, start_thread
from vramtop.monitor.board import PendingRow

from ..draw import printable

Signal = Literal["none", "bell", "desktop"]


def desktop_sequence(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the control sequence for a desktop notification by the terminal, which works over SSH too.

    OSC 777 for VTE, urxvt and foot, otherwise OSC 9 (iTerm2, kitty, WezTerm, Ghostty, Windows Terminal). Inside tmux,
    which must allow it (``allow-passthrough``), and GNU screen it is wrapped for the outer terminal.
    """
    words = printable(text).replace(";", ",")
    term = environ.get("TERM", "")
    supports_777 = "VTE_VERSION" in environ or term.startswith(("rxvt", "foot"))
    sequence = f"\x1b]777;notify;vramtop;{words}\x07" if supports_777 else f"\x1b]9;{words}\x07"
    if "TMUX" in environ:
        return "\x1bPtmux;" + sequence.replace("\x1b", "\x1b\x1b") + "\x1b\\"
    if "STY" in environ:
        return f"\x1bP{sequence}\x1b\\"
    return sequence


@dataclass(slots=True)
class FitEvents:
    """Detects when pending jobs start or cease to fit.

    Args:
        signal: how the user is alerted, besides the dashboard itself.
        command: a shell command to run when a job starts to fit, with VRAMTOP_JOB (its name), VRAMTOP_GPUS (indices,
            in the order of its ranks) and VRAMTOP_GPU_UUIDS in its environment; None: no command.
        report: shows a sentence; called on any thread.
    """

    signal: Signal = "none"
    command: str | None = None
    report: Callable[[str], None] = lambda _: None
    _last_change: dict[str, float] = field(default_factory=dict)

    def update(self, pending: Sequence[PendingRow]) -> tuple[str, ...]:
        """Return a sentence for each change since the last call; start the command for each job that now fits."""
        sentences = []
        for row in pending:
            label = row.job.label
            if row.fits_changed_at is None or self._last_change.get(label) == row.fits_changed_at:
                continue
            self._last_change[label] = row.fits_changed_at
            sentences.append(f"{label} fits now" if row.fits else f"{label} fits no longer")
            if row.fits and self.command:
                self._start(row)
        return tuple(sentences)

    def _start(self, row: PendingRow) -> None:
        placement = row.fit.placement if row.fit else ()
        uuids = [room.uuid or "" for room in row.fit.rank_devices] if row.fit else []
        environ = {
            **os.environ,
            "VRAMTOP_JOB": row.job.label,
            "VRAMTOP_GPUS": ",".join(map(str, placement)),
            "VRAMTOP_GPU_UUIDS": ",".join(uuids),
        }
        try:
            start_thread(threading.Thread(target=self._run, args=(environ,), name="on fit", daemon=True))
        except ProcessLimitError as error:
            self.report(f"--on-fit {self.command}: {error.message}")

    def _run(self, environ: Mapping[str, str]) -> None:
        command = self.command or ""
        silent = subprocess.DEVNULL
        try:
            code = subprocess.run(  # noqa: S602 - the user's own command, for a shell as they wrote it
                command, shell=True, check=False, env=environ, stdin=silent, stdout=silent, stderr=silent,
                start_new_session=True,
            ).returncode  # fmt: skip
        except OSError as error:
            limit = process_limit_error(error)
            self.report(f"--on-fit {command}: {limit.message if limit else f'it cannot be started: {error.strerror}'}")
            return
        if code:
            self.report(f"--on-fit {command}: it ended with exit code {code}")
