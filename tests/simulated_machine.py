"""A simulated machine whose memory differs from every prediction in a hidden way, and the runs that are seen on it."""

from dataclasses import dataclass, field
from functools import cache
from random import Random

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.learning.kept_job import kept_job
from vramtop.estimator.learning.measurement import Measurement, Observed, Predicted
from vramtop.estimator.learning.subject import Subject
from vramtop.estimator.model.find_config import resolve_model

DAY = 86_400.0
MIB = 2**20
CARD = "NVIDIA H100 80GB HBM3"
NOW = 1_800_000_000.0


def job(model: str = "llama-3.2-1b", micro_batch: int = 2, length: int = 2048, **training: object) -> Job:
    """Make a job in bf16."""
    settings = {
        "micro_batch": micro_batch,
        "sequence_length": length,
        "precision": "bf16",
        "optimizer": "adamw",
        **training,
    }
    return job_from_mapping({"model": {"id": model}, "training": settings}, where="test")


@cache
def _estimated(text: str) -> Budget:
    return estimate(job_from_mapping(eval(text), where="test"), gpu=find_gpu("h100"))  # noqa: S307


def budget_of(each: Job) -> Budget:
    """Estimate a job by the closed form, once."""
    from vramtop.estimator.job.job_file.changes import job_to_mapping

    return _estimated(repr(job_to_mapping(each)))


def subject_of(each: Job, **changes: object) -> Subject:
    """Make the subject of a job on the simulated machine."""
    place = {"card": CARD, "machine": "here", "versions": {"torch": "2.9.1"}, **changes}
    return Subject.of_job(each, resolve_model(each.model).config, **place)  # type: ignore[arg-type]


@dataclass
class Machine:
    """A machine whose stack takes more or less than is predicted.

    Args:
        tokens: share of the step's bytes that it takes more.
        slack: share of the allocated bytes that its allocator keeps more.
        context: bytes of context that it takes more.
        fixed: bytes that it holds more, whatever the batch.
        own: share of the step's bytes by which each job differs from all others.
        noise: share of the step's bytes by which two runs of one job differ.
        drift: share of the step's bytes by which it changes per day.
    """

    tokens: float = 0.0
    slack: float = 0.0
    context: int = 0
    fixed: int = 0
    own: float = 0.0
    noise: float = 0.004
    drift: float = 0.0
    random: Random = field(default_factory=lambda: Random(1))  # noqa: S311 - a simulation
    _own: dict[str, float] = field(default_factory=dict)
    _runs: int = 0

    def truth(self, each: Job, *, days_ago: float = 0.0, noisy: bool = True) -> Observed:
        """What a run of a job takes."""
        peak = budget_of(each).peak
        parts = peak.components
        step = peak.allocated_bytes - parts.weights - parts.gradients - parts.optimizer
        own = self._own.setdefault(repr(each), self.random.gauss(0, self.own) if self.own else 0.0)
        share = self.tokens + own - self.drift * days_ago + (self.random.gauss(0, self.noise) if noisy else 0.0)
        allocated = round(peak.allocated_bytes + share * step + self.fixed)
        reserved = round(allocated + peak.reserved_bytes - peak.allocated_bytes + self.slack * allocated)
        device = reserved + peak.device_bytes - peak.reserved_bytes + self.context
        return Observed(
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            device_bytes=device,
            allocator_source="probe",
            device_source="probe",
        )

    def run(self, each: Job, *, days_ago: float = 1.0, known: str = "probe", **changes: object) -> Measurement:
        """Follow a run of a job; ``known``: who knew its figures."""
        observed = self.truth(each, days_ago=days_ago)
        if known == "readings":
            observed = Observed(device_bytes=observed.device_bytes, device_source="readings")
        kept = kept_job(each, resolve_model(each.model).config)
        self._runs += 1
        measurement = Measurement(
            run=f"{id(self):x}-{self._runs}",
            job=kept.job,
            model=kept.model,
            shape=kept.shape,
            settings=kept.settings,
            predicted=(Predicted.of(budget_of(each), "1"),),
            observed=observed,
            state="ended",
            card=CARD,
            machine="here",
            driver="580.1",
            versions={"torch": "2.9.1"},
            time=NOW - days_ago * DAY,
        )
        return replace(measurement, **changes)  # type: ignore[arg-type]
