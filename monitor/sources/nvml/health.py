"""Memory errors and repairs of one GPU, which change rarely."""

from typing import Any

from ...snapshot.gpu_details import EccErrors, RemappedRows
from .questions import Questions

HEALTH_INTERVAL_SECONDS = 10.0
_COUNTERS = {
    "recent_corrected": (0, 0),
    "recent_uncorrected": (1, 0),
    "lifetime_corrected": (0, 1),
    "lifetime_uncorrected": (1, 1),
}
"""NVML's kind of error and of counter."""


class NvmlHealth:
    """ECC and remapped rows of one GPU. Not thread-safe.

    Args:
        questions: to the GPU.
    """

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._next_at = 0.0
        """Monotonic seconds at which to read again."""
        self.ecc_enabled: bool | None = None
        self.ecc: EccErrors | None = None
        self.remapped_rows: RemappedRows | None = None

    def read(self) -> None:
        """Read again, if it is time."""
        questions = self._questions
        if questions.clock() < self._next_at:
            return
        self._next_at = questions.clock() + HEALTH_INTERVAL_SECONDS
        mode = questions.ask("ecc_enabled", "whether ECC is on", "nvmlDeviceGetEccMode")
        self.ecc_enabled = None if mode is None else bool(mode[0])
        self.ecc = self._errors() if self.ecc_enabled else None
        rows = questions.ask("remapped_rows", "remapped rows", "nvmlDeviceGetRemappedRows")
        self.remapped_rows = None if rows is None else _remapped(rows)

    def _errors(self) -> EccErrors | None:
        ask, call = self._questions.ask, "nvmlDeviceGetTotalEccErrors"
        errors = EccErrors(**{name: ask("ecc", "ECC errors", call, *numbers) for name, numbers in _COUNTERS.items()})
        return None if errors == EccErrors() else errors


def _remapped(rows: Any) -> RemappedRows:
    corrected, uncorrected, pending, failed = rows
    return RemappedRows(
        after_corrected=int(corrected), after_uncorrected=int(uncorrected), pending=bool(pending), failed=bool(failed)
    )
