"""Events of pending jobs that start or cease to fit: a sentence for the user, and a command of theirs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vramtop.monitor.board import PendingRow

from ..background import UserCommand


@dataclass(slots=True)
class FitEvents:
    """Detects when pending jobs start or cease to fit.

    Args:
        command: a shell command to run when a job starts to fit, with VRAMTOP_JOB (its name), VRAMTOP_GPUS (indices,
            in the order of its ranks) and VRAMTOP_GPU_UUIDS in its environment; None: no command.
        report: shows a sentence; called on any thread.
    """

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
        facts = {
            "VRAMTOP_JOB": row.job.label,
            "VRAMTOP_GPUS": ",".join(map(str, placement)),
            "VRAMTOP_GPU_UUIDS": ",".join(uuids),
        }
        UserCommand("--on-fit", self.command or "", self.report).start(facts, thread="on fit")
