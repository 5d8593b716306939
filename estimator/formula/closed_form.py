"""The closed form: a Budget from a job, a model's shape and its parameters, by arithmetic alone.

A training step is computed at the moments with the highest memory (``peak_moments``), each a set of components; a phase
is its highest moment, and the peak is the highest phase of the rank with the highest peak.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ..budget import Budget, Method, ModelFacts, Peak, RankPeak
from ..common.records import replace
from ..common.reserved_memory import ReservedMemory, how_reserved_memory_is_found
from ..common.sizes import format_gib
from ..job.gpu_catalogue import Gpu
from ..job.job import Job
from ..model.adapters import adapter_elements
from ..model.architecture import Architecture
from ..model.inventory import Inventory
from .assumptions import assumptions, trained_assumptions, trained_warnings, warnings
from .host_memory import host_need_of_plan
from .peak_moments import highest_phase, phase_peaks
from .peak_range import peak_with_range
from .placement_doubts import placement_assumptions, placement_warnings, with_split_doubt, with_unlike_blocks
from .plan import Plan, make_plan
from .rank_memory import RankMemory, rank_memory
from .serving import serving_budget


def closed_form(
    job: Job,
    arch: Architecture,
    inventory: Inventory,
    *,
    method: Method = "formula",
    gpu: Gpu | None = None,
    words: bool = True,
    doubts: bool = True,
    reserved: ReservedMemory | None = None,
    conf: str | None = None,
) -> Budget:
    """Predict the memory of the rank with the highest peak.

    Args:
        job: the job.
        arch: the model's shape.
        inventory: its parameters, counted either way.
        method: how they were counted: ``formula`` from the shape, ``exact`` on the built model.
        gpu: the GPU, for CUDA's own memory; None: a Hopper GPU.
        words: with assumptions and warnings, which a search does not need.
        doubts: with a range that allows for what is not known about which parameters train.
        reserved: how the reserved memory is found; None: as ``with_reserved_memory`` says, by default from a replay.
        conf: the allocator's settings, as in ``PYTORCH_CUDA_ALLOC_CONF``; None: those that the job's framework makes.

    Raises:
        InputError: the job is spread over more than the model has, or its LoRA targets match nothing.
    """
    plan = make_plan(job, arch, inventory, gpu=gpu)
    reserved = reserved or how_reserved_memory_is_found()
    if plan.job.is_served:
        return serving_budget(plan, method=method)
    ranks = tuple(rank_memory(plan, stage) for stage in plan.distinct_stages)
    saved = {stage: rank.states.saved for stage, rank in zip(plan.distinct_stages, ranks, strict=True)}
    phases = [phase_peaks(rank) for rank in ranks]
    peaks = [
        peak_with_range(
            rank,
            highest_phase(each),
            inventory,
            phases=each if reserved == "replayed" else (),
            reserved=reserved,
            conf=conf,
        )
        for rank, each in zip(ranks, phases, strict=True)
    ]
    said: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    if words:
        about_trained = trained_assumptions(plan.job, plan.trained)
        said = (*assumptions(plan.job, arch, plan.gpu), *about_trained, *placement_assumptions(plan))
        about_trained = trained_warnings(plan.job, plan.trained, inventory)
        warned = (
            *warnings(plan.job, arch, inventory),
            *about_trained,
            *placement_warnings(plan),
            *_vllm_warnings(ranks),
        )
    highest = max(range(len(peaks)), key=lambda at: peaks[at].components.total_bytes)
    peak = peaks[highest]
    if doubts:
        peak_of = partial(_peak_of, plan=plan, reserved=reserved)
        peak = with_split_doubt(_with_doubts(peak, plan, peak_of), plan, peak_of)
        peak = with_unlike_blocks(peak, plan)
    return Budget(
        job=job,
        model=ModelFacts(
            parameters=inventory.parameters,
            trainable_parameters=_trainable_parameters(plan),
            count=inventory.count,
            max_positions=arch.max_positions,
        ),
        method=method,
        phases=phases[highest],
        peak=peak,
        steady_device_bytes=peak.device_bytes,
        assumptions=said,
        warnings=warned,
        stages=_stage_peaks(plan, peaks) if len(plan.stages) > 1 else (),
        host=host_need_of_plan(plan),
        saved_state_bytes=sum(saved[stage] for stage in plan.stages),
        is_least=reserved == "least",
    )


def _with_doubts(peak: Peak, plan: Plan, peak_of: Callable[[Job], Peak]) -> Peak:
    """Return the peak with a range that allows for what is not known about which parameters train."""
    trained, job = plan.trained, plan.job.job
    if trained is None or (plan.job.trainable is not None and plan.job.trainable.optional):
        return peak
    unknown = trained.guessed or trained.scale != 1 or plan.inventory.count == "approximate"
    choices: list[list[str] | None] = []
    if unknown or any(pattern.startswith("!") for pattern in trained.unmatched):
        choices.append(["!*"])
    if trained.scale == 1 and (unknown or any(not pattern.startswith("!") for pattern in trained.unmatched)):
        choices.append(None if job.lora is None else ["*"])
    if trained.outside and trained.first_parameter:
        choices.append([trained.first_parameter])
    for patterns in choices:
        training = replace(job.training, trainable=patterns, trainable_parameters=None)
        peak = peak.joined_with(peak_of(replace(job, training=training)))
    return peak


def _peak_of(job: Job, plan: Plan, reserved: ReservedMemory) -> Peak:
    """Return the peak of another job on the plan's model and GPU."""
    return closed_form(
        job,
        plan.arch,
        plan.inventory,
        gpu=plan.gpu,
        words=False,
        doubts=False,
        reserved=reserved,
    ).peak


def _stage_peaks(plan: Plan, peaks: Sequence[Peak]) -> tuple[RankPeak, ...]:
    """Return the peak of a rank of every stage, given those of the distinct ones."""
    found = {
        stage: RankPeak(device_bytes=peak.device_bytes, low_bytes=peak.low_bytes, high_bytes=peak.high_bytes)
        for stage, peak in zip(plan.distinct_stages, peaks, strict=True)
    }
    return tuple(found[stage] for stage in plan.stages)


def _trainable_parameters(plan: Plan) -> int:
    if not plan.job.trains:
        return 0
    adapters = adapter_elements(plan.inventory, plan.job) if plan.job.lora else 0
    if plan.job.training.trainable_parameters is not None:
        return plan.job.training.trainable_parameters
    if plan.trained is not None:
        return adapters + plan.trained.count
    return adapters if plan.job.lora else plan.inventory.parameters


def _vllm_warnings(ranks: Sequence[RankMemory]) -> Iterator[str]:
    """Yield a warning where a vLLM in the training process would not start."""
    vllm = max((rank.vllm for rank in ranks), key=lambda each: each.weights)
    if vllm.total_bytes and not vllm.cache:
        share = format_gib(vllm.total_bytes)
        yield f"vLLM's share of the GPU, {share} GiB, cannot hold its copy of the weights: vLLM would not start."
