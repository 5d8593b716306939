"""What a check is, and what it says."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from .check_context import CheckContext

CheckStatus = Literal["pass", "warning", "failure", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What one check says."""

    name: str
    """Of the check."""
    status: CheckStatus
    """``failure``: the job will not run so; ``skipped``: the check has nothing to look at here."""
    found: str
    """What is the case, in one or two sentences without a full stop at the end."""
    advice: str | None = None
    """What to do about it."""
    unknown: bool = False
    """A warning because it could not be told, or not in time."""
    decisive: bool = False
    """Without this answer nobody can say that the job may start."""

    def to_json(self) -> dict[str, Any]:
        """One entry of ``vramtop preflight --json``."""
        return {
            "name": self.name,
            "status": self.status,
            "found": self.found,
            "advice": self.advice,
            "unknown": self.unknown,
        }


class Check(ABC):
    """Looks at one thing. Settings of a subclass are its constructor's, for tests and for other machines."""

    name: ClassVar[str]
    timeout_seconds: ClassVar[float] = 30
    """It is given up after so long."""
    waits_for: ClassVar[str] = "this machine"
    """What it may have to wait for, as a person reads it while it runs."""
    decisive: ClassVar[bool] = False
    """When it cannot be told, neither can the whole."""

    @abstractmethod
    def run(self, context: "CheckContext") -> CheckResult:
        """What is the case.

        Raises:
            VramtopError: it cannot be told, for a reason that is its message.
            OSError: likewise.
        """

    def passes(self, found: str) -> CheckResult:
        """All is well."""
        return self._says("pass", found)

    def warns(self, found: str, advice: str | None = None) -> CheckResult:
        """The job may run, but not as it should."""
        return self._says("warning", found, advice)

    def fails(self, found: str, advice: str | None = None) -> CheckResult:
        """The job will not run."""
        return self._says("failure", found, advice)

    def skips(self, found: str) -> CheckResult:
        """There is nothing to look at."""
        return self._says("skipped", found)

    def inconclusive(self, found: str, advice: str | None = None) -> CheckResult:
        """It may be well or not."""
        return self._says("warning", found, advice, unknown=True)

    def _says(
        self, status: CheckStatus, found: str, advice: str | None = None, *, unknown: bool = False
    ) -> CheckResult:
        return CheckResult(
            name=self.name, status=status, found=found, advice=advice, unknown=unknown, decisive=self.decisive
        )
