"""The measurement: what was predicted of one run, and what was seen of it. Without paths, names or secrets."""

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin

import msgspec

from ..budget import Budget, Components, FieldsOf, Method, PhaseName, PlainJob, Span
from ..common.errors import InputError, VramtopError
from ..common.untrusted_files import check_nesting
from ..job.gpu_catalogue import find_gpu
from ..job.job import Job
from ..job.job_file.changes import job_from_mapping, job_to_mapping
from ..job.settings import ModelSpec
from ..model.architecture import Architecture
from ..model.families import FAMILIES
from ..model.find_config import find_built_in
from ..model.read_architecture import read_architecture

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
    """The job without what names something of the user's; see ``private_job``."""
    model: str
    """The model in words: its public name where vramtop knows it, else family and size."""
    shape: str
    """Digest of the model's architecture."""
    hidden: str = ""
    """Digest of those settings that are not kept because they are names (patterns, classes); empty: there are none."""
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


# A job without what names something of the user's: folders, models, classes, parameters, run names, keys, URLs.
#
# A text is kept only if it is one of the words that vramtop itself offers for that setting, or the number of a version.
# Everything else is removed, and its digest tells two jobs apart that differ in it; of a model's config only the digest
# of its architecture is kept.


_VERSION = re.compile(r"v?\d+(\.\d+)*")
_ALLOCATOR = re.compile(r"[\w:,.\[\]> ]*", re.ASCII)
"""``max_split_size_mb:512,expandable_segments:True`` (torch's notes on CUDA, PYTORCH_CUDA_ALLOC_CONF)."""
_WORKSPACE = re.compile(r"(:\d{1,9}:\d{1,9}){1,9}")
_DEVICE_SIZE = re.compile(r"\d+(\.\d+)? ?[KMGT]?i?B?")
_LAYER_WORDS = (
    "all-linear q_proj k_proj v_proj o_proj gate_proj up_proj down_proj qkv_proj gate_up_proj query_key_value dense "
    "dense_h_to_4h dense_4h_to_h c_attn c_proj c_fc fc1 fc2 out_proj lm_head embed_tokens query key value wq wk wv wo "
    "w1 w2 w3 q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj"
)
_PUBLIC_LAYERS = frozenset(_LAYER_WORDS.split())
"""Names of layers in public models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateJob:
    """A job without what names something of the user's."""

    job: Job
    model: str
    """The model in words: its public name where vramtop knows it, else family and size."""
    shape: str
    """Digest of the model's architecture."""
    hidden: str
    """Digest of those settings that were removed and on which memory may depend; empty: there are none."""


def allocator_words(settings: str | None) -> str:
    """Return the allocator's settings as they are kept: keys and numbers; a digest of anything else."""
    text = (settings or "").strip()
    return text if _ALLOCATOR.fullmatch(text) else f"#{digest(text)}"


def release_number(version: str) -> str | None:
    """Return the number at the start of a version, without what its builder has added; None: there is none."""
    found = _VERSION.match(version)
    return found[0] if found else None


def private_job(job: Job, config: Mapping[str, Any] | None, *, parameters: int | None = None) -> PrivateJob:
    """Return a job without names.

    Args:
        job: the job.
        config: its model's config; None or empty: unknown, or the model is code.
        parameters: of the model; None: unknown.
    """
    removed: list[object] = []
    facts = _without_names(job, "", removed)
    arch = _architecture(config, job)
    shape = digest(sorted(asdict(arch).items(), key=str)) if arch else digest(job.model.id, config, parameters)
    return PrivateJob(
        job=facts,
        model=_label(job.model, arch, parameters),
        shape=shape,
        hidden=digest(*removed) if removed else "",
    )


def _without_names(table: Any, path: str, removed: list[object]) -> Any:
    """Return a table of a job without names; what memory may depend on is added to ``removed``."""
    changes = {}
    for each in msgspec.structs.fields(type(table)):
        name, value = f"{path}{each.encode_name}", getattr(table, each.name)
        kept = _kept(name, value, each.type, removed)
        if kept is not value:
            changes[each.name] = kept
    return msgspec.structs.replace(table, **changes) if changes else table


def _kept(name: str, value: Any, type_: Any, removed: list[object]) -> Any:
    """Return the value of a setting, or what is kept in its place."""
    if isinstance(value, msgspec.Struct):
        return type(value)() if name == "run" else _without_names(value, f"{name}.", removed)
    if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
        return [_without_names(each, f"{name}.", removed) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    if name in ("name", "model.id", "model.code_folder", "model.config"):
        return None
    if name == "target.gpu":
        return value if _is_known_gpu(value) else None
    if name == "software.cublas_workspace":
        return value if _WORKSPACE.fullmatch(value) else None
    if name.startswith("software.") and not _choices(type_):
        return release_number(value)
    choices = _choices(type_)
    texts = value if isinstance(value, list) else [value]
    if all(isinstance(text, str) and text in choices for text in texts):
        return value
    return _replacement(name, value, removed)


def _replacement(name: str, value: Any, removed: list[object]) -> Any:
    """Return what is kept in place of a name on which memory depends."""
    if name == "lora.targets" and _PUBLIC_LAYERS.issuperset(value):
        return value
    if name == "parallel.max_memory" and all(_is_device(key, size) for key, size in value.items()):
        return value
    if name == "training.optimizer_options":
        removed.extend(sorted((key, each) for key, each in value.items() if not isinstance(each, bool | int | float)))
        return {key: each for key, each in value.items() if isinstance(each, bool | int | float)} or None
    removed.append((name, str(value)))
    if name == "lora.targets":
        return [each if each in _PUBLIC_LAYERS else f"x{digest(each)}" for each in value]
    if name == "training.optimizer":
        return f"private:C{digest(value)}"
    return None


def _is_device(name: str, size: object) -> bool:
    return (name.isdigit() or name in ("cpu", "disk")) and bool(_DEVICE_SIZE.fullmatch(str(size)))


def _is_known_gpu(name: str) -> bool:
    try:
        find_gpu(name)
    except VramtopError:
        return False
    return True


@functools.cache
def _choices(type_: Any) -> frozenset[object]:
    """Return the words that a setting's type offers."""
    if get_origin(type_) is Literal:
        return frozenset(get_args(type_))
    words = set[object]()
    for each in get_args(type_):
        if isinstance(each, msgspec.Meta):
            words.update((each.extra or {}).get("choices", ()))
        elif get_args(each):
            words |= _choices(each)
    return frozenset(words)


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
    """The job without names of the user's: the tables of a job file."""


class MeasurementJson(_Measurement, total=False):
    """One run: its job, its GPU, what was predicted, and what was seen. What is unknown is left out."""

    hidden: str
    """Digest of those settings that are not kept because they are names (patterns, classes); absent: there are none."""
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
    found: MeasurementJson = {
        "run": measurement.run,
        "time": measurement.time,
        "state": measurement.state,
        "model": measurement.model,
        "shape": measurement.shape,
        "observed": _known(asdict(measurement.observed)),
        "predicted": [_known(asdict(each)) for each in measurement.predicted],
        "job": job_to_mapping(measurement.job),
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
        read = msgspec.convert({**facts, "job": {}}, Measurement)
    except (msgspec.ValidationError, ValueError) as error:
        raise InputError(f"this is not a measurement that vramtop wrote: {error}") from None
    return replace(read, job=job_from_mapping(job, where="the measurement's job"))


def _known(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}
