"""The parts of a job that are kept with its measurement, by which another job is recognised as the same.

Words and numbers for people, and digests of its model and settings: folders, models, classes, run names, keys and URLs
are in neither.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from ..common.errors import VramtopError
from ..job.job import Job
from ..job.job_file.changes import job_differences
from ..job.settings import ModelSpec, Parallel, Run, Software, Target, Training, Uncertainties
from ..model.architecture import Architecture
from ..model.families.registry import FAMILIES
from ..model.find_config import find_built_in
from ..model.read_architecture import read_architecture
from .measurement import digest

KEPT = {
    "training": ("micro_batch", "sequence_length"),
    "parallel": ("strategy", "data_shard", "data_replicate", "tensor", "pipeline", "context"),
}
"""Settings that are kept, by table."""
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
            training=Training(**{name: getattr(job.training, name) for name in KEPT["training"]}),
            parallel=Parallel(**{name: getattr(job.parallel, name) for name in KEPT["parallel"]}),
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
    return digest(json.dumps(job_differences(Job(), table), sort_keys=True), *names)


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
