"""What was read of a job: each value with the place it was read from, and what is still missing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...job.job import Job, UncertaintyDirection
from ...job.job_file import with_changes

REQUIRED_KEYS = ("model.id", "training.micro_batch", "training.sequence_length")
"""Without these keys an estimate would be about another job."""
_ACCUMULATION = "training.gradient_accumulation"
Component = Literal["weights", "gradients", "optimizer", "activations", "logits"]
MODEL_STATES: tuple[Component, ...] = ("weights", "gradients", "optimizer")
_DECIDES: Mapping[str, tuple[Component, ...]] = {
    "model.attention": ("activations",),
    "training.micro_batch": ("activations", "logits"),
    "training.sequence_length": ("activations", "logits"),
    "training.gradient_accumulation": ("gradients",),
    "training.precision": (*MODEL_STATES, "activations"),
    "training.optimizer": ("optimizer",),
    "training.activation_checkpointing": ("activations",),
    "training.loss": ("logits",),
    "lora.rank": ("gradients", "optimizer"),
    "lora.targets": ("gradients", "optimizer", "activations"),
    "lora.quantization": ("weights",),
    "inference.weights": ("weights",),
    "inference.cache_dtype": ("activations",),
    "parallel.strategy": MODEL_STATES,
    "parallel.sharding": MODEL_STATES,
    "parallel.cpu_offload": MODEL_STATES,
    "parallel.reduce_dtype": ("gradients",),
}
"""What the value of a job key decides, where it is in doubt."""


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
class Uncertainty:
    """A component of the budget that may be another than the job's settings make it."""

    component: Component
    direction: UncertaintyDirection
    unless: str | None
    """A job key: the doubt is gone where the user says its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalBatch:
    """Sequences per optimizer step over all ranks, where that is what is written: the accumulation follows from it."""

    sequences: int
    origin: str
    written: bool
    rounds_up: bool
    """What does not divide evenly makes one more step rather than one fewer."""

    def steps(self, each: int) -> int:
        """Accumulation steps, where every one of them takes ``each`` sequences over all ranks."""
        return max(1, -(-self.sequences // each) if self.rounds_up else self.sequences // each)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReading:
    """A job as far as it could be read."""

    findings: tuple[Finding, ...]
    """One per key, in the order of the job file."""
    missing: tuple[str, ...]
    """Keys that matter and were not found; the user is asked for them."""
    warnings: tuple[str, ...]
    """What was seen and not understood, or what the estimate cannot count; one sentence each."""
    uncertainties: tuple[Uncertainty, ...] = ()
    """By how much that may change the memory; it widens the estimate's range."""
    global_batch: GlobalBatch | None = None

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
        found |= self._uncertainties_left(overrides or {})
        job = with_changes(with_changes(Job(), found, where="what was read"), overrides or {}, where="your changes")
        if self.global_batch is None or _ACCUMULATION in (overrides or {}):
            return job
        steps = self.global_batch.steps(job.training.micro_batch * job.parallel.data_ranks)
        return with_changes(job, {_ACCUMULATION: steps}, where=self.global_batch.origin)

    def _uncertainties_left(self, overrides: Mapping[str, Any]) -> dict[str, UncertaintyDirection]:
        doubts: dict[str, UncertaintyDirection] = {}
        for each in self.uncertainties:
            if each.unless is None or each.unless not in overrides:
                key = f"unsure.{each.component}"
                doubts[key] = each.direction if doubts.get(key, each.direction) == each.direction else "either"
        return doubts

    def still_missing(self, overrides: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """What is missing after the user's changes; a ``model.config`` stands in for ``model.id``."""
        given = set(overrides or {})
        if "model.config" in given:
            given.add("model.id")
        return tuple(key for key in self.missing if key not in given)


class FindingCollector:
    """Findings and warnings while they are gathered. The first finding of a key stays, so ask the best source first."""

    def __init__(self) -> None:
        self._findings: dict[str, Finding] = {}
        self._warnings: list[str] = []
        self._needed = list(REQUIRED_KEYS)
        self._uncertainties: dict[Uncertainty, None] = {}
        self._global_batch: GlobalBatch | None = None

    def put(self, key: str, value: Any, origin: str, *, written: bool = True) -> None:
        """Note a value, unless the key has one already."""
        self._findings.setdefault(key, Finding(key=key, value=value, origin=origin, written=written))

    def warn(self, *sentences: str) -> None:
        """Note sentences for the user, each once."""
        self._warnings += [sentence for sentence in sentences if sentence not in self._warnings]

    def add_uncertainty(
        self, direction: UncertaintyDirection, *components: Component, unless: str | None = None
    ) -> None:
        """Note what may be another than the job says: ``less``, ``more`` or ``either``; until the user says a key."""
        for component in components:
            self._uncertainties[Uncertainty(component=component, direction=direction, unless=unless)] = None

    def mark_uncertain(self, key: str, sentence: str, *, direction: UncertaintyDirection = "either") -> None:
        """Note that a key's value is in doubt, and with it what it decides; until the user says it."""
        self.warn(sentence)
        self.add_uncertainty(direction, *_DECIDES[key], unless=key)

    def put_global_batch(
        self, sequences: int | None, origin: str, *, written: bool = True, rounds_up: bool = False
    ) -> None:
        """Note the sequences per step over all ranks, if they are known; the accumulation is what is left of it."""
        if sequences is not None:
            self._global_batch = GlobalBatch(sequences=sequences, origin=origin, written=written, rounds_up=rounds_up)

    def require(self, key: str) -> None:
        """Ask the user for a key, unless it is found."""
        self._needed.append(key)

    def get(self, key: str) -> Finding | None:
        """What was noted for a key."""
        return self._findings.get(key)

    def build(self) -> JobReading:
        """All of it; what is needed and was not noted is missing."""
        self._findings |= {finding.key: finding for finding in self._accumulation()}
        tables = ("name", "model", "training", "lora", "inference", "parallel", "target", "software", "run")
        findings = sorted(self._findings.values(), key=lambda finding: tables.index(finding.key.partition(".")[0]))
        known = {*self._findings, *(["model.id"] if "model.config" in self._findings else [])}
        return JobReading(
            findings=tuple(findings),
            missing=tuple(key for key in dict.fromkeys(self._needed) if key not in known),
            warnings=tuple(self._warnings),
            uncertainties=tuple(self._uncertainties),
            global_batch=self._global_batch,
        )

    def _accumulation(self) -> Iterator[Finding]:
        """From the global batch, where the ranks are known."""
        total, micro = self._global_batch, self.get("training.micro_batch")
        shard, copies = self.get("parallel.data_shard"), self.get("parallel.data_replicate")
        open_ranks = {"parallel.data_shard", "parallel.data_replicate"} & (set(self._needed) - set(self._findings))
        if total is None or micro is None or open_ranks:
            return
        ranks = (shard.value if shard else 1) * (copies.value if copies else 1)
        steps = total.steps(micro.value * ranks)
        origin = f"{total.origin}, over micro-batch and data-parallel ranks"
        yield Finding(key=_ACCUMULATION, value=steps, origin=origin, written=total.written)
