"""A preflight check and the form of its result."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from .context import CheckContext

CheckStatus = Literal["pass", "warning", "failure", "skipped"]
PYTHON_ELSEWHERE = "the Python that will run the job is on the other machine; --python names one to check"


class CheckJson(msgspec.Struct, frozen=True, kw_only=True):
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


class CheckResult(CheckJson, frozen=True, kw_only=True):
    """Result of one check; name and weight are those of its row."""

    name: str = ""
    advice: str | None = None
    unknown: bool = False
    decisive: bool = False
    """Without a conclusion of this check it is unknown whether the job may start."""

    def to_json(self) -> dict[str, Any]:
        """Return one entry of ``vramtop preflight --json``, a ``CheckJson``."""
        return {name: getattr(self, name) for name in CheckJson.__struct_fields__}


def passes(found: str) -> CheckResult:
    """Return a result without a problem."""
    return CheckResult(status="pass", found=found)


def warns(found: str, advice: str | None = None) -> CheckResult:
    """Return a result for a job that may run, but not as it should."""
    return CheckResult(status="warning", found=found, advice=advice)


def fails(found: str, advice: str | None = None) -> CheckResult:
    """Return a result for a job that will not run."""
    return CheckResult(status="failure", found=found, advice=advice)


def skips(found: str) -> CheckResult:
    """Return a result for a check that does not apply."""
    return CheckResult(status="skipped", found=found)


def inconclusive(found: str, advice: str | None = None) -> CheckResult:
    """Return a result for a check that came to no conclusion."""
    return CheckResult(status="warning", found=found, advice=advice, unknown=True)


class Check(msgspec.Struct, frozen=True):
    """One preflight check."""

    name: str
    run: Callable[["CheckContext"], CheckResult]
    """A VramtopError, or an OSError of a file or device that cannot be read, is no conclusion."""
    waits_for: str = "this machine"
    """What it may have to wait for; shown while it runs."""
    timeout_seconds: float = 30
    decisive: bool = False
    """If this check comes to no conclusion, preflight as a whole does not either."""
