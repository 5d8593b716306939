"""The measurement: what was predicted of one run, and what was seen of it. Without paths, names or secrets."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from ..budget import Budget, Components, Method, PhaseName, PlainJob, Span
from ..common.errors import InputError, VramtopError
from ..common.fields_of import FieldsOf
from ..common.untrusted_files import check_nesting
from ..job.job import Job
from ..job.job_file.changes import job_from_mapping
from ..job.settings import ModelSpec, Parallel, Run, Software, Target, Training, Uncertainties
from ..model.architecture import Architecture
from ..model.families.registry import FAMILIES
from ..model.find_config import find_built_in
from ..model.read_architecture import read_architecture

_KEPT = {
    "training": ("micro_batch", "sequence_length"),
    "parallel": ("strategy", "data_shard", "data_replicate", "tensor", "pipeline", "context"),
}
"""Settings that are kept, by table."""
RunState = Literal["steady", "ended", "short", "growing", "out_of_memory"]
"""State of the run whose peaks these are: at its final level of memory, still running (``steady``) or over
(``ended``); one that ended before it reached that level (``short``); one that leaked (``growing``), or that failed."""
DeviceSource = Literal["probe", "accounting", "readings", "measure"]
"""Source of the memory of the process: torch's counters and a reading of NVML (``probe``), the driver's accounting,
readings of NVML alone, which miss a peak between two of them, or ``vramtop measure``."""
AllocatorSource = Literal["probe", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The highest memory that was seen of the rank with the highest peak, in bytes; None: nobody knew it."""

    allocated_bytes: int | None = None
    """``torch.cuda.max_memory_allocated`` since the process started."""
    reserved_bytes: int | None = None
    """``torch.cuda.max_memory_reserved``."""
    device_bytes: int | None = None
    """Memory of the process in NVML."""
    allocator_source: AllocatorSource | None = None
    """Source of the allocator's figures."""
    device_source: DeviceSource | None = None
    """Source of the memory of the process."""

    def joined(self, other: "Observed") -> "Observed":
        """Return the higher figures of two observations of one run."""
        first, second = (self, other) if (self.device_bytes or 0) >= (other.device_bytes or 0) else (other, self)
        return Observed(
            allocated_bytes=_most(self.allocated_bytes, other.allocated_bytes),
            reserved_bytes=_most(self.reserved_bytes, other.reserved_bytes),
            device_bytes=first.device_bytes,
            allocator_source=first.allocator_source or second.allocator_source,
            device_source=first.device_source,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """The peak that one method predicted, as it was before any correction; sizes are bytes."""

    method: Method
    """Method of the estimate."""
    version: str
    """Version of vramtop."""
    phase: PhaseName
    """Part of the run in which the peak is."""
    components: Components
    """Bytes by purpose at the peak."""
    outside_bytes: int
    """Bytes among ``components`` that never pass through torch's allocator."""
    allocated_bytes: int
    """``torch.cuda.max_memory_allocated``."""
    reserved_bytes: int
    """``torch.cuda.max_memory_reserved``."""
    device_bytes: int
    """Memory of the process in NVML."""
    device_range: Span
    """Range of ``device_bytes``."""
    allocated_range: Span | None = None
    """Range of ``allocated_bytes``; None: unknown."""
    reserved_range: Span | None = None
    """Range of ``reserved_bytes``; None: unknown."""

    @classmethod
    def of(cls, budget: Budget, version: str) -> "Predicted":
        """Return what a budget predicts, without its correction; the peak of the rank with the highest one.

        Args:
            budget: a budget.
            version: of vramtop.
        """
        learned, peak = budget.learned, budget.peak
        phase = budget.phase(peak.phase)
        outside = phase.outside_bytes if phase else peak.components.context
        if learned is not None:
            peak, outside = learned.uncorrected, learned.uncorrected_outside_bytes
        return cls(
            method=budget.method,
            version=version,
            phase=peak.phase,
            components=peak.components,
            outside_bytes=outside,
            allocated_bytes=peak.allocated_bytes,
            reserved_bytes=peak.reserved_bytes,
            device_bytes=peak.device_bytes,
            device_range=peak.device_range,
            allocated_range=peak.allocated_range,
            reserved_range=peak.reserved_range,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One run: its job, its card, what was predicted, and what was seen."""

    run: str
    """Digest that identifies the run: the same from every vramtop that follows it."""
    job: Job
    """The batch, the length and the parallel sizes of the job; see ``kept_job``."""
    model: str
    """The model in words: its public name where vramtop knows it, else family and size."""
    shape: str
    """Digest of the model's architecture."""
    settings: str
    """Digest of the settings on which a step depends."""
    predicted: tuple[Predicted, ...]
    """One for each method that estimated the job."""
    observed: Observed
    state: RunState
    card: str | None = None
    """The GPU's name, as NVML gives it."""
    card_bytes: int | None = None
    """Its memory."""
    driver: str | None = None
    """Version of the driver."""
    machine: str = ""
    """Digest that identifies the machine; empty: unknown."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of libraries in the run, by name: torch, transformers, ..."""
    command: str | None = None
    """Digest of the command line."""
    allocator: str = ""
    """The allocator's settings (``PYTORCH_CUDA_ALLOC_CONF``); empty: the defaults."""
    time: float
    """Unix seconds at which the figures were last seen."""

    @property
    def is_complete(self) -> bool:
        """True if its figures are the peaks of a run that reached its final level and did not leak."""
        return self.state in ("steady", "ended")


def merged(old: Measurement, new: Measurement) -> Measurement:
    """Return one record of two observations of the same run: the newer one, with the higher figures of both.

    A run that has ended stays ended, and one that has leaked keeps that state.
    """
    first, last = (old, new) if old.time <= new.time else (new, old)
    predicted = {each.method: each for each in (*first.predicted, *last.predicted)}
    state = last.state
    for lasting in ("growing", "out_of_memory", "ended"):
        if lasting in (first.state, last.state):
            state = lasting
            break
    return replace(
        last,
        predicted=tuple(predicted.values()),
        observed=first.observed.joined(last.observed),
        state=state,
        versions={**first.versions, **last.versions},
        command=last.command or first.command,
        card=last.card or first.card,
        driver=last.driver or first.driver,
    )


def digest(*parts: object) -> str:
    """Return 16 hexadecimal digits that stand for these values and do not tell them."""
    text = "\0".join(str(part) for part in parts)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def _most(one: int | None, other: int | None) -> int | None:
    return max((size for size in (one, other) if size is not None), default=None)


# What is kept of a job: words and numbers for people, and digests of its model and settings, by which another job is
# recognised as the same. Folders, models, classes, run names, keys and URLs are in neither.


_VERSION = re.compile(r"v?\d+(\.\d+)*")
_ALLOCATOR = re.compile(r"[\w:,.\[\]> ]*", re.ASCII)
"""``max_split_size_mb:512,expandable_segments:True`` (torch's notes on CUDA, PYTORCH_CUDA_ALLOC_CONF)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptJob:
    """The parts of a job that are kept with its measurement."""

    job: Job
    """Its batch, its length and its parallel sizes."""
    model: str
    """The model in words: its public name where vramtop knows it, else family and size."""
    shape: str
    """Digest of the model's architecture."""
    settings: str
    """Digest of the settings on which a step depends."""


def allocator_words(settings: str | None) -> str:
    """Return the allocator's settings as they are kept: keys and numbers; a digest of anything else."""
    text = (settings or "").strip()
    return text if _ALLOCATOR.fullmatch(text) else f"#{digest(text)}"


def release_number(version: str) -> str | None:
    """Return the number at the start of a version, without what its builder has added; None: there is none."""
    found = _VERSION.match(version)
    return found[0] if found else None


def kept_job(job: Job, config: Mapping[str, Any] | None, *, parameters: int | None = None) -> KeptJob:
    """Return what is kept of a job.

    Args:
        job: the job.
        config: its model's config; None or empty: unknown, or the model is code.
        parameters: of the model; None: unknown.
    """
    arch = _architecture(config, job)
    return KeptJob(
        job=Job(
            training=Training(**{name: getattr(job.training, name) for name in _KEPT["training"]}),
            parallel=Parallel(**{name: getattr(job.parallel, name) for name in _KEPT["parallel"]}),
        ),
        model=_label(job.model, arch, parameters),
        shape=digest(sorted(asdict(arch).items(), key=str)) if arch else digest(job.model.id, config, parameters),
        settings=settings_digest(job),
    )


def settings_digest(job: Job, *names: str) -> str:
    """Return a digest of the settings on which a step depends.

    Args:
        job: the job.
        *names: digests of settings that a record without this digest does not have.
    """
    software = job.software
    table = msgspec.structs.replace(
        job,
        name=None,
        model=ModelSpec(task=job.model.task, attention=job.model.attention),
        training=msgspec.structs.replace(job.training, trainable_parameters=None),
        saving=None,
        target=Target(),
        software=Software(module_loading=software.module_loading, cublas_workspace=software.cublas_workspace),
        unsure=Uncertainties(),
        run=Run(),
    )
    return digest(json.dumps(msgspec.to_builtins(table), sort_keys=True), *names)  # without what is at its default


def _architecture(config: Mapping[str, Any] | None, job: Job) -> Architecture | None:
    if not config:
        return None
    try:
        return read_architecture(config, job.model.task, where="config")
    except VramtopError:
        return None


def _label(spec: ModelSpec, arch: Architecture | None, parameters: int | None) -> str:
    built_in = find_built_in(spec.id) if spec.id and arch else None
    if built_in and arch and _outline(read_architecture(built_in.config, arch.task, where="config")) == _outline(arch):
        return built_in.label
    family = arch.family if arch and arch.family in FAMILIES else "own model"
    return family if parameters is None else f"{family} {_short_count(parameters)}"


def _outline(arch: Architecture) -> tuple[object, ...]:
    return arch.family, arch.layers, arch.hidden, arch.mlp_size, arch.heads, arch.kv_heads, arch.vocab


def _short_count(count: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


# The JSON of a measured run, key by key (``vramtop history --json``); its schema is made from these types.


class _Measurement(TypedDict):
    run: str
    """Digest that identifies the run: the same from every vramtop that follows it."""
    time: float
    """Unix seconds at which its figures were last seen."""
    state: RunState
    """State of the run whose peaks these are: at its final level of memory, still running (`steady`) or over
    (`ended`); one that ended before it reached that level (`short`); one that leaked (`growing`), or that failed
    (`out_of_memory`)."""
    model: str
    """The model in words: its public name where vramtop knows it, else family and size."""
    shape: str
    """Digest of the model's architecture."""
    observed: Annotated[dict[str, Any], FieldsOf(Observed, only_known=True)]
    """The highest memory that was seen."""
    predicted: list[Annotated[dict[str, Any], FieldsOf(Predicted, only_known=True)]]
    """Prediction of each method that estimated the job."""
    job: PlainJob
    """What is kept of the job, without names of the user's: the tables of a job file."""
    settings: str
    """Digest of the settings on which a step depends."""


class MeasurementJson(_Measurement, total=False):
    """One run: its job, its GPU, what was predicted, and what was seen. What is unknown is left out."""

    card: str
    """The GPU's name, as NVML gives it; absent: unknown."""
    card_bytes: int
    """Memory of the GPU in bytes; absent: unknown."""
    driver: str
    """Version of the driver; absent: unknown."""
    machine: str
    """Digest that identifies the machine; absent: unknown."""
    versions: dict[str, str]
    """Versions of libraries in the run, by name: torch, transformers, ...; absent: unknown."""
    command: str
    """Digest of the command line; absent: unknown."""
    allocator: str
    """The allocator's settings (`PYTORCH_CUDA_ALLOC_CONF`); absent: its defaults."""


# Converts a measurement to plain data and back.


def measurement_to_json(measurement: Measurement) -> "MeasurementJson":
    """Return plain dicts and lists; what is unknown is left out."""
    job = measurement.job
    found: MeasurementJson = {
        "run": measurement.run,
        "time": measurement.time,
        "state": measurement.state,
        "model": measurement.model,
        "shape": measurement.shape,
        "observed": _known(asdict(measurement.observed)),
        "predicted": [_known(asdict(each)) for each in measurement.predicted],
        "job": {table: {name: getattr(getattr(job, table), name) for name in names} for table, names in _KEPT.items()},
        "settings": measurement.settings,
    }
    for name in MeasurementJson.__annotations__:
        value = getattr(measurement, name)
        if value and name not in found:
            found[name] = value  # type: ignore[literal-required]
    return found


def measurement_from_json(data: Mapping[str, Any]) -> Measurement:
    """Return the measurement that ``measurement_to_json`` wrote; unknown keys are ignored.

    Raises:
        InputError: it is not such data.
    """
    try:
        facts = msgspec.convert(data, dict[str, Any])
        job = msgspec.convert(facts.get("job"), dict[str, Any])
        check_nesting(job)
        read = msgspec.convert({"settings": "", **facts, "job": {}}, Measurement)
        hidden = [msgspec.convert(facts["hidden"], str)] if facts.get("hidden") else []
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(f"this is not a measurement that vramtop wrote: {error}") from None
    kept = job_from_mapping(job, where="the measurement's job")
    # earlier versions kept the settings themselves, and a digest of those that are names
    return replace(read, job=kept, settings=read.settings or settings_digest(kept, *hidden))


def _known(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}
