"""Models that are held beside the trained one: references, teachers, reward models, moving averages."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ..budget import Budget, Peak, Phase, RankPeak
from ..common.errors import CannotTellError, VramtopError
from ..common.records import replace
from ..common.sizes import format_gib
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..job.settings import Lora, ModelSpec, OtherModel, Parallel, Training
from ..model.architecture import Architecture
from ..model.count_parameters import count_parameters
from ..model.find_config import resolve_model
from ..model.inventory import Inventory
from ..model.read_architecture import read_architecture
from .activations.saved_activations import forward_pass_bytes
from .peak_moments import phase_peaks
from .plan import Plan, make_plan
from .rank_memory import rank_memory
from .reserved.replayed import evaluation_cache

_CACHE_DOUBT = 0.25
"""Share by which the closed form may be wrong about what evaluation leaves reserved: chosen, not measured."""


class HeldModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the job's ``other_models``, as far as it could be looked up."""

    model: OtherModel
    label: str
    arch: Architecture
    inventory: Inventory
    assumed: str | None = None
    """Why it is taken for a model like the trained one, in words; None: it was found."""


class HeldBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a held model on one rank; of all of its ``count`` unless stated otherwise."""

    weights: int
    host_weights: int
    temporary: int
    """While one of them runs forward, besides its logits."""
    logits: int
    """Logits of one of them in the compute type, until the loss is computed from them."""
    wide_logits: int
    """Bytes of the logits in fp32, which the loss may make."""
    cache: int
    """Keys and values that a forward pass keeps unless it is told not to (``use_cache``)."""
    gathered: int
    """Gathered weights, where they are sharded."""


def held_bytes(job: ResolvedJob, held: HeldModel) -> HeldBytes:
    """Return what a held model takes on the rank with the most.

    Its forward pass runs without a graph, so that it saves nothing: it takes the temporary memory of one block and its
    logits. A model in host memory takes none on the GPU.

    Raises:
        InputError: the model cannot be spread as the job is.
    """
    model, plan = held.model, _plan(job, held)
    rank = max((rank_memory(plan, stage) for stage in plan.distinct_stages), key=lambda each: each.states.weights)
    weights = rank.states.weights * model.count
    if not model.on_gpu:
        return HeldBytes(weights=0, host_weights=weights, temporary=0, logits=0, wide_logits=0, cache=0, gathered=0)
    runs = model.runs_forward and job.trains and job.frozen_models_beside
    vocabulary = runs and held.arch.has_vocab_head and not job.loss_on_tokens
    logits = rank.loss.forward_bytes if runs and not job.loss_on_tokens else 0
    casts = rank.casts // max(1, rank.stage.layers) + rank.head_casts
    return HeldBytes(
        weights=weights,
        host_weights=0,
        temporary=forward_pass_bytes(plan.job, plan.arch, rank.stage) + casts if runs else 0,
        logits=logits,
        wide_logits=4 * logits // plan.job.widths.compute if vocabulary else 0,
        cache=rank.kv_cache if vocabulary else 0,
        gathered=max(rank.buffers.forward, rank.buffers.head_forward) if runs else 0,
    )


def _plan(job: ResolvedJob, held: HeldModel) -> Plan:
    """Return the plan of running the held model as it is, for inference."""
    model, training = held.model, job.training
    under_autocast = model.dtype is None or (model.dtype == "fp32" and job.widths.mixed)
    quantized = None
    if model.quantization != "none":  # smallest adapters: a base model that runs alone
        quantized = Lora(rank=1, targets="all-linear", quantization=model.quantization)
    other = Job(
        model=ModelSpec(attention=job.model.attention, task=held.arch.task),
        training=Training(
            framework=training.framework,
            micro_batch=training.micro_batch,
            sequences_per_example=training.sequences_per_example,
            sequence_length=training.sequence_length,
            precision=training.precision if under_autocast or model.dtype is None else model.dtype,
            mode="inference",
        ),
        lora=quantized,
        parallel=replace(job.parallel, pipeline=1) if model.sharded else Parallel(context=job.parallel.context),
        software=job.software,
    )
    return make_plan(other, held.arch, held.inventory)


_RETAINED_SHARE = 0.6
"""Share of the forward pass's peak of logits and loss that is left when the loss has been computed."""
_ROLES_WITH_LOGITS = ("teacher",)
"""Roles whose logits the loss compares with the trained model's, position by position."""


class _Sum(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of all held models."""

    weights: int
    host: int
    passing: int
    """Most that a forward pass takes, besides logits."""
    logits: int
    """Most logits of one forward pass."""
    retained: int
    """Logits that exist until the loss is computed."""
    doubtful: int
    """Bytes that a program may make besides: fp32 logits, and keys and values."""


def with_other_models(budget: Budget, held: Sequence[HeldModel]) -> Budget:
    """Return the budget with the models that are held beside the trained one.

    Their forward pass runs before the trained model's, or after it, when that one's activations exist: the budget takes
    the later one, and the range allows for both. Logits of a teacher exist until the loss is computed from them.

    Raises:
        InputError: one cannot be spread as the job is.
    """
    if not held:
        return budget
    job = resolve_job(budget.job)
    found = [(each, held_bytes(job, each)) for each in held]
    total = _sum(found)
    phases = tuple(_phase(phase, total) for phase in budget.phases)
    highest = max(phases, key=lambda phase: phase.components.total_bytes)
    before = next(phase for phase in budget.phases if phase.name == budget.peak.phase)
    peak = _peak(budget.peak, before, highest, total)
    host = budget.host
    if host is not None and total.host:
        host = replace(host, weights=host.weights + total.host)
    return replace(
        budget,
        phases=phases,
        peak=peak,
        steady_device_bytes=peak.device_bytes,
        host=host,
        stages=tuple(_rank_peak(each, budget.peak, peak) for each in budget.stages),
        assumptions=(*budget.assumptions, *_sentences(found)),
        warnings=(*budget.warnings, *(each.assumed for each in held if each.assumed)),
    )


def _sum(found: Sequence[tuple[HeldModel, HeldBytes]]) -> _Sum:
    retained = sum(held.model.count * each.logits for held, each in found if held.model.role in _ROLES_WITH_LOGITS)
    return _Sum(
        weights=sum(each.weights for _, each in found),
        host=sum(each.host_weights for _, each in found),
        passing=max((each.temporary + each.gathered for _, each in found), default=0),
        logits=max((each.logits for _, each in found), default=0),
        retained=retained,
        doubtful=max((each.wide_logits + each.cache for _, each in found), default=0)
        + sum(each.weights for held, each in found if held.assumed),
    )


def _phase(phase: Phase, total: _Sum) -> Phase:
    """Return a phase with the held models."""
    own = phase.components
    weights = own.weights + total.weights
    if phase.name not in ("forward", "backward"):
        return replace(phase, components=replace(own, weights=weights))
    found = replace(own, weights=weights, logits=own.logits + total.retained)
    if phase.name == "forward" and total.passing:
        running = replace(
            own,
            weights=weights,
            logits=round(_RETAINED_SHARE * own.logits) + max(total.logits, total.retained),
            temporary=own.temporary + total.passing,
        )
        found = max(found, running, key=lambda components: components.total_bytes)
    return replace(phase, components=found)


def _peak(peak: Peak, before: Phase, highest: Phase, total: _Sum) -> Peak:
    """Return the peak with the held models, given its phase without them, and the highest one with them."""
    more = highest.allocated_bytes - before.allocated_bytes
    device = peak.device_bytes + more
    less = max(0, more - total.weights) + min(total.weights, total.doubtful)
    return replace(
        peak.with_ranges(lambda span: span.moved(more, less=less, more=total.doubtful)),
        phase=highest.name,
        components=highest.components,
        allocated_bytes=highest.allocated_bytes,
        reserved_bytes=peak.reserved_bytes + more,
        device_bytes=device,
    )


def _rank_peak(rank: RankPeak, before: Peak, after: Peak) -> RankPeak:
    return RankPeak(
        device_bytes=rank.device_bytes + after.device_bytes - before.device_bytes,
        low_bytes=rank.low_bytes + after.low_bytes - before.low_bytes,
        high_bytes=rank.high_bytes + after.high_bytes - before.high_bytes,
    )


def _sentences(found: Sequence[tuple[HeldModel, HeldBytes]]) -> Iterator[str]:
    for held, each in found:
        model = held.model
        times = f"{model.count} times " if model.count > 1 else ""
        name = {"ema": "a moving average of the weights", "other": "another model"}.get(
            model.role, f"a {model.role} model"
        )
        size = format_gib(each.weights if model.on_gpu else each.host_weights)
        where = f"{size} GiB of weights" if model.on_gpu else f"in host memory, {size} GiB"
        runs = "; its forward pass builds no autograd graph" if model.on_gpu and model.runs_forward else ""
        yield f"Besides the trained model there is {times}{name} ({held.label}), {where}{runs}."


def find_held_models(
    job: Job, arch: Architecture | CannotTellError, environ: Mapping[str, str] | None
) -> tuple[HeldModel, ...]:
    """Return the models that are held beside the trained one, each with its shape; none that nothing is known of.

    Args:
        job: the job.
        arch: the trained model's shape, or why it is not known.
        environ: environment with the Hugging Face cache; None: this process's.
    """
    found = (_held_model(job, other, arch, environ) for other in job.other_models)
    return tuple(each for each in found if each is not None)


def _held_model(
    job: Job, other: OtherModel, arch: Architecture | CannotTellError, environ: Mapping[str, str] | None
) -> HeldModel | None:
    task, label, assumed = other.task or job.model.task, other.id or "like the trained one", None
    same = other.id is None and other.config is None
    spec = job.model if same else ModelSpec(id=other.id, config=other.config)
    try:
        model = resolve_model(spec, environ=environ)
        if model.source == "code":
            raise CannotTellError("it is Python code")
        shape = read_architecture(model.config, task, where=model.where)
    except VramtopError as error:
        if isinstance(arch, CannotTellError):
            return None
        shape = arch
        assumed = f"The {other.role} model {label} is assumed to be like the trained model: {error.message}."
    return HeldModel(model=other, label=label, arch=shape, inventory=count_parameters(shape), assumed=assumed)


def with_phases_between_steps(budget: Budget, arch: Architecture, inventory: Inventory) -> Budget:
    """Return a traced budget with evaluation and saving, and a higher peak where they need more than the step.

    Weights and optimizer states are the traced ones; the rest is computed.

    Args:
        budget: of a traced step, without these phases.
        arch: the model's shape.
        inventory: its parameters.

    Raises:
        InputError: the job is spread over more than the model has, or its LoRA targets match nothing.
    """
    step = budget.phase("optimizer step")
    if step is None:
        return budget
    plan = make_plan(budget.job, arch, inventory)
    rank = rank_memory(plan, plan.stages[0])
    for computed in phase_peaks(rank):
        if budget.phase(computed.name) is None:
            phase = _between_steps(step, computed, rank.nccl)
            peak = _higher_peak(budget.peak, phase, evaluation_cache(rank) if phase.name == "evaluation" else 0)
            largest = budget.largest if peak.phase == budget.peak.phase else ()  # those of the traced step
            budget = replace(budget, phases=(*budget.phases, phase), peak=peak, largest=largest)
    return budget


def _between_steps(step: Phase, computed: Phase, nccl: int) -> Phase:
    """Return a phase with what the traced step holds all through, and what the closed form says of the phase."""
    held, parts = step.components, computed.components
    more = parts.communication - nccl  # beyond NCCL's own buffers, which the traced step has too
    components = replace(
        held,
        gradients=parts.gradients,
        activations=parts.activations,
        logits=parts.logits,
        temporary=parts.temporary,
        communication=step.outside_bytes - held.context + more,
    )
    return Phase(name=computed.name, components=components, outside_bytes=step.outside_bytes)


def _higher_peak(peak: Peak, phase: Phase, cache: int) -> Peak:
    """Return the peak, or that of the phase with the allocator's slack of the peak, if it is higher.

    Args:
        peak: of the step.
        phase: of what comes between steps.
        cache: bytes that the allocator reserves in the phase, and keeps.
    """
    more = max(0, phase.allocated_bytes - peak.allocated_bytes)
    held = max(more, cache)
    doubt = round(_CACHE_DOUBT * (held - more))
    found = replace(
        peak.with_ranges(lambda span: span.moved(held, less=doubt, more=doubt)),
        reserved_bytes=peak.reserved_bytes + held,
        device_bytes=peak.device_bytes + held,
        allocated_range=peak.allocated_range and peak.allocated_range.moved(more),
    )
    if not more:
        return found
    return replace(found, phase=phase.name, components=phase.components, allocated_bytes=phase.allocated_bytes)
