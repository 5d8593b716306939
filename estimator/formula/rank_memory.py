"""Bytes that one rank holds, by purpose, before they are put together into the moments of a step."""

import re
from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from ..budget import Components, PhaseName
from ..common.records import replace
from ..common.sizes import GIB, KIB, MIB
from ..host_need import HostNeed
from ..job.gpu_catalogue import Generation, Gpu, generation_of
from ..job.job import Job
from ..job.resolved_job import ResolvedJob, resolve_job
from ..job.rules.version_rules import VersionRules
from ..job.settings import Parallel
from ..model.architecture import Architecture, Inventory
from ..model.placement import Placement, place
from ..model.rank_share import Stage, model_trained_parameters, stages
from ..model.trained_parameters import QuantizedLayers, TrainedParameters
from .buffers import Buffers, root_buffers, unit_buffers, weight_width, whole_model_buffers
from .checkpoint_saving import saved_on_host
from .fsdp1 import flat_buffers, gathered_share, unit_rule
from .layer_context import head_passes
from .logits_and_loss import LossBytes, loss_bytes
from .megatron_fsdp import megatron_buffers
from .model_states import ModelStates, largest_gradient, model_states, state_rules
from .ranges import preparation_doubt
from .saved_activations import SavedActivations, saved_activations
from .zero import own_gradient_bytes, zero_buffers

# Bytes of the key-value cache of inference on one rank.


_PREFILL_TOKENS = 2048
_PREFILL_TOKENS_LARGE_GPU = 8192
"""On GPUs of 70 GiB and more, except the A100."""


def key_value_cache_bytes(job: ResolvedJob, arch: Architecture, stage: Stage) -> int:
    """Bytes of the keys and values of every token and layer that inference keeps; 0 in training, which has no cache."""
    if job.trains or not arch.has_vocab_head or arch.task == "masked-lm":
        return 0
    return job.sequences * sequence_cache_bytes(job, arch, stage.layers, job.local_length)


def generation_cache_bytes(job: ResolvedJob, arch: Architecture, stage: Stage) -> int:
    """Bytes of the keys and values of all sequences that transformers generates at once during training."""
    if not job.generated_sequences or not arch.has_vocab_head:
        return 0
    return job.generated_sequences * sequence_cache_bytes(job, arch, stage.layers, job.local_length)


def sequence_cache_bytes(job: ResolvedJob, arch: Architecture, layers: int, length: int) -> int:
    """Bytes of the keys and values of one sequence.

    Layers with a sliding window keep no more than that (transformers' ``DynamicSlidingWindowLayer``); vLLM also the
    tokens of the running step (``SlidingWindowSpec``, v1/kv_cache_interface.py).

    Args:
        job: the inference job.
        arch: the model's architecture.
        layers: blocks on the rank.
        length: tokens of the sequence.
    """
    windowed = arch.sliding_layers / arch.layers if arch.sliding_window else 0.0
    in_window = length
    if arch.sliding_window:
        step = prefill_tokens(job) if job.is_served else 0
        in_window = min(length, arch.sliding_window - 1 + max(1, step))
    tokens = length * (1 - windowed) + in_window * windowed
    return round(tokens * layers * layer_token_bytes(job, arch))


def layer_token_bytes(job: ResolvedJob, arch: Architecture) -> int:
    """Bytes of one token's keys and values in one layer.

    Tensor-parallel ranks share the key-value heads, and each has one at least. Under latent attention vLLM keeps only
    the compressed vector, whole on every rank (``MLAAttentionSpec``); transformers before 5.15 the expanded heads.
    """
    width = 1 if job.inference and job.inference.cache_dtype == "fp8" else job.widths.compute
    if arch.kv_lora_rank and (job.is_served or job.versions.caches_latents):
        return width * (arch.kv_lora_rank + arch.rope_head_dim)
    heads = -(-arch.kv_heads // job.parallel.tensor)
    return width * heads * (arch.head_dim + arch.value_head_dim)


def prefill_tokens(job: ResolvedJob, *, large_card: bool = False) -> int:
    """Maximum tokens of one step of vLLM: as set, or its server's default for the GPU.

    Source: ``get_batch_defaults`` in vllm/engine/arg_utils.py.
    """
    setting = job.inference.prefill_tokens if job.inference else None
    return setting or (_PREFILL_TOKENS_LARGE_GPU if large_card else _PREFILL_TOKENS)


# Buffers of a job's strategy in torch's allocator: chooses between the rules of DDP, FSDP, ZeRO and Megatron-FSDP.


def communication_buffers(job: ResolvedJob, stage: Stage, *, tied: bool) -> Buffers:
    """Return the gathered weights, gradients under reduction, and buckets of one rank.

    Args:
        job: the resolved job.
        stage: what the rank holds.
        tied: head and embedding are one parameter.
    """
    parallel, widths, shards = job.parallel, job.widths, job.shards
    ranks = parallel.data_ranks * parallel.context
    if job.strategy.buckets and parallel.data_ranks > 1 and not job.framework.gradient_buffer:
        bucket = _trainable_bytes(stage, widths.gradient, widths.adapter)
        waits = job.training.gradient_accumulation > 1 and not parallel.sync_every_micro_batch
        if parallel.gradient_as_bucket_view and waits:  # no_sync: gradients are tensors of their own until the last one
            return _constant_buffers(forward=bucket, backward=bucket, step=0)
        if parallel.gradient_as_bucket_view:  # the buckets are the gradients, beside the one that is being computed
            computed = _constant_buffers(forward=0, backward=largest_gradient(stage, widths), step=0)
            return replace(computed, loss_backward=0)
        return _constant_buffers(forward=bucket, backward=bucket, step=bucket)
    if job.deepspeed and ranks > 1:
        return zero_buffers(job, stage)
    if job.strategy.megatron_fsdp and ranks > 1:
        return megatron_buffers(job, stage, tied=tied and stage.last)
    if not job.flattens and (parallel.world_size == 1 or shards.weights == 1):
        return Buffers()
    tied, keeps = tied and stage.last, job.keeps_gathered
    if job.strategy.flat_parameters:
        prefetch = parallel.fsdp_backward_prefetch or "pre"
        return flat_buffers(
            stage,
            widths,
            rule=unit_rule(job),
            share=gathered_share(job),
            shards=shards.weights,
            tied=tied,
            keeps=keeps,
            prefetch=prefetch,
            loss_in_forward=job.framework.loss_in_forward,
        )
    if parallel.fsdp_units == "model":
        return whole_model_buffers(stage, widths)
    if job.units_around_blocks:
        return unit_buffers(
            stage,
            widths,
            tied=tied,
            keeps=keeps,
            loss_in_forward=job.framework.loss_in_forward,
            own_pool=job.versions.reduces_in_own_pool,
            reduced_over=None if job.accumulates_unsharded else job.shards.gradients,
        )
    return root_buffers(
        stage,
        widths,
        tied=tied,
        keeps=keeps,
        pools_root=job.strategy.fsdp2,
        last_stays=job.last_block_stays,
        own_pool=job.strategy.fsdp2 and job.versions.reduces_in_own_pool,
    )


def _constant_buffers(*, forward: int, backward: int, step: int) -> Buffers:
    """Return buffers that have one size all through a pass."""
    return Buffers(
        forward=forward,
        head_forward=forward,
        loss_backward=backward,
        head_backward=backward,
        after_head=backward,
        first_block=backward,
        block=backward,
        block_end=backward,
        embedding=backward,
        step=step,
    )


def _trainable_bytes(stage: Stage, width: int, adapter_width: int) -> int:
    return sum(h.elements * (adapter_width if h.adapter else width) for h in stage.parameters if h.trainable)


# Memory of a training process around its step: CUDA context, cuBLAS workspaces, NCCL's own buffers, a vLLM.


_NCCL_PAIR_BYTES = 544 * MIB
_NCCL_BYTES = 688 * MIB
"""A communicator of two ranks, and of more, after its first all-reduce (4 x A100, NVIDIA/nccl#964)."""
_NCCL_PEER_BYTES = 32 * 12 * MIB
"""Buffers of the first all-to-all per peer on the same machine: 32 channels, with 10 MiB to receive and 2 to send
(8 x H100, NVIDIA/nccl#1685)."""
_GPUS_PER_MACHINE = 8
"""Expert-parallel peers beyond that are on other machines: a job does not say how many GPUs a machine has."""
_KERNELS_BYTES = 120 * MIB
"""Kernels of cuBLAS, flash attention and torch that a training step loads into the context: a judgment, of which no
observation by itself is known; the range of the context is several times as wide."""
_ALL_KERNELS_BYTES = 450 * MIB
"""All kernels, beside the context: A100, torch 1.13 and 2.1 with CUDA_MODULE_LOADING=EAGER, 922 and 942 MiB."""
_CUDNN_BYTES = 245 * MIB
"""cuDNN's library with all kernels: an A100 shows 1,688 MiB with convolutions and 1,443 without (arXiv 2602.17817)."""
_CUDNN_KERNELS_BYTES = _CUDNN_BYTES // 4
"""Its kernels that convolutions load, where each is loaded when it first runs: a judgment."""
VLLM_GRAPHS_BYTES = 750 * MIB
"""``Estimated CUDA graph memory: 0.73 GiB`` (vllm-project/vllm#39559)."""
_UNKNOWN_GPU_BYTES = 80 * GIB
"""Total memory of a GPU that is not known, of which a vLLM takes its share."""
_WORKSPACE_PAIRS = re.compile(r":(\d+):(\d+)")


def context_bytes(
    versions: VersionRules, generation: Generation, *, kernels: bool = True, convolves: bool = False
) -> int:
    """Return the bytes of CUDA context, driver libraries and loaded kernels of one process.

    Args:
        versions: they decide when kernels are loaded.
        generation: of the GPU.
        kernels: a step has run and its kernels are loaded; otherwise there are only the weights.
        convolves: cuDNN has run a convolution.
    """
    if versions.loads_whole_libraries:
        return generation.eager_context_mib * MIB
    if versions.loads_kernels_eagerly:
        return generation.context_bytes + _ALL_KERNELS_BYTES + convolves * _CUDNN_BYTES
    kernels_bytes = _KERNELS_BYTES + convolves * _CUDNN_KERNELS_BYTES
    return generation.context_bytes + (kernels_bytes if kernels else 0)


def workspace_bytes(
    generation: Generation, *, setting: str | None = None, transformer_engine: bool = False, experts: bool = False
) -> int:
    """Return the bytes of cuBLAS workspaces, which torch allocates for the main and the autograd thread.

    Args:
        generation: of the GPU.
        setting: ``CUBLAS_WORKSPACE_CONFIG``: pairs of a size in KiB and a number (torch's CublasHandlePool.cpp).
        transformer_engine: TransformerEngine runs the linear layers and has a workspace of its own.
        experts: TransformerEngine runs experts too, on four streams with a workspace each.
    """
    pairs = _WORKSPACE_PAIRS.findall(setting) if setting else ()
    stated = sum(int(size) * KIB * int(count) for size, count in pairs)
    engines = (5 if experts else 1) if transformer_engine else 0
    thread = stated if pairs else generation.cublas_workspace_kib * KIB
    return 2 * thread + engines * generation.engine_workspace_mib * MIB


def gathered_input_bytes(job: ResolvedJob, hidden: int, stage: Stage) -> int:
    """Return the bytes of the buffer in which Megatron's head gathers its split input, and which is never freed.

    Source: ``GlobalMemoryBuffer.get_tensor`` in megatron/core/utils.py, which core/tensor_parallel/layers.py calls
    (Megatron-LM, January 2026).
    """
    split = job.framework.saves_split_inputs and job.parallel.sequence_parallel and job.parallel.tensor > 1
    return job.widths.compute * hidden * job.local_tokens if split and stage.last else 0


def batch_mask_bytes(job: ResolvedJob, stage: Stage) -> int:
    """Return the bytes of the attention mask that a batch brings to the first and the last stage.

    Each rank has the rows of its own positions. Megatron-LM makes it unless told not to with
    ``--no-create-attention-mask-in-dataloader`` (core/datasets/gpt_dataset.py; ``get_batch`` of pretrain_gpt.py slices
    it; January 2026).
    """
    made = job.framework.masks_in_batch and (stage.first or stage.last)
    return job.local_tokens * job.training.sequence_length if made else 0


def nccl_bytes(parallel: Parallel) -> int:
    """Return the bytes of NCCL's own buffers on one rank; 0 for a single rank.

    There is one communicator for each dimension of the job's mesh and, unless that is the same, one for all ranks.
    More communicators take more (NVIDIA/nccl#986), more machines than two hardly do.
    """
    if parallel.world_size == 1:
        return 0
    dimensions = (
        parallel.data_shard * parallel.context if parallel.data_shard > 1 else 1,
        parallel.data_replicate,
        parallel.tensor,
        parallel.pipeline,
        parallel.context,
    )
    groups = {size for size in dimensions if size == parallel.world_size}  # all ranks: one and the same
    sizes = [*groups, *(size for size in dimensions if 1 < size < parallel.world_size)]
    sizes += [] if groups else [parallel.world_size]
    return communicator_bytes(sizes) + (min(parallel.expert, _GPUS_PER_MACHINE) - 1) * _NCCL_PEER_BYTES


def communicator_bytes(sizes: Iterable[int]) -> int:
    """Return the bytes of NCCL's communicators of these numbers of ranks; one rank has none."""
    return sum(_NCCL_PAIR_BYTES if size == 2 else _NCCL_BYTES for size in sizes if size > 1)


class ColocatedVllm(Struct, frozen=True, kw_only=True):
    """Bytes that a vLLM in the training process takes of one GPU; zeros without one."""

    weights: int = 0
    """Its own copy of the weights."""
    cache: int = 0
    """The rest of its share: its cache, and the activations of its largest step."""
    sleeps: bool = False
    """Its memory is given back between rollouts."""

    @property
    def total_bytes(self) -> int:
        """The whole share."""
        return self.weights + self.cache


_NO_VLLM = ColocatedVllm()


def colocated_vllm(job: ResolvedJob, stage: Stage, gpu: Gpu | None) -> ColocatedVllm:
    """Return what a vLLM beside training takes: its share of the GPU's total, whatever it needs.

    Args:
        job: the job.
        stage: a rank's parameters, for the weights that vLLM loads again.
        gpu: the GPU; None: not known, so one of 80 GiB.
    """
    rollout = job.rollout
    if rollout is None or rollout.engine != "vllm":
        return _NO_VLLM
    total = gpu.total_bytes if gpu is not None else _UNKNOWN_GPU_BYTES
    share = int(rollout.gpu_memory_utilization * total)
    weights = min(share, stage.elements() * job.widths.compute // rollout.tensor)
    return ColocatedVllm(weights=weights, cache=share - weights, sleeps=rollout.sleep)


# The plan of an estimate: the resolved job, the model's shape and parameters, its pipeline stages, and the GPU.


class Plan(Struct, frozen=True, kw_only=True):
    """All inputs of a closed-form estimate, resolved once."""

    job: ResolvedJob
    arch: Architecture
    inventory: Inventory
    stages: tuple[Stage, ...]
    """Parameters of a rank of each pipeline stage; stages that are alike are one object."""
    placement: Placement | None
    """Devices of the modules; None: the job has no device map."""
    trained: TrainedParameters | None
    """The model's own parameters that train; None: the job does not say, so all or the adapters."""
    gpu: Gpu | None
    """None: not known, so a Hopper GPU."""
    generation: Generation
    """CUDA's own memory on the GPU."""

    @property
    def distinct_stages(self) -> tuple[Stage, ...]:
        """The stages, those that are alike once."""
        return tuple(dict.fromkeys(self.stages))


def make_plan(
    job: Job,
    arch: Architecture,
    inventory: Inventory,
    *,
    gpu: Gpu | None = None,
) -> Plan:
    """Resolve a job on a model and a GPU.

    Raises:
        InputError: the job is spread over more than the model has, or its LoRA targets match nothing.
    """
    resolved = resolve_job(job)
    placement = _placement(resolved, inventory, gpu)
    return Plan(
        job=resolved,
        arch=arch,
        inventory=inventory,
        stages=stages(resolved, inventory, placement),
        placement=placement,
        trained=model_trained_parameters(resolved, inventory),
        gpu=gpu,
        generation=generation_of(gpu),
    )


def _placement(job: ResolvedJob, inventory: Inventory, gpu: Gpu | None) -> Placement | None:
    """Return where a device map places modules: it may fill all of a GPU but the CUDA context that asking takes."""
    if job.job.parallel.device_map is None:
        return None
    quantized, width = QuantizedLayers.of(job, inventory), job.widths.weight
    sizes = (quantized.stored_bytes(group, group.elements) or width * group.elements for group in inventory.groups)
    return place(job, inventory, tuple(sizes), gpu_bytes=free_for_modules(gpu))


def free_for_modules(gpu: Gpu | None) -> int | None:
    """Return the memory of a GPU that a device map may fill; None: not known."""
    return None if gpu is None else gpu.total_bytes - generation_of(gpu).context_bytes


class RankMemory(Struct, frozen=True, eq=False, kw_only=True):
    """Bytes of one rank by purpose."""

    job: ResolvedJob
    arch: Architecture
    stage: Stage
    states: ModelStates
    saved: SavedActivations
    loss: LossBytes
    buffers: Buffers
    nccl: int
    """NCCL's own buffers, outside of torch's allocator."""
    kv_cache: int
    """Key-value cache of inference."""
    generation_cache: int
    """Key-value cache of the text that is generated during training."""
    vllm: ColocatedVllm
    """Memory of a vLLM in the same process."""
    context: int
    bare_context: int
    """CUDA context before a step has loaded its kernels."""
    workspace: int
    """Bytes that libraries allocate once: cuBLAS's and TransformerEngine's workspaces, Megatron's buffer of gathers."""
    batch_mask: int
    """The attention mask that comes with the batch, which exists until the end of the forward pass."""
    tied: bool
    """Head and embedding are one parameter."""
    casts: int
    """Autocast's copies of the weights of the blocks' linear layers, all of them."""
    trained_casts: int
    """Casts of weights that train."""
    head_casts: int
    """Autocast's copies of weights outside of the blocks."""
    preparation_doubt: tuple[int, int]
    """Bytes less, and bytes more, of a quantized model that is prepared otherwise than is assumed."""
    step_gradients: int
    """Gradients that exist while the optimizer steps: ZeRO 1 has freed those of other ranks' parts."""
    accumulated_gradients: int
    """Gradients that are kept from one micro-batch to the next."""
    gradient_shares: tuple[float, float]
    """Shares of all gradients: those outside of the blocks without the embedding's, and those of one block."""

    @property
    def loss_casts(self) -> int:
        """Autocast's copies of weights outside of the blocks while the loss is computed: a head in tiles makes none."""
        return 0 if self.job.tiles_head else self.head_casts

    @property
    def residual_bytes(self) -> int:
        """Bytes of the residual stream between two blocks."""
        job = self.job
        ranks = job.parallel.tensor if job.parallel.sequence_parallel else 1
        return job.widths.residual * self.arch.hidden * job.local_tokens // ranks

    @property
    def outside(self) -> int:
        """Bytes that never pass through torch's allocator."""
        return self.context + self.nccl

    def vllm_is_awake(self, phase: PhaseName) -> bool:
        """Return True if a vLLM in the same process holds memory in the phase."""
        vllm = self.vllm
        return bool(vllm.total_bytes) and phase != "loading" and not (vllm.sleeps and phase != "generation")

    def with_vllm(self, components: Components, phase: PhaseName, *, sign: int = 1) -> Components:
        """Return components with those of a vLLM in the same process, as far as it is awake in the phase.

        Args:
            components: the components of training.
            phase: the phase that they belong to.
            sign: 1; -1 to take vLLM's off.
        """
        vllm = self.vllm
        if not self.vllm_is_awake(phase):
            return components
        return replace(
            components,
            weights=components.weights + sign * vllm.weights,
            activations=components.activations + sign * vllm.cache,
        )

    @property
    def gathered_weights(self) -> int:
        """Bytes of other ranks' weights gathered by ZeRO 3 for generation (TRL's ``ds3_gather_for_generation``)."""
        job = self.job
        if (
            not job.generated_sequences
            or not job.partitions_weights
            or not (job.rollout and job.rollout.gather_weights)
        ):
            return 0
        return max(0, round(self.stage.elements() * job.widths.compute) - self.states.weights)

    @property
    def returned_logits(self) -> int:
        """Bytes of logits that a device map's hook copies to the input's GPU (``AlignDevicesHook``, accelerate)."""
        job, stage = self.job, self.stage
        if job.job.parallel.device_map is None or not stage.first or stage.last or job.training.loss != "full":
            return 0
        return job.scored_tokens * self.arch.vocab * (4 if job.widths.mixed else job.widths.compute)

    @property
    def blocks_backward(self) -> int:
        """Number of blocks that run backward: those from the first one that trains on."""
        order = self.saved.order
        return max(1, self.stage.layers) if order is None else order.blocks

    @property
    def forward_casts(self) -> int:
        """Bytes of autocast's copies of the blocks' weights that exist at the end of the forward pass.

        It caches casts of what is trained, and frozen layers save theirs, except in checkpointed blocks.
        """
        if self.job.recomputes:
            return self.trained_casts
        return self.casts * self.blocks_backward // max(1, self.stage.layers)

    def saved_bytes(self, done: int) -> int:
        """Return the bytes that the blocks save that have not run backward, when that many have."""
        order, layers = self.saved.order, max(1, self.stage.layers)
        if order is not None:
            return order.saved_bytes(done)
        if self.job.keeps_block_inputs:
            return self.saved.all_layers_bytes + self.saved.boundary_bytes * done
        return self.saved.all_layers_bytes * (layers - done) // layers

    def gradients_after(self, done: float) -> int:
        """Return the bytes of gradients after that many blocks have run backward: the head's and theirs."""
        if self.job.steps_in_backward:
            return self.states.gradients
        around, block = self.gradient_shares
        if self.saved.order is None:
            return round(self.states.gradients * (around + block * done))
        trainable = max(1, self.stage.elements(trainable=True))
        return round(self.states.gradients * (around + self.saved.order.trained_elements(done) / trainable))

    @property
    def second_gradient(self) -> int:
        """Bytes of the second gradient of a tied embedding.

        The head's and the embedding's exist side by side before they are added. The head's is the transpose of its
        kernel's output, to which autograd adds nothing in place, so that the sum needs memory too; autocast's cast of
        it to fp32 is a tensor of its own (seen with torch 2.13's profiler).
        """
        tokens, widths = self.stage.token_embedding, self.job.widths
        own = self.job.strategy.megatron_fsdp and not self.job.framework.gradient_buffer
        if tokens is None or not (self.tied and self.stage.last and tokens.trainable):
            return 0
        if self.buffers.unreduced and not own:
            return 0
        return tokens.elements * (widths.compute if own else widths.gradient) * (1 if widths.mixed else 2)

    @property
    def unsplit_gradient(self) -> int:
        """Bytes of an embedding's gradient that tensor parallelism leaves unsplit until the step (DTensor)."""
        tokens, job = self.stage.token_embedding, self.job
        if tokens is None or self.tied or not tokens.trainable or job.strategy.fsdp2:
            return 0
        if not job.framework.tensor_parallel_plan or tokens.elements == tokens.group.elements:
            return 0
        return tokens.elements * (job.parallel.tensor - 1) * job.widths.gradient


def rank_memory(plan: Plan, stage: Stage) -> RankMemory:
    """Return what one rank of a pipeline stage holds."""
    job, arch, tied = plan.job, plan.arch, plan.inventory.tied_head
    states = model_states(job, stage)
    stepped, buffers = _step_gradients(job, stage, states), communication_buffers(job, stage, tied=tied)
    return RankMemory(
        job=job,
        arch=arch,
        stage=stage,
        states=states,
        saved=saved_activations(job, arch, stage),
        loss=loss_bytes(job, arch, stage),
        buffers=buffers,
        nccl=nccl_bytes(job.parallel),
        kv_cache=key_value_cache_bytes(job, arch, stage),
        generation_cache=generation_cache_bytes(job, arch, stage),
        vllm=colocated_vllm(job, stage, plan.gpu),
        context=context_bytes(job.versions, plan.generation),
        bare_context=context_bytes(job.versions, plan.generation, kernels=False),
        workspace=workspace_bytes(
            plan.generation,
            setting=job.software.cublas_workspace,
            transformer_engine=job.framework.transformer_engine,
            experts=stage.has_experts,
        )
        + gathered_input_bytes(job, arch.hidden, stage),
        batch_mask=batch_mask_bytes(job, stage) if job.trains else 0,
        tied=tied,
        casts=_cast_bytes(job, stage, layered=True, tied=tied),
        trained_casts=_cast_bytes(job, stage, layered=True, tied=tied, trained=True),
        head_casts=_cast_bytes(job, stage, layered=False, tied=tied),
        preparation_doubt=preparation_doubt(job, arch),
        step_gradients=stepped,
        accumulated_gradients=_accumulated_gradients(job, states, stepped),
        gradient_shares=_gradient_shares(stage, tied and not buffers.unreduced),
    )


def with_sizes_of(rank: RankMemory, plan: Plan) -> RankMemory:
    """Return a rank with the micro-batch and the sequence length of a plan that differs in nothing else."""
    job, before, stage, arch = plan.job, rank.job, rank.stage, rank.arch
    gathered = gathered_input_bytes(job, arch.hidden, stage) - gathered_input_bytes(before, arch.hidden, stage)
    return replace(
        rank,
        job=job,
        saved=saved_activations(job, arch, stage),
        loss=loss_bytes(job, arch, stage),
        kv_cache=key_value_cache_bytes(job, arch, stage),
        generation_cache=generation_cache_bytes(job, arch, stage),
        workspace=rank.workspace + gathered,
        batch_mask=batch_mask_bytes(job, stage) if job.trains else 0,
        head_casts=_cast_bytes(job, stage, layered=False, tied=rank.tied),
        preparation_doubt=preparation_doubt(job, arch),
    )


def _step_gradients(job: ResolvedJob, stage: Stage, states: ModelStates) -> int:
    if job.deepspeed and not job.partitions_weights and job.parallel.data_ranks > 1:
        return own_gradient_bytes(job, stage)
    if job.offloads_weights:  # FSDP1 frees them when the backward pass is over (``prepare_gradient_for_optim``)
        return 0
    return states.gradients + _gradient_copies(job, stage)


def _gradient_copies(job: ResolvedJob, stage: Stage) -> int:
    return 4 * stage.elements(trainable=True) // job.shards.optimizer if job.casts_gradients else 0


def _accumulated_gradients(job: ResolvedJob, states: ModelStates, stepped: int) -> int:
    views = job.parallel.gradient_as_bucket_view and job.strategy.buckets and job.parallel.data_ranks > 1
    if job.gradient_buffer or views:  # allocated once and zeroed (DistributedDataParallel's grad buffer)
        # fully_shard synchronizes after every micro-batch, so that the copies are made too
        copied = job.training.gradient_accumulation > 1 and not job.framework.gradient_buffer
        return stepped if copied else states.gradients
    if job.steps_in_backward:
        return 0
    if job.deepspeed and job.partitions_weights and job.parallel.data_ranks > 1:
        return states.gradients  # a flat buffer of this rank's gradients (stage3.py)
    if job.flattens and job.offloads_weights and not job.accumulates_unsharded:
        return 0
    if job.training.gradient_accumulation == 1:
        return states.gradients if job.versions.zeroes_gradients else 0
    if job.accumulates_unsharded:
        return states.unsharded_gradients
    return states.gradients if not job.deepspeed or job.zero_stage == 1 else stepped


@lru_cache(maxsize=256)
def _gradient_shares(stage: Stage, tied: bool) -> tuple[float, float]:
    trainable = max(1, stage.elements(trainable=True))
    embedding = stage.elements(trainable=True, role="embedding")
    blocks = stage.elements(trainable=True, layered=True)
    around = trainable - embedding - blocks
    if tied and embedding:
        around += embedding  # the head's gradient is the embedding's
    return around / trainable, blocks / max(1, stage.layers) / trainable


def _cast_bytes(job: ResolvedJob, stage: Stage, *, layered: bool, tied: bool, trained: bool = False) -> int:
    """Return the bytes of autocast's weight copies in the blocks, or outside of them; of all or of what trains."""
    if not job.widths.autocast or job.widths.weight == job.widths.compute:
        return 0
    passes = 1 if layered else head_passes(job)  # a frozen weight is cast again for every use
    elements = _cast_elements(stage, layered, job.framework.autocasts_fused_experts, tied, trained)
    return elements * passes * job.widths.compute


@lru_cache(maxsize=256)
def _cast_elements(stage: Stage, layered: bool, fused_experts: bool, tied: bool, trained: bool) -> int:
    head = stage.token_embedding if tied and stage.last else None
    return sum(
        held.elements
        for held in stage.parameters
        if held.group.layered == layered
        and not held.copied
        and (not trained or (held.trainable and not held.adapter))
        and not held.quantized
        and (held.group.linear or (fused_experts and held.group.role == "expert") or held is head)
    )


# Host memory of a job: the RAM of a machine that its processes need to load the model, and to train.
#
# Rules and their sources:
# - ``from_pretrained`` maps safetensors files: weights loaded in the dtype they are stored in stay pages of the file,
#   one copy for all ranks of a machine, which the system can drop; any other dtype is a private copy in each rank (seen
#   in /proc/self/smaps_rollup, transformers 5.23). Under ZeRO 3 each rank keeps its partition only (``zero.Init``),
#   under FSDP with ``cpu_ram_efficient_loading`` only rank 0 loads (accelerate, ``FullyShardedDataParallelPlugin``).
# - ZeRO-Offload keeps an fp32 copy, two moments and an fp32 gradient of each partition on the host: 16 bytes per
#   parameter, 18 with the weights (deepspeed/runtime/zero/stage3.py, ``estimate_zero3_model_states_mem_needs``).
# - FSDP's ``CPUOffloadPolicy`` keeps the shards of weights, gradients and states in their own dtypes, pinned.
# - torch rounds pinned blocks up to powers of two (ATen/core/CachingHostAllocator.h); DeepSpeed counts half as much
#   again for buffers (``additional_buffer_factor=1.5``): the upper bound here.


_PROCESS_BYTES = 430 * MIB
"""Python with torch and transformers imported: resident size, torch 2.13, transformers 5.23."""
_CUDA_BYTES = 900 * MIB
"""CUDA and its libraries besides: a process with one small module on the GPU took 1.3 GB (pytorch/pytorch#31767)."""
ASSUMPTION = (
    "Host memory: a process takes 1.3 GiB before any tensor, and checkpoints are safetensors files. Data loader "
    "workers and data are not counted."
)


def host_need(job: Job, arch: Architecture, inventory: Inventory) -> HostNeed:
    """Return the host memory that the rank of a job with the highest need takes.

    Raises:
        InputError: the job is spread over more than the model has, or its LoRA targets match nothing.
    """
    return host_need_of_plan(make_plan(job, arch, inventory))


def host_need_of_plan(plan: Plan) -> HostNeed:
    """Return the host memory of a job that is resolved already."""
    job = plan.job
    loaded, mapped = _loading(plan)
    weights, gradients, optimizer = _offloaded(job, plan.distinct_stages)
    if plan.placement is not None:
        weights += sum(module.size for module in plan.placement.host)
    offloads = job.training.activation_offload and job.trains
    saved, once = saved_on_host(job, plan.distinct_stages) if job.trains else (0, True)
    return HostNeed(
        process=_PROCESS_BYTES + _CUDA_BYTES,
        loaded=loaded,
        loads_once=job.parallel.load_on_rank_zero and job.strategy.fsdp,
        mapped=mapped,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=max(_activations(job, plan.arch, stage) for stage in plan.distinct_stages) if offloads else 0,
        saving=saved,
        saves_once=once,
    )


def _loading(plan: Plan) -> tuple[int, int]:
    """Return (private copy of one rank, mapped pages of the machine)."""
    job, dtype = plan.job, plan.arch.dtype
    if job.framework.initializes_on_gpu:
        return 0, 0  # created on the GPU (to_empty), and filled from checkpoints shard by shard
    stored = 4 if dtype == "float32" else 2
    mapped = stored * plan.inventory.parameters
    same = job.widths.weight == stored and (not job.precision.half_weights or dtype in (None, job.precision.dtype))
    directly = plan.placement is not None  # each tensor goes to its device as it is read
    if same or directly or job.quantization or not job.framework.casts_while_loading or job.partitions_weights:
        return 0, mapped
    return max(stage.base_elements for stage in plan.distinct_stages) * job.widths.weight, mapped


def _offloaded(job: ResolvedJob, stages: tuple[Stage, ...]) -> tuple[int, int, int]:
    """Return (weights, gradients, optimizer states) that a rank keeps on the host, each of the largest stage."""
    if not job.trains or not (job.offloads_optimizer or job.optimizer.elsewhere):
        return 0, 0, 0
    weights, gradients, optimizer = zip(*(_offloaded_of_stage(job, stage) for stage in stages), strict=True)
    return max(weights), max(gradients), max(optimizer)


def _offloaded_of_stage(job: ResolvedJob, stage: Stage) -> tuple[int, int, int]:
    """Return (weights, gradients, optimizer states)."""
    rules, widths, shards = state_rules(job), job.widths, job.shards
    trained = [held for held in stage.parameters if held.trainable]
    elements = sum(held.elements for held in trained)
    optimizer = sum(rules.states(held) + (rules.master(held) if job.offloads_optimizer else 0) for held in trained)
    optimizer += sum(job.optimizer.host_copies * held.elements * weight_width(held, widths) for held in trained)
    gradient = 4 if job.deepspeed else widths.gradient if job.offloads_weights else 0
    weights = sum(held.elements * weight_width(held, widths) for held in stage.parameters)
    return (
        round(weights / shards.weights) if job.offloads_weights else 0,
        round(gradient * elements / shards.gradients) if job.offloads_optimizer else 0,
        round(optimizer / shards.optimizer),
    )


def _activations(job: ResolvedJob, arch: Architecture, stage: Stage) -> int:
    """Return the bytes of activations that the GPU would save without offloading."""
    kept = replace(job, training=replace(job.training, activation_offload=False))
    return saved_activations(kept, arch, stage).all_layers_bytes * stage.in_flight
