"""Base class of the preflight checks, and the result of a check."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypedDict

if TYPE_CHECKING:
    from .check_context import CheckContext

CheckStatus = Literal["pass", "warning", "failure", "skipped"]
PYTHON_ELSEWHERE = "the Python that will run the job is on the other machine; --python names one to check"


class CheckJson(TypedDict):
    """Result of one check."""

    name: str
    """Name of the check."""
    status: CheckStatus
    """`failure`: the job will not run like this; `skipped`: the check does not apply here."""
    found: str
    """The finding, in one or two sentences without a full stop at the end."""
    advice: str | None
    """How to correct it; null: there is nothing to correct."""
    unknown: bool
    """A warning because the check came to no conclusion, or not in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of one check."""

    name: str
    """Name of the check."""
    status: CheckStatus
    """``failure``: the job will not run like this; ``skipped``: the check does not apply here."""
    found: str
    """The finding, in one or two sentences without a full stop at the end."""
    advice: str | None = None
    """How to correct it."""
    unknown: bool = False
    """A warning because the check came to no conclusion, or not in time."""
    decisive: bool = False
    """Without a conclusion of this check it is unknown whether the job may start."""

    def to_json(self) -> CheckJson:
        """Return one entry of ``vramtop preflight --json``."""
        return {
            "name": self.name,
            "status": self.status,
            "found": self.found,
            "advice": self.advice,
            "unknown": self.unknown,
        }


class Check(ABC):
    """One preflight check. The constructor of a subclass takes its settings, for tests and other machines."""

    name: ClassVar[str]
    timeout_seconds: ClassVar[float] = 30
    waits_for: ClassVar[str] = "this machine"
    """What the check may have to wait for; shown while it runs."""
    decisive: ClassVar[bool] = False
    """If this check comes to no conclusion, preflight as a whole does not either."""

    @abstractmethod
    def run(self, context: "CheckContext") -> CheckResult:
        """Run the check.

        Raises:
            VramtopError: the check comes to no conclusion, for the reason in the message.
            OSError: the check comes to no conclusion because a file or device cannot be read.
        """

    def passes(self, found: str) -> CheckResult:
        """Return a result without a problem."""
        return self._result("pass", found)

    def warns(self, found: str, advice: str | None = None) -> CheckResult:
        """Return a result for a job that may run, but not as it should."""
        return self._result("warning", found, advice)

    def fails(self, found: str, advice: str | None = None) -> CheckResult:
        """Return a result for a job that will not run."""
        return self._result("failure", found, advice)

    def skips(self, found: str) -> CheckResult:
        """Return a result for a check that does not apply."""
        return self._result("skipped", found)

    def inconclusive(self, found: str, advice: str | None = None) -> CheckResult:
        """Return a result for a check that came to no conclusion."""
        return self._result("warning", found, advice, unknown=True)

    def _result(
        self, status: CheckStatus, found: str, advice: str | None = None, *, unknown: bool = False
    ) -> CheckResult:
        return CheckResult(
            name=self.name, status=status, found=found, advice=advice, unknown=unknown, decisive=self.decisive
        )
