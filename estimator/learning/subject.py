"""Subject of an estimate or a measurement: the job without names, and the machine on which it runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from ..job import Job, match_nvml_name
from .measurement import Measurement
from .private_job import PrivateJob, allocator_words

_VERSION_PARTS = re.compile(r"v?(\d+)(?:\.(\d+))?")
_STATED = ("torch", "cuda", "transformers", "bitsandbytes", "peft", "litgpt", "torchtitan", "trl")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A job and the place in which it runs. Two subjects are compared trait by trait (``kinship``)."""

    job: Job
    """Without names."""
    shape: str
    """Digest of the model's architecture."""
    hidden: str
    """Digest of settings that are names."""
    card: str | None
    machine: str
    driver: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    allocator: str = ""
    peak: str = ""
    """Phase in which the peak is predicted."""

    @classmethod
    def of_job(
        cls,
        facts: PrivateJob,
        *,
        card: str | None,
        machine: str,
        driver: str | None = None,
        versions: Mapping[str, str] | None = None,
        allocator: str = "",
        peak: str = "",
    ) -> "Subject":
        """Return the subject of an estimate.

        Args:
            facts: the job without names.
            card: name of the GPU, as NVML gives it; None: unknown.
            machine: digest of the machine; empty: another one, or unknown.
            driver: version of its driver.
            versions: versions of libraries, which count more than those that the job states.
            allocator: the allocator's settings.
            peak: phase in which the peak is predicted.
        """
        return cls(
            job=facts.job,
            shape=facts.shape,
            hidden=facts.hidden,
            card=card,
            machine=machine,
            driver=driver,
            versions={**_stated(facts.job), **(versions or {})},
            allocator=allocator_words(allocator),
            peak=peak,
        )

    @classmethod
    def of_measurement(cls, measurement: Measurement, peak: str = "") -> "Subject":
        """Return the subject of a measurement.

        Args:
            measurement: the measurement.
            peak: phase in which the peak was predicted.
        """
        return cls(
            job=measurement.job,
            shape=measurement.shape,
            hidden=measurement.hidden,
            card=measurement.card,
            machine=measurement.machine,
            driver=measurement.driver,
            versions=measurement.versions,
            allocator=measurement.allocator,
            peak=peak,
        )

    @cached_property
    def traits(self) -> dict[str, Any]:
        """The settings on which memory depends, by dotted key, and the place; None: unknown."""
        found: dict[str, Any] = {
            "machine": self.machine or None,
            "card": _card(self.card),
            "driver": _release(self.driver, parts=1),
            "allocator": self.allocator,
            "model.shape": self.shape,
            "hidden": self.hidden,
            "peak": self.peak,
        }
        for name in _STATED:
            found[f"software.{name}"] = _release(self.versions.get(name), parts=2)
        for table in msgspec.structs.fields(Job):
            value = getattr(self.job, table.name)
            if isinstance(value, msgspec.Struct):
                for key, each in msgspec.structs.asdict(value).items():
                    found.setdefault(f"{table.encode_name}.{key}", each)
            found[table.encode_name] = value if isinstance(value, list) else isinstance(value, msgspec.Struct)
        config = self.job.model.config or {}
        found["model.family"] = config.get("model_type")
        found["distributed"] = self.job.parallel.world_size > 1
        found["accumulates"] = self.job.training.gradient_accumulation > 1
        return found


def _card(name: str | None) -> str | None:
    """Return the name of the card in the catalogue, which is the same for all of its drivers; else its own."""
    found = match_nvml_name(name) if name else None
    return found.name if found else name


def _stated(job: Job) -> dict[str, str]:
    return {name: value for name in _STATED if (value := getattr(job.software, name))}


def _release(version: str | None, *, parts: int) -> tuple[str, ...] | None:
    """Return the first parts of a version, on which memory depends; None: unknown."""
    found = _VERSION_PARTS.match(version or "")
    return None if found is None else found.groups()[:parts]
