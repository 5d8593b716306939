"""The subject of an estimate or of a measured run: its job and the place in which it runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from ..job.gpu_catalogue import match_nvml_name
from ..job.job import Job
from .kept_job import allocator_words, kept_job
from .measurement import Measurement

_RELEASE = re.compile(r"v?(\d+)(?:\.(\d+))?")
_LIBRARIES = ("torch", "cuda", "transformers", "litgpt", "torchtitan", "trl", "peft", "bitsandbytes")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A job and the place in which it runs."""

    shape: str
    """Digest of the model's architecture."""
    settings: str
    """Digest of the settings on which a step depends."""
    card: str | None
    """Name of the GPU, as NVML gives it; None: unknown."""
    machine: str
    """Digest of the machine; empty: another one, or unknown."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of libraries."""
    allocator: str = ""
    """The allocator's settings."""

    @classmethod
    def of_job(
        cls,
        job: Job,
        config: Mapping[str, Any],
        *,
        parameters: int | None = None,
        card: str | None,
        machine: str,
        versions: Mapping[str, str] | None = None,
        allocator: str = "",
    ) -> "Subject":
        """Return the subject of an estimate; versions of the run count more than those that the job states."""
        stated = {name: text for name in _LIBRARIES if (text := getattr(job.software, name, None))}
        kept = kept_job(job, config, parameters=parameters)
        return cls(
            shape=kept.shape,
            settings=kept.settings,
            card=card,
            machine=machine,
            versions={**stated, **(versions or {})},
            allocator=allocator_words(allocator),
        )

    @classmethod
    def of_measurement(cls, run: Measurement) -> "Subject":
        """Return the subject of a measured run."""
        return cls(**{each.name: getattr(run, each.name) for each in fields(cls)})

    def is_same_job(self, other: "Subject") -> bool:
        """Return True if the other is the very job on the same kind of card."""
        mine, its = ((each.settings, each.shape, each.allocator, card_name(each.card)) for each in (self, other))
        return self.card is not None and mine == its and self.has_same_releases(other)

    @cached_property
    def releases(self) -> dict[str, tuple[str, ...]]:
        """The first two numbers of each version, on which memory depends."""
        return {name: found.groups() for name, text in self.versions.items() if (found := _RELEASE.match(text))}

    def has_same_releases(self, other: "Subject") -> bool:
        """Return True if no library is known to have another release; an unknown one may be the same."""
        mine, its = self.releases, other.releases
        return all(mine[name] == its[name] for name in _LIBRARIES if name in mine and name in its)


def card_name(name: str | None) -> str | None:
    """Return the name of a card in the catalogue, the same under every driver; if it is not there, its own name."""
    found = match_nvml_name(name) if name else None
    return found.name if found else name
