"""The traced step: a Budget from what a worker process saw torch allocate in two steps of the real model."""

import hashlib
import os
from collections.abc import Mapping
from math import hypot
from pathlib import Path
from typing import Any

import msgspec
from platformdirs import user_cache_dir

from ..budget.budget import Budget, Components, LargeTensor, ModelFacts, Peak, Phase, PhaseMark, PhaseName, Timeline
from ..common.errors import CannotTellError
from ..common.sizes import MIB
from ..formula.assumptions import assumptions, warnings
from ..formula.cuda_overhead import context_bytes, nccl_bytes, workspace_bytes
from ..job.gpu_catalogue import Gpu, generation_of
from ..job.job import Job
from ..job.job_file import job_to_mapping
from ..job.version_rules import steps_take_same_memory, version_rules
from ..model.architecture import Architecture
from ..model.find_config import ResolvedModel
from .allocator_report import (
    AllocatorCapacity,
    ReservedMemory,
    allocator_assumptions,
    allocator_settings,
    allocator_warnings,
    capacity_on,
    replay_allocations,
)
from .interpreters import Interpreter, choose_interpreter
from .worker_cache import read_cached, write_cached
from .worker_pool import POOL
from .worker_process import WORKER_PROGRAM

_HINT = "; method exact answers by rule"
_FORMAT = 2
"""Of the answers in the cache; another number there is a miss."""
_PHASES: tuple[PhaseName, ...] = ("loading", "forward", "backward", "optimizer step")


class TracedPhase(msgspec.Struct, frozen=True):
    """The fullest moment of one phase of the second step."""

    allocated: int
    components: dict[str, int]


class Trace(msgspec.Struct, frozen=True):
    """A worker's answer to the request ``trace_job``."""

    parameters: int
    trainable: int
    phases: dict[PhaseName, TracedPhase]
    peak_tensors: tuple[LargeTensor, ...]
    timeline: tuple[tuple[int, int], ...]
    """(event, allocated bytes) of the second step."""
    timeline_components: dict[str, tuple[int, ...]]
    timeline_phases: tuple[tuple[PhaseName, int], ...]
    """Each phase and its first event."""
    reserved: ReservedMemory
    """On a card without end."""
    allocations: str
    """All of them, packed, to replay on a card of some size."""
    versions: dict[str, str]

    @property
    def events(self) -> list[int]:
        """Those of the timeline."""
        return [event for event, _ in self.timeline]


def traced_budget(
    job: Job,
    model: ResolvedModel,
    arch: Architecture | None,
    *,
    gpu: Gpu | None = None,
    memory_bytes: int | None = None,
    python: str | None = None,
    environ: Mapping[str, str] | None = None,
    timeout: float = 900,
) -> Budget:
    """Predict the memory of a job from its own training step, run on fake tensors.

    Args:
        job: what is trained.
        model: its config.
        arch: its shape; None where its config tells none.
        gpu: the card, for what CUDA itself takes; a Hopper card when left out.
        memory_bytes: the card's size, where it is another one or the card is not known.
        python: the interpreter with torch and transformers; searched for when left out.
        environ: where the job's allocator settings are looked up; this process's own environment when left out.
        timeout: seconds.

    Raises:
        InputError: ``python`` is not there.
        CannotTellError: no interpreter can run it, or it is a job that tracing cannot run.
    """
    variable, conf = allocator_settings(os.environ if environ is None else environ) or (None, None)
    found = trace_job(job, model, conf=conf, python=python, timeout=timeout, hint=_HINT if arch else "")
    rules, generation = version_rules(job), generation_of(gpu)
    workspace, nccl = workspace_bytes(generation, setting=job.software.cublas_workspace), nccl_bytes(job.parallel)
    phases = tuple(
        _phase(name, found.phases[name], context_bytes(rules, generation, kernels=name != "loading"), workspace, nccl)
        for name in _PHASES
        if name in found.phases
    )
    fullest = max(phases, key=lambda phase: phase.components.total_bytes)
    outside = fullest.outside_bytes
    room = capacity_on(gpu, memory_bytes, outside + workspace)
    on_card = _on_card(found, conf, room)
    held = found.reserved if on_card.out_of_memory else on_card  # what it would take, where it cannot have it
    reserved = max(held.peak + workspace, fullest.allocated_bytes)
    slack = reserved - fullest.allocated_bytes
    # the trace's own error, the replay's, and what CUDA and NCCL take outside of torch
    unsure = (0.02 * fullest.allocated_bytes, 0.5 * slack, 0.5 * nccl, 250 * MIB)
    peak = Peak(
        phase=fullest.name,
        components=fullest.components,
        allocated_bytes=fullest.allocated_bytes,
        reserved_bytes=reserved,
        device_bytes=reserved + outside,
        low_bytes=reserved + outside - round(hypot(*unsure)),
        high_bytes=reserved + outside + round(hypot(*unsure, 0.02 * reserved)),
    )
    versions = ", ".join(f"{name} {number}" for name, number in found.versions.items())
    return Budget(
        job=job,
        model=ModelFacts(
            parameters=found.parameters - (found.trainable if job.lora else 0),  # peft's adapters are among them
            trainable_parameters=found.trainable,
            count="exact",
        ),
        method="traced",
        phases=phases,
        peak=peak,
        steady_device_bytes=peak.device_bytes,
        assumptions=(
            f"Two steps were traced with {versions}.",
            *assumptions(job, arch, gpu),
            *allocator_assumptions(variable, held),
        ),
        warnings=(
            *warnings(job, arch, None),
            *allocator_warnings(on_card, found.reserved.peak + workspace, room),
        ),
        largest=found.peak_tensors,
        timeline=_timeline(found, held, context_bytes(rules, generation), workspace, nccl),
    )


def trace_job(
    job: Job,
    model: ResolvedModel,
    *,
    conf: str | None = None,
    python: str | None = None,
    timeout: float = 900,
    hint: str = _HINT,
) -> Trace:
    """What the worker saw, or what it saw of the same job before.

    Args:
        job: what is trained.
        model: its config.
        conf: the allocator's settings.
        python: the interpreter with torch and transformers; searched for when left out.
        timeout: seconds.
        hint: what to do about a job that tracing cannot run.

    Raises:
        InputError: ``python`` is not there.
        CannotTellError: no interpreter can run it, or it is a job that tracing cannot run.
    """
    interpreter = choose_interpreter(python, os.environ)
    if not steps_take_same_memory(job, torch=interpreter.torch, transformers=interpreter.transformers):
        raise CannotTellError(
            f"the job's software takes another step than torch {interpreter.torch} and transformers "
            f"{interpreter.transformers} of {interpreter.path}; method exact has rules"
        )
    request = _request(job, model, conf)
    file = _cache_file(request, interpreter)
    # code may change at any time, so its answers are not kept
    answer = None if request["code"] else read_cached(file, _FORMAT, Trace)
    if answer is not None:
        return answer
    message = POOL.request(interpreter, request, timeout)
    if message.get("unsupported"):
        raise CannotTellError(f"{message['unsupported']}{hint}")
    try:
        answer = msgspec.convert(message, Trace)
    except msgspec.ValidationError as error:
        raise CannotTellError(f"the worker's answer is not understood: {error}") from None
    if not request["code"]:
        write_cached(file, _FORMAT, message)
    return answer


def _request(job: Job, model: ResolvedModel, conf: str | None) -> dict[str, Any]:
    tables = job_to_mapping(job)
    return {
        "op": "trace",
        "config": dict(model.config),
        "task": job.model.task,
        "attention": job.model.attention,
        "training": tables["training"],
        "lora": tables.get("lora"),
        "parallel": tables["parallel"],
        "code": _code(job, model),
        "allocator": {"conf": conf},
    }


def _code(job: Job, model: ResolvedModel) -> dict[str, Any] | None:
    """The user's code that the worker may run: the model's, or a tensor-parallel plan's."""
    if model.code is not None:
        return dict(model.code)
    return {"folder": str(Path(job.model.code_folder or "").resolve())} if job.parallel.tensor_plan else None


def _cache_file(request: Mapping[str, Any], interpreter: Interpreter) -> Path:
    programs = sorted(WORKER_PROGRAM.parent.rglob("*.py"))
    code = [hashlib.sha256(program.read_bytes()).hexdigest() for program in programs]
    libraries = [interpreter.torch, interpreter.transformers, interpreter.peft]
    key = msgspec.json.encode([request, libraries, code], order="sorted")
    return Path(user_cache_dir("vramtop")) / "traces" / f"{hashlib.sha256(key).hexdigest()[:32]}.json"


def _on_card(found: Trace, conf: str | None, room: AllocatorCapacity | None) -> ReservedMemory:
    """What would be reserved on that card; the same as anywhere, where it has room and no setting depends on it."""
    if room is None or (found.reserved.peak <= room.capacity_bytes and not conf):
        return found.reserved
    try:
        return replay_allocations(found.allocations, found.events, conf, room)
    except ValueError as error:
        raise CannotTellError(f"the worker's allocations are not understood: {error}") from None


def _timeline(found: Trace, held: ReservedMemory, context: int, workspace: int, nccl: int) -> Timeline | None:
    if not found.timeline:
        return None
    names = found.timeline_components
    rows = zip(*names.values(), strict=True)
    around = Components(temporary=workspace, communication=nccl, context=context)
    return Timeline(
        events=tuple(found.events),
        levels=tuple(_sum(dict(zip(names, row, strict=True)), around) for row in rows),
        reserved_bytes=tuple(size + workspace for size in held.at(found.events)),
        outside_bytes=context + nccl,
        phases=tuple(PhaseMark(name=name, event=event) for name, event in found.timeline_phases),
    )


def _sum(parts: Mapping[str, int], around: Components) -> Components:
    return Components(**{name: parts.get(name, 0) + size for name, size in around.items()})


def _phase(name: PhaseName, traced: TracedPhase, context: int, workspace: int, nccl: int) -> Phase:
    parts = dict(traced.components)
    if name == "loading":
        return Phase(name=name, components=Components(**parts, context=context), outside_bytes=context)
    parts["temporary"] += workspace
    parts["communication"] += nccl
    return Phase(name=name, components=Components(**parts, context=context), outside_bytes=context + nccl)
