"""What was read of a job: each value with the place it was read from, and what is still missing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..job import Job
from ..jobfile import with_changes

NEEDED = ("model.id", "training.micro_batch", "training.sequence_length")
"""Without these keys an estimate would be about another job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One value of a job, and where it comes from."""

    key: str
    """Dotted job key, such as ``training.micro_batch``."""
    value: Any
    origin: str
    """For people: ``--max_length on the command line``, ``sft.yaml: bf16``, ``default of transformers 5.2.0``."""
    written: bool
    """False for a default or an inference: nobody wrote this value down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReading:
    """A job as far as it could be read."""

    findings: tuple[Finding, ...]
    """One per key, in the order of the job file."""
    missing: tuple[str, ...]
    """Keys that matter and were not found; the user is asked for them."""
    warnings: tuple[str, ...]
    """What was seen and not understood, or what the estimate cannot count; one sentence each."""

    def evidence(self) -> dict[str, str]:
        """Where each value comes from, by key."""
        return {finding.key: finding.origin for finding in self.findings}

    def value(self, key: str) -> Any:
        """The value found for a key, or None."""
        return next((finding.value for finding in self.findings if finding.key == key), None)

    def job(self, overrides: Mapping[str, Any] | None = None) -> Job:
        """The job: what was found, then what the user says (dotted keys), then the job file's defaults.

        Raises:
            InputError: an override has an unknown key or a wrong value.
        """
        found = {finding.key: finding.value for finding in self.findings}
        return with_changes(with_changes(Job(), found, where="what was read"), overrides or {}, where="your changes")

    def still_missing(self, overrides: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """What is missing after the user's changes; a ``model.config`` stands in for ``model.id``."""
        given = set(overrides or {})
        if "model.config" in given:
            given.add("model.id")
        return tuple(key for key in self.missing if key not in given)


class Notes:
    """Findings and warnings while they are gathered. The first finding of a key stays, so ask the best source first."""

    def __init__(self) -> None:
        self._findings: dict[str, Finding] = {}
        self._warnings: list[str] = []
        self._needed = list(NEEDED)

    def put(self, key: str, value: Any, origin: str, *, written: bool = True) -> None:
        """Note a value, unless the key has one already."""
        self._findings.setdefault(key, Finding(key=key, value=value, origin=origin, written=written))

    def warn(self, *sentences: str) -> None:
        """Note sentences for the user, each once."""
        self._warnings += [sentence for sentence in sentences if sentence not in self._warnings]

    def need(self, key: str) -> None:
        """Ask the user for a key, unless it is found."""
        self._needed.append(key)

    def get(self, key: str) -> Finding | None:
        """What was noted for a key."""
        return self._findings.get(key)

    def reading(self) -> JobReading:
        """All of it; what is needed and was not noted is missing."""
        tables = ("name", "model", "training", "lora", "parallel", "target", "software", "run")
        findings = sorted(self._findings.values(), key=lambda finding: tables.index(finding.key.partition(".")[0]))
        known = {*self._findings, *(["model.id"] if "model.config" in self._findings else [])}
        return JobReading(
            findings=tuple(findings),
            missing=tuple(key for key in dict.fromkeys(self._needed) if key not in known),
            warnings=tuple(self._warnings),
        )
