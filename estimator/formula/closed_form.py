"""The closed form: a Budget from a job, a model's shape and its parameters, by arithmetic alone.

A training step is computed at the moments with the highest memory (``peak_moments``), each a set of components; a phase
is its highest moment, and the peak is the highest phase of the rank with the highest peak.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import astuple

from ..budget import Budget, Components, Method, ModelFacts, Peak, Phase, RankPeak, Span
from ..common.records import replace
from ..common.reserved_memory import ReservedMemory, how_reserved_memory_is_found
from ..common.sizes import GIB, MIB, format_gib
from ..host_need import HostNeed
from ..job.gpu_catalogue import Gpu
from ..job.job import Job
from ..job.resolved_job import with_sizes_of
from ..job.rules.dtype_widths import BYTES_PER_ELEMENT
from ..job.settings import Inference, Training
from ..model.architecture import Architecture, Inventory
from ..model.families.registry import FAMILIES
from ..model.placement import has_unread_plan, plan_of_job, splits
from ..model.rank_share import LocalParameters, Stage
from ..model.read_architecture import UNKNOWN_FAMILY_ERROR
from ..model.trained_parameters import adapter_elements
from ..serving_need import ServingNeed
from .assumptions import assumptions, trained_assumptions, trained_warnings, warnings
from .peak_moments import highest_phase, highest_phase_of, phase_peaks
from .ranges import (
    APPROXIMATE_COUNT_SHARE,
    FORMULA,
    DoubtfulBytes,
    allocated_span,
    doubts_of,
    figure_ranges,
    longest_first_doubt,
)
from .rank_memory import (
    VLLM_GRAPHS_BYTES,
    Plan,
    RankMemory,
    context_bytes,
    host_need_of_plan,
    layer_token_bytes,
    make_plan,
    nccl_bytes,
    prefill_tokens,
    rank_memory,
    sequence_cache_bytes,
    with_sizes_of as rank_with_sizes_of,
)
from .reserved.replayed import REPLAYED_BYTES, replayed_slack

# Jobs that say themselves where modules lie: tensor-parallel plans of the user's, and device maps.


# Sentences about what a device map means for a job.


def placement_assumptions(plan: Plan) -> Iterator[str]:
    """Yield where the modules are, and what runs them."""
    placement = plan.placement
    if placement is None:
        return
    blocks = ", ".join(str(sum(module.block for module in held)) for held in placement.gpus)
    gpus = "GPU has" if len(placement.gpus) == 1 else "GPUs have"
    yield f"Modules are placed by accelerate's rules: the {gpus} {blocks} blocks and run in turn."
    for name, held in (("CPU RAM", placement.host), ("the disk", placement.disk)):
        if held:
            size = format_gib(sum(module.size for module in held))
            yield f"{size} GiB of weights stay in {name}: the first GPU runs these layers and copies one at a time."


def placement_warnings(plan: Plan) -> Iterator[str]:
    """Yield that a job cannot run with what no GPU has room for."""
    if plan.placement is not None and plan.placement.refused:
        size = format_gib(sum(module.size for module in plan.placement.refused))
        yield (
            f"No GPU has room for {size} GiB of the weights: device_map would place them in CPU RAM, where they "
            f"cannot be {'trained' if plan.job.trains else 'quantized'}; they are counted on the last GPU."
        )


# The doubt about the user's own tensor-parallel plan: layers that it does not split, or that it cannot be read.


_SPLIT_ROLES = ("attention", "mlp", "expert")


def with_split_doubt(peak: Peak, plan: Plan, peak_of: Callable[[Job], Peak]) -> Peak:
    """Return the peak with a range that allows for what the job's own plan may leave whole.

    Weights, gradients and states are counted as the plan splits them; activations as if it split all of a block. A plan
    that cannot be read may split nothing.

    Args:
        peak: by the plan, or by the model's own if the job's cannot be read.
        plan: the job's figures.
        peak_of: returns the peak of another job on the same model.
    """
    job = plan.job.job
    if job.parallel.tensor_plan is None or job.parallel.tensor == 1:
        return peak
    more = 0
    if has_unread_plan(job) or any(True for _ in whole_layers(plan)):
        whole = peak_of(_with(job, tensor=1, tensor_plan=None, sequence_parallel=False)).components
        here = peak.components
        more = max(0, whole.activations + whole.temporary - here.activations - here.temporary)
    if has_unread_plan(job):
        peak = peak.joined_with(peak_of(_with(job, tensor_plan={})))
    return peak.with_ranges(lambda span: span.moved(0, more=more))


def plan_warnings(plan: Plan) -> Iterator[str]:
    """Yield what the job's own plan leaves whole, or that it cannot be read."""
    job = plan.job.job
    if has_unread_plan(job):
        yield (
            f"parallel.tensor_plan: {job.parallel.tensor_plan} cannot be read without running it: the figure uses the "
            "model's own plan, and the range allows for no plan. A traced step applies yours."
        )
    elif names := ", ".join(whole_layers(plan)):
        yield f"parallel.tensor_plan leaves {names} whole on every rank: the range allows for their activations."


def whole_layers(plan: Plan) -> Iterator[str]:
    """Yield the names of the blocks' linear layers that the job's own plan does not split."""
    own = plan_of_job(plan.job.job)
    if own is None:
        return
    for group in plan.inventory.groups:
        if group.role in _SPLIT_ROLES and group.layered and len(group.shape) > 1 and not splits(own, group.name):
            yield group.name.removesuffix(".weight").rpartition(".*.")[2]


def _with(job: Job, **changes: object) -> Job:
    return replace(job, parallel=replace(job.parallel, **changes))


# The doubt about a device map whose GPUs have unlike blocks: each is counted with blocks of the average kind.


_SHARE = 0.5
"""Share of the memory beside the weights, either way: a judgment. Such prompts were up to 88 % off traced ones."""


def with_unlike_blocks(peak: Peak, plan: Plan) -> Peak:
    """Return the peak with a range that allows for blocks of two kinds on different GPUs."""
    if not _are_unlike(plan):
        return peak
    parts = peak.components
    by = round(_SHARE * (parts.activations + parts.logits + parts.temporary))
    return peak.with_ranges(lambda span: span.moved(0, less=by, more=by))


def unlike_blocks_warnings(plan: Plan) -> Iterator[str]:
    """Yield that the blocks of a placed model differ."""
    if _are_unlike(plan):
        yield (
            "The model has two kinds of blocks, and each GPU of the device map is counted with their average; the "
            "range allows for the difference. A traced step (--method traced) places each block exactly."
        )


def _are_unlike(plan: Plan) -> bool:
    """Return True for a prompt over several GPUs through blocks of two kinds."""
    placement, arch = plan.placement, plan.arch
    if placement is None or len(placement.gpus) < 2 or plan.job.job.training.mode == "train" or arch is None:
        return False
    return bool(arch.encoder_layers and arch.decoder_layers) or bool(arch.moe_layers and arch.dense_layers)


# From the allocated bytes of the peak to what NVML shows: the allocator's slack, and the range of uncertainty.


_SEGMENT_BYTES = 2 * MIB
"""The allocator takes whole segments from CUDA."""
_DEFAULT_SLACK = 0.03
"""Share of the allocated bytes that is guessed where no replay is made and neither strategy nor framework has one."""
_TOO_MANY = 1 - 1 / (1 + UNKNOWN_FAMILY_ERROR[1])
"""Share by which the true count lies below an approximate one, which may be too high by ``UNKNOWN_FAMILY_ERROR``."""


def peak_with_range(
    rank: RankMemory,
    phase: Phase,
    inventory: Inventory,
    *,
    phases: tuple[Phase, ...] = (),
    reserved: ReservedMemory = "replayed",
    conf: str | None = None,
) -> Peak:
    """Return a rank's peak in its highest phase, as NVML counts it, with its lower and upper bound.

    Args:
        rank: the rank.
        phase: its highest phase.
        inventory: the model's parameters.
        phases: all of its phases.
        reserved: how the reserved memory is found.
        conf: the allocator's settings; None: those that the job's framework makes.

    vLLM allocates its share at once and keeps it, which adds neither slack nor doubt but for its CUDA graphs. The cache
    of transformers' generation grows by a token at a time: blocks that it has outgrown stay with the allocator.
    """
    whole, components = phase, rank.with_vllm(phase.components, phase.name, sign=-1)
    beside = whole.components.total_bytes - components.total_bytes
    if beside:
        phase = replace(phase, components=components)
    allocated = phase.allocated_bytes
    slack = _slack_bytes(rank, phase, reserved=reserved, conf=conf)
    segments = -(-(allocated + slack) // _SEGMENT_BYTES) * _SEGMENT_BYTES
    outside = max(phase.outside_bytes, rank.outside)  # what was loaded stays reserved
    device = segments + outside
    states, counted = rank.states, phase.components.optimizer
    fewer, more = (
        (states.optimizer - states.optimizer_low, states.optimizer_high - states.optimizer) if counted else (0, 0)
    )
    kept_less = kept_more = 0
    if reserved != "least":
        kept_less = max(0, slack - _slack_with(rank, phase, -fewer, reserved=reserved, conf=conf)) if fewer else 0
        kept_more = max(0, _slack_with(rank, phase, more, reserved=reserved, conf=conf) - slack) if more else 0
        kept_more += _second_reduction(rank)
    if phase.name == "loading" and reserved != "least":
        kept_less = slack
    fewer, more = fewer + rank.preparation_doubt[0], more + rank.preparation_doubt[1]
    fewer += longest_first_doubt(rank.job, phase.components)
    outgrown = rank.generation_cache if phase.name == "generation" else 0
    more += rank.saved.unfused_bytes if phase.components.activations else 0
    more += outgrown + (VLLM_GRAPHS_BYTES if beside else 0) + rank.loss.eager_extra_bytes
    approximate = inventory.count == "approximate"
    if approximate:  # encoders that are not counted, beyond what the error of an approximate count allows for
        beyond = rank.arch.uncounted_parameters / inventory.parameters - APPROXIMATE_COUNT_SHARE
        parts = [each.components for each in (phase, *phases)]
        more += round(max(0.0, beyond) * max(each.weights + each.gradients + each.optimizer for each in parts))
    ranges = figure_ranges(
        DoubtfulBytes.of(phase.components, allocated=allocated, reserved=segments, outside=outside),
        doubts_of(rank.job, known_family=inventory.family in FAMILIES, recurrent=rank.arch.recurrent),
        FORMULA,
        allocated=allocated + beside,
        reserved=segments + beside,
        device=device + beside,
        exact=not approximate,
        too_many=_TOO_MANY,
        less=fewer,
        more=more,
        kept_less=kept_less,
        kept_more=kept_more,
        others=_spans_of_others(rank, whole, phases, inventory),
    )
    return Peak(
        phase=phase.name,
        components=whole.components,
        allocated_bytes=allocated + beside,
        reserved_bytes=segments + beside,
        device_bytes=device + beside,
        low_bytes=ranges.device.low_bytes,
        high_bytes=ranges.device.high_bytes,
        allocated_range=ranges.allocated,
        reserved_range=ranges.reserved,
    )


def _spans_of_others(
    rank: RankMemory, highest: Phase, phases: tuple[Phase, ...], inventory: Inventory
) -> Iterator[Span]:
    """Yield the ranges of what is allocated in the other phases: with larger errors, one of them may be the highest."""
    doubts = doubts_of(rank.job, known_family=inventory.family in FAMILIES, recurrent=rank.arch.recurrent)
    for phase in phases:
        if phase is highest:
            continue
        parts, allocated = rank.with_vllm(phase.components, phase.name, sign=-1), phase.allocated_bytes
        found = DoubtfulBytes.of(parts, allocated=allocated, reserved=allocated, outside=phase.outside_bytes)
        yield allocated_span(
            found,
            doubts,
            FORMULA,
            allocated=allocated,
            exact=inventory.count != "approximate",
            too_many=_TOO_MANY,
        )


def _slack_bytes(rank: RankMemory, phase: Phase, *, reserved: ReservedMemory, conf: str | None) -> int:
    """Return the bytes that the allocator holds beyond what is allocated: fragmentation, and other streams' pools.

    Whole weights that were sharded leave blocks of their sizes, into which few of a step's tensors fit.
    """
    if phase.name == "loading" and reserved != "least":
        return highest_phase(phase_peaks(rank)[1:]).allocated_bytes - rank.states.weights
    if not rank.job.trains and reserved == "guessed":
        return round(_DEFAULT_SLACK * phase.allocated_bytes)
    if reserved == "guessed" or phase.allocated_bytes > REPLAYED_BYTES:
        return _guessed_slack(rank, phase)
    # no allocator reserves less than it has allocated
    return 0 if reserved == "least" else max(0, replayed_slack(rank, conf))


def _second_reduction(rank: RankMemory) -> int:
    """Return the bytes of a second input of the reduction of a whole model that is not a decoder; 0 otherwise.

    One unit's gradients are reduced from one tensor. Whether that of the second step finds the first one's block whole
    depends on a few small tensors, and those around an encoder's blocks are replayed as what they take together.
    """
    one_unit = rank.job.parallel.fsdp_units == "model" and rank.job.strategy.fsdp2
    return rank.buffers.largest_reduction if one_unit and not rank.arch.causal else 0


def _slack_with(rank: RankMemory, phase: Phase, more: int, *, reserved: ReservedMemory, conf: str | None) -> int:
    """Return the slack if the optimizer's states were so many bytes larger: each leaves gaps of its own."""
    states = replace(rank.states, optimizer=rank.states.optimizer + more)
    components = replace(phase.components, optimizer=max(0, phase.components.optimizer + more))
    changed = replace(rank, states=states), replace(phase, components=components)
    return _slack_bytes(*changed, reserved=reserved, conf=conf)


def _guessed_slack(rank: RankMemory, phase: Phase) -> int:
    """Return about what a replay finds: its usual share of the allocated bytes."""
    job, allocated = rank.job, phase.allocated_bytes
    loop = job.framework.lora_slack if job.lora else job.framework.slack
    if job.strategy.fsdp2 and job.shards.weights > 1:
        return _pool_bytes(rank, phase) + round(loop * allocated)
    pool = rank.buffers.pool if job.strategy.flat_parameters or job.strategy.megatron_fsdp else 0
    return pool + round(allocated * (job.strategy.slack or loop or _DEFAULT_SLACK))


def _pool_bytes(rank: RankMemory, phase: Phase) -> int:
    """Return the bytes that FSDP2's pools, and blocks that nothing fits into, hold at the peak without being allocated.

    These are the sharded gradients, which come from the reducing stream, and the gathering stream's flat buffers. At
    the loss also what the blocks' forward passes left free, which is too small for logits; so is the block of
    low-precision logits for the fp32 ones.
    """
    gradients = max(0, rank.states.gradients - phase.components.gradients)
    held = gradients + rank.buffers.pool + rank.loss.low_precision_bytes
    if phase.components.logits > 0:
        return held + rank.saved.forward_temporary_bytes
    # what is reduced at once is larger than a block of the loss
    return held + (rank.loss.backward_bytes if 3 * rank.buffers.largest_reduction > rank.loss.backward_bytes else 0)


# vLLM and SGLang: a served job, by arithmetic on what its worker allocates.
#
# Checked against figures that vLLM itself logged (``tests/estimator/formula/test_serving.py`` names them).


_SAMPLER_BYTES_PER_LOGIT = 41
"""For the sequences that are sampled at once: fp32 logits, sorted with their indices, probabilities and their sums.
1.26 GiB for 256 sequences of Llama 3's vocabulary on one rank and on each of two (vllm-project/vllm#10511)."""
_LIBRARIES_BYTES = 250 * MIB
"""Buffers of NCCL, cuBLAS and attention kernels: 0.16 to 0.35 GiB in vLLM's logs (#12126, #13061, #10517)."""
_LARGE_GPU_BYTES = 70 * GIB
_UNKNOWN_VERSION_DOUBT = 0.02
"""Share of the GPU by which the defaults of versions before and since 0.20 differ."""


def serving_budget(plan: Plan, *, method: Method) -> Budget:
    """Return the least memory with which vLLM starts, with the cache of one sequence of full length.

    Its ``serving`` holds the figures for larger GPUs.
    """
    needs = [_need(plan, stage) for stage in plan.distinct_stages]
    need = max(needs, key=lambda each: each.least_bytes)
    context = context_bytes(plan.job.versions, plan.generation)
    parts = Components(
        weights=need.weights,
        activations=need.cache or need.sequence_bytes,
        temporary=need.activations,
        communication=need.libraries,
        context=context,
    )
    loaded = Components(weights=need.weights, context=context)
    outside = context + need.libraries
    total = parts.total_bytes
    return Budget(
        job=plan.job.job,
        model=ModelFacts(
            parameters=plan.inventory.parameters,
            trainable_parameters=0,
            count=plan.inventory.count,
            max_positions=plan.arch.max_positions,
        ),
        method=method,
        phases=(
            Phase(name="loading", components=loaded, outside_bytes=context),
            Phase(name="forward", components=parts, outside_bytes=outside),
        ),
        peak=Peak(
            phase="forward",
            components=parts,
            allocated_bytes=total - outside,
            reserved_bytes=total - outside,
            device_bytes=total,
            low_bytes=total - round(0.5 * need.activations) - need.libraries // 2,
            high_bytes=total + need.high_bytes - need.least_bytes,
        ),
        steady_device_bytes=total,
        assumptions=tuple(_assumptions_serving(plan)),
        warnings=(),
        host=host_need_of_plan(plan),
        serving=need,
    )


def _need(plan: Plan, stage: Stage) -> ServingNeed:
    job, arch = plan.job, plan.arch
    asked, widths = job.inference or Inference(), job.widths
    sequences, length = job.training.micro_batch, job.training.sequence_length
    step = prefill_tokens(job, large_card=_is_large(plan.gpu))
    vllm, versions = asked.engine == "vllm", job.versions
    known = versions.knows_vllm if vllm else versions.knows_sglang
    return ServingNeed(
        engine=plan.job.job.engine_name or "",
        utilization=asked.gpu_memory_utilization,
        weights=round(sum(_weight_bytes(held, asked.weights, widths.compute) for held in stage.parameters)),
        activations=max(_prefill_bytes(plan, step), _sampler_bytes(arch, stage, min(sequences, step))),
        libraries=_LIBRARIES_BYTES,
        graphs=VLLM_GRAPHS_BYTES if asked.cuda_graphs else 0,
        sequence_bytes=sequence_cache_bytes(job, arch, stage.layers, length),
        token_bytes=layer_token_bytes(job, arch) * stage.layers,
        sequences=sequences,
        length=length,
        cache=asked.cache_bytes,
        context=context_bytes(job.versions, plan.generation),
        communication=0 if vllm and versions.counts_nccl else nccl_bytes(job.parallel),
        graphs_in_share=vllm and versions.counts_cuda_graphs,
        context_in_share=vllm and versions.counts_context,
        share_is_of_free=not vllm,
        share_doubt=0.0 if known else _UNKNOWN_VERSION_DOUBT,
        sleeps=asked.sleep,
    )


def _is_large(gpu: Gpu | None) -> bool:
    return gpu is None or (gpu.total_bytes >= _LARGE_GPU_BYTES and "a100" not in gpu.name)


def _weight_bytes(held: LocalParameters, stored: str, compute_width: int) -> float:
    linear = (held.group.linear or held.group.role == "expert") and held.group.role != "head"
    return held.elements * (BYTES_PER_ELEMENT.get(stored, compute_width) if linear else compute_width)


def _prefill_bytes(plan: Plan, tokens: int) -> int:
    """Return the memory of the MLP, or of the fused experts, in one step: input, output, projections and product.

    3 f + 3 h elements per token: 2.07 GiB for 20,000 tokens and 2.99 for 29,000 of Llama-3.1-8B (#10517).
    """
    arch = plan.arch
    tensors, split = (3 if arch.gated else 2), plan.job.parallel.tensor
    mlp = tensors * max(arch.mlp_size if arch.dense_layers else 0, arch.shared_mlp_size) / split
    experts = arch.experts_per_token * (tensors * arch.expert_mlp_size / split + arch.hidden)
    return round(tokens * plan.job.widths.compute * (max(mlp, experts) + 3 * arch.hidden))


def _sampler_bytes(arch: Architecture, stage: Stage, sequences: int) -> int:
    return _SAMPLER_BYTES_PER_LOGIT * sequences * arch.vocab if stage.last and arch.has_vocab_head else 0


def _assumptions_serving(plan: Plan) -> list[str]:
    share = (plan.job.inference or Inference()).gpu_memory_utilization
    step = prefill_tokens(plan.job, large_card=_is_large(plan.gpu))
    gpu = plan.gpu.label if plan.gpu else "a Hopper GPU"
    engine = plan.job.job.engine_name
    of, tokens = ("total", "max_num_batched_tokens") if engine == "vLLM" else ("free memory", "chunked_prefill_size")
    found = [
        f"The CUDA context is that of {gpu}.",
        f"{engine} always takes {share:g} of the GPU's {of}. These figures are the minimum it starts with: weights, "
        "its largest step, and the cache of one full-length sequence.",
        f"A step has at most {step:,} tokens ({tokens}) and samples for {plan.job.training.micro_batch} sequences.",
    ]
    if plan.arch.sliding_window:
        found.append("Layers with a sliding window keep only that many tokens (vLLM's hybrid cache manager).")
    return found


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
    families: "JobFamilies | None" = None,
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
        families: of the same model and GPU: remember what jobs share.

    Raises:
        InputError: the job is spread over more than the model has, or its LoRA targets match nothing.
    """
    prepared = None if families is None else families.find(job)
    if prepared is None:
        plan = make_plan(job, arch, inventory, gpu=gpu)
    else:
        plan = replace(prepared.plan, job=with_sizes_of(prepared.plan.job, job))
    reserved = reserved or how_reserved_memory_is_found()
    if plan.job.is_served:
        return serving_budget(plan, method=method)
    if prepared is None:
        prepared = _prepare(plan)
        ranks = prepared.ranks
        if families is not None:
            families.remember(prepared)
    else:
        ranks = tuple(rank_with_sizes_of(rank, plan) for rank in prepared.ranks)
    only_highest = reserved == "least" and not job.other_models  # which may make another phase the highest
    phases = [(highest_phase_of(rank),) if only_highest else phase_peaks(rank) for rank in ranks]
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
    about_job = _warnings(plan) if words else ()
    highest = max(range(len(peaks)), key=lambda at: peaks[at].components.total_bytes)
    peak = peaks[highest]
    if doubts:
        peak = with_split_doubt(_with_doubts(peak, plan), plan, lambda other: _peak_of(other, plan))
        peak = with_unlike_blocks(peak, plan)
    return Budget(
        job=job,
        model=ModelFacts(
            parameters=inventory.parameters,
            trainable_parameters=prepared.trainable_parameters,
            count=inventory.count,
            max_positions=arch.max_positions,
        ),
        method=method,
        phases=phases[highest],
        peak=peak,
        steady_device_bytes=peak.device_bytes,
        assumptions=_assumptions(plan) if words else (),
        warnings=(*warnings(plan.job, arch, inventory), *about_job, *_vllm_warnings(ranks)) if words else (),
        stages=_stage_peaks(plan, peaks) if len(plan.stages) > 1 else (),
        host=prepared.host or host_need_of_plan(plan),
        saved_state_bytes=prepared.saved_state_bytes,
        is_least=reserved == "least",
    )


class Prepared(Struct, frozen=True, kw_only=True):
    """All that an estimate needs besides the micro-batch and the sequence length."""

    plan: Plan
    """Plan of the first job."""
    ranks: tuple[RankMemory, ...]
    """Memory of a rank of each distinct pipeline stage."""
    trainable_parameters: int
    saved_state_bytes: int
    host: HostNeed | None
    """None: it depends on the sizes."""


def _prepare(plan: Plan) -> Prepared:
    ranks = tuple(rank_memory(plan, stage) for stage in plan.distinct_stages)
    return Prepared(
        plan=plan,
        ranks=ranks,
        trainable_parameters=_trainable_parameters(plan),
        saved_state_bytes=_saved_state_bytes(plan, ranks),
        host=None if plan.job.training.activation_offload else host_need_of_plan(plan),
    )


_TRAINING = Job.__struct_fields__.index("training")
_MICRO_BATCH, _LENGTH = (Training.__struct_fields__.index(name) for name in ("micro_batch", "sequence_length"))
_KEPT_FAMILIES = 64


class JobFamilies:
    """Families of jobs of one model that differ in micro-batch and sequence length only: what they share, found once.

    Jobs belong together if they have the same tables (the same objects, as ``with_changes`` leaves what it does not
    change) and the same training but for these two.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, Prepared] = OrderedDict()

    def find(self, job: Job) -> Prepared | None:
        """Return what is known of the job's family; None: nothing yet."""
        try:
            return self._known.get(_family(job))
        except TypeError:  # lists and tables of training cannot be looked up
            return None

    def remember(self, prepared: Prepared) -> None:
        """Remember a family by its first job, whose tables it keeps: no others can take their place."""
        try:
            self._known[_family(prepared.plan.job.job)] = prepared
        except TypeError:
            return
        if len(self._known) > _KEPT_FAMILIES:
            self._known.popitem(last=False)


def _family(job: Job) -> Hashable:
    tables, training = astuple(job), astuple(job.training)
    return (
        *map(id, tables[:_TRAINING]),
        *map(id, tables[_TRAINING + 1 :]),
        training[:_MICRO_BATCH],
        training[_MICRO_BATCH + 1 : _LENGTH],
        training[_LENGTH + 1 :],
    )


def _assumptions(plan: Plan) -> tuple[str, ...]:
    about_trained = tuple(trained_assumptions(plan.job, plan.trained))
    return (*assumptions(plan.job, plan.arch, plan.gpu), *about_trained, *placement_assumptions(plan))


def _warnings(plan: Plan) -> tuple[str, ...]:
    about_trained = trained_warnings(plan.job, plan.trained, plan.inventory)
    return (*about_trained, *plan_warnings(plan), *placement_warnings(plan), *unlike_blocks_warnings(plan))


def _with_doubts(peak: Peak, plan: Plan) -> Peak:
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
        peak = peak.joined_with(_peak_of(replace(job, training=training), plan))
    return peak


def _peak_of(job: Job, plan: Plan) -> Peak:
    """Return the peak of another job on the plan's model and GPU."""
    return closed_form(
        job,
        plan.arch,
        plan.inventory,
        gpu=plan.gpu,
        words=False,
        doubts=False,
        reserved="guessed",
    ).peak


def _saved_state_bytes(plan: Plan, ranks: Sequence[RankMemory]) -> int:
    """Return the optimizer states of all stages, given ranks of the distinct ones."""
    saved = {stage: rank.states.saved for stage, rank in zip(plan.distinct_stages, ranks, strict=True)}
    return sum(saved[stage] for stage in plan.stages)


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
