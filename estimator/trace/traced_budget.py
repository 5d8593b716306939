"""The traced budget: what torch allocated in a traced step, with the memory that tracing cannot see."""

import os
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ..budget import Budget, Components, ModelFacts, Peak, Phase, PhaseMark, PhaseName, Span, Timeline
from ..common.allocator_variables import allocator_settings
from ..common.errors import CannotTellError
from ..common.records import replace
from ..formula.assumptions import assumptions, warnings
from ..formula.calibration import TRACED, Calibration
from ..formula.doubts import Doubts, doubts_of, longest_first_doubt, preparation_doubt
from ..formula.process_memory import context_bytes, nccl_bytes, workspace_bytes
from ..formula.ranges import DoubtfulBytes, WorkspaceDoubt, allocated_span, figure_ranges
from ..job.gpu_catalogue import Gpu, generation_of
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..job.rules.dtype_widths import BITSANDBYTES
from ..job.rules.version_rules import steps_take_same_memory
from ..job.trainable import describe_trained
from ..model.architecture import Architecture
from ..model.count_parameters import count_parameters
from ..model.find_config import ResolvedModel
from ..model.rank_share import model_trained_parameters
from ..model.read_architecture import has_recurrent_blocks
from .allocator_report import (
    AllocatorCapacity,
    ReservedMemory,
    allocator_warnings,
    capacity_on,
    replay_allocations,
)
from .traced_step import StepSummary, Trace, TracedPhase, trace_job

_COUNT_TOLERANCE = 0.002
"""Relative difference of two counts of one model's parameters."""
_OTHER_VERSIONS = (
    "The job uses other versions than torch {} and transformers {}, with which its step was run: theirs may take other "
    "memory."
)
_PHASES: tuple[PhaseName, ...] = ("loading", "forward", "backward", "optimizer step", "evaluation", "saving")


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the process that a trace cannot see."""

    context: int
    bare_context: int
    """CUDA context before a step has loaded its kernels."""
    workspace: int
    nccl: int

    @property
    def outside(self) -> int:
        """Bytes outside of torch's allocator."""
        return self.context + self.nccl

    @property
    def components(self) -> Components:
        """What it is by purpose."""
        return Components(temporary=self.workspace, communication=self.nccl, context=self.context)


def traced_budget(
    job: Job,
    model: ResolvedModel,
    arch: Architecture | None,
    *,
    gpu: Gpu | None = None,
    memory_bytes: int | None = None,
    python: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Budget:
    """Predict the memory of a job from its own training step, run on fake tensors.

    Args:
        job: the job.
        model: its config.
        arch: its shape; None: unknown.
        gpu: the GPU, for CUDA's own memory; None: a Hopper GPU.
        memory_bytes: total memory, if it is not that of ``gpu``, or the GPU is unknown.
        python: the interpreter with torch and transformers; None: searched for.
        environ: environment with the job's allocator settings; None: this process's.

    Raises:
        InputError: ``python`` does not exist.
        CannotTellError: no interpreter can run it, or tracing does not support the job.
    """
    resolved = resolve_job(job)
    set_by, conf = allocator_settings(os.environ if environ is None else environ) or (None, resolved.allocator_conf)
    if resolved.quantization is not None and (job.lora is None or resolved.quantization not in BITSANDBYTES):
        raise CannotTellError(f"vramtop cannot trace a step with weights stored in {resolved.quantization}")
    trace = trace_job(job, model, allocator_conf=conf, python=python, any_version=arch is None)
    torch, transformers = trace.versions["torch"], trace.versions["transformers"]
    same = steps_take_same_memory(job, torch=torch, transformers=transformers)
    overhead = overhead_of(resolved, gpu)
    phases = phases_of(trace.phases, overhead)
    highest = highest_of(phases, overhead)
    outside = max(phase.outside_bytes for phase in phases)
    capacity = capacity_on(gpu, memory_bytes, outside + overhead.workspace)
    on_gpu = _reserved_on(capacity, trace, conf)
    reserved = trace.reserved if on_gpu.out_of_memory else on_gpu  # its need, where it exceeds the GPU
    doubts = doubts_of(resolved, known_family=same, recurrent=has_recurrent_blocks(model.config))
    less, more = preparation_doubt(resolved, arch) if arch else (0, 0)
    other = less + longest_first_doubt(resolved, highest.components), more
    peak = peak_of(phases, highest, reserved.peak + overhead.workspace, doubts, other)
    sizes = [size + overhead.workspace for size in reserved.at]
    versions = ", ".join(f"{name} {number}" for name, number in trace.versions.items())
    parameters = trace.parameters - (trace.trainable if job.lora else 0)  # peft's adapters are among them
    return Budget(
        job=job,
        model=ModelFacts(
            parameters=parameters,
            trainable_parameters=trace.trainable,
            count="exact",
            max_positions=None if arch is None else arch.max_positions,
        ),
        method="traced",
        phases=phases,
        peak=peak,
        steady_device_bytes=peak.device_bytes,
        assumptions=(
            f"The job's program (vramtop program) was rehearsed with {versions}.",
            *assumptions(resolved, arch, gpu),
            *_trained_assumption(job, trace),
            *([f"{set_by} sets the allocator: {conf.strip()}."] if set_by and conf and conf.strip() else []),
        ),
        warnings=(
            *warnings(resolved, arch, None, fused_recurrence="mamba_ssm" in trace.versions),
            *(f"{each[0].upper()}{each[1:]}." for each in trace.doubts),
            *(() if same else (_OTHER_VERSIONS.format(torch, transformers),)),
            *allocator_warnings(on_gpu, trace.reserved.peak + overhead.workspace, capacity),
        ),
        largest=trace.peak_tensors,
        timeline=timeline_of(trace, sizes, overhead) if trace.timeline else None,
    )


def _trained_assumption(job: Job, trace: Trace) -> Iterator[str]:
    patterns = job.training.trainable
    if patterns and job.training.mode == "train":
        adapters = "adapters and " if job.lora else ""
        yield f"{trace.trainable:,} parameters are trained: {adapters}{describe_trained(patterns)}."


def overhead_of(
    job: ResolvedJob, gpu: Gpu | None, *, workspace: str | None = None, convolves: bool = False
) -> Overhead:
    """Return the overhead of a job's process.

    Args:
        job: the job.
        gpu: None: a Hopper GPU.
        workspace: ``CUBLAS_WORKSPACE_CONFIG`` where the job does not state it.
        convolves: cuDNN runs convolutions.
    """
    generation = generation_of(gpu)
    return Overhead(
        context=context_bytes(job.versions, generation, convolves=convolves),
        bare_context=context_bytes(job.versions, generation, kernels=False),
        workspace=workspace_bytes(generation, setting=job.software.cublas_workspace or workspace),
        nccl=nccl_bytes(job.parallel),
    )


def phases_of(traced: Mapping[PhaseName, TracedPhase], overhead: Overhead) -> tuple[Phase, ...]:
    """Return the phases of a trace in their order, with the overhead."""
    return tuple(_phase(name, traced[name], overhead) for name in _PHASES if name in traced)


def highest_of(phases: Sequence[Phase], overhead: Overhead) -> Phase:
    """Return the phase in which the program has most allocated: cuBLAS's workspaces, which stay, do not count."""
    workspaces = {"loading": 0}
    return max(phases, key=lambda each: each.allocated_bytes - workspaces.get(each.name, overhead.workspace))


def _phase(name: PhaseName, traced: TracedPhase, overhead: Overhead) -> Phase:
    if name == "loading":
        components = Components(**traced.components, context=overhead.bare_context)
        return Phase(name=name, components=components, outside_bytes=overhead.bare_context)
    return Phase(name=name, components=_sum(traced.components, overhead.components), outside_bytes=overhead.outside)


def _reserved_on(capacity: AllocatorCapacity | None, trace: Trace, conf: str | None) -> ReservedMemory:
    """Return what the allocator reserves on a GPU: the trace's own figure if it fits and no setting depends on it."""
    if capacity is None or (trace.reserved.peak <= capacity.capacity_bytes and not conf):
        return trace.reserved
    try:
        return replay_allocations(trace.allocations, trace.events, conf, capacity)
    except ValueError as error:
        raise CannotTellError(
            f"vramtop cannot replay the trace ({error}); this is a bug in vramtop, please report it; method exact works"
        ) from None


def peak_of(
    phases: Sequence[Phase],
    highest: Phase,
    reserved: int,
    doubts: Doubts,
    other: tuple[int, int],
    *,
    calibration: Calibration = TRACED,
    workspaces: WorkspaceDoubt = WorkspaceDoubt(),  # noqa: B008 - frozen
) -> Peak:
    """Return the peak with the ranges of its figures.

    Args:
        phases: all phases.
        highest: the highest one.
        reserved: bytes that the allocator holds.
        doubts: the sources of doubt.
        other: how much less, and how much more, the job takes if it does not do what is assumed.
        calibration: the shares by which the figures may be wrong.
        workspaces: how far those of convolutions may lie from what is expected.
    """
    allocated, outside = highest.allocated_bytes, max(phase.outside_bytes for phase in phases)
    reserved = max(reserved, allocated)
    device = reserved + outside
    ranges = figure_ranges(
        DoubtfulBytes.of(highest.components, allocated=allocated, reserved=reserved, outside=outside),
        doubts,
        calibration,
        allocated=allocated,
        reserved=reserved,
        device=device,
        less=other[0],
        more=other[1],
        workspaces=workspaces,
        others=[_allocated_span(phase, doubts, calibration) for phase in phases if phase is not highest],
    )
    return Peak(
        phase=highest.name,
        components=highest.components,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
        low_bytes=ranges.device.low_bytes,
        high_bytes=ranges.device.high_bytes,
        allocated_range=ranges.allocated,
        reserved_range=ranges.reserved,
    )


def _allocated_span(phase: Phase, doubts: Doubts, calibration: Calibration) -> Span:
    allocated = phase.allocated_bytes
    found = DoubtfulBytes.of(phase.components, allocated=allocated, reserved=allocated, outside=phase.outside_bytes)
    return allocated_span(found, doubts, calibration, allocated=allocated)


def timeline_of(trace: StepSummary, reserved: Sequence[int], overhead: Overhead) -> Timeline:
    """Return the timeline of a trace, with the overhead.

    Args:
        trace: with a timeline.
        reserved: bytes that the allocator holds at each of its moments, workspaces included.
        overhead: of the process.
    """
    names = trace.timeline_components
    rows = zip(*names.values(), strict=True)
    return Timeline(
        events=tuple(trace.events),
        levels=tuple(_sum(dict(zip(names, row, strict=True)), overhead.components) for row in rows),
        reserved_bytes=tuple(reserved),
        outside_bytes=overhead.outside,
        phases=tuple(PhaseMark(name=name, event=event) for name, event in trace.timeline_phases),
    )


def _sum(traced: Mapping[str, int], overhead: Components) -> Components:
    return Components(**{name: traced.get(name, 0) + size for name, size in overhead.items()})


def with_known_trained(job: Job, arch: Architecture | None) -> Job:
    """Return the job with patterns that give the number of trained parameters that the running program reports.

    Raises:
        CannotTellError: which parameters train is not known.
    """
    if job.training.trainable_parameters is None or arch is None:
        return job
    trained = model_trained_parameters(resolve_job(job), count_parameters(arch))
    if trained is not None and trained.scale != 1:
        raise CannotTellError("it is not known which parameters the running program trains")
    if trained is None or not trained.inferred:
        return job
    return msgspec.structs.replace(
        job, training=msgspec.structs.replace(job.training, trainable=list(trained.inferred))
    )


def with_reported_count(job: Job, traced: Budget) -> Budget:
    """Return the budget with the number of trained parameters that the running program reports.

    Raises:
        CannotTellError: it trains another number than the trace does.
    """
    reported = job.training.trainable_parameters
    if reported is None:
        return traced
    if abs(reported - traced.model.trainable_parameters) > _COUNT_TOLERANCE * reported:
        raise CannotTellError(
            f"the running program trains {reported:,} parameters, and the model as it was read "
            f"{traced.model.trainable_parameters:,}"
        )
    return replace(traced, model=replace(traced.model, trainable_parameters=reported))
