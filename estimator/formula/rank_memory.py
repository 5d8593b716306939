"""Bytes that one rank holds, by purpose, before they are put together into the moments of a step."""

from functools import lru_cache

from msgspec import Struct, structs

from ..budget import Components, PhaseName
from ..common.records import replace
from ..job.resolved_job import ResolvedJob, with_sizes_of as job_with_sizes_of
from ..model.architecture import Architecture
from ..model.rank_share import Stage
from .activations.layer_context import layer_context
from .activations.litgpt import head_passes
from .activations.saved_activations import SavedActivations, saved_activations
from .buffers import Buffers, root_buffers, unit_buffers, whole_model_buffers
from .doubts import preparation_doubt
from .fsdp1 import flat_buffers, gathered_share, prefetch, unit_rule
from .key_value_cache import generation_cache_bytes, key_value_cache_bytes, sequence_cache_bytes
from .logits_and_loss import loss_bytes
from .loss_bytes import LossBytes
from .megatron_fsdp import megatron_buffers
from .model_states import ModelStates, largest_gradient, model_states, rotary_tables
from .plan import Plan
from .process_memory import (
    ColocatedVllm,
    batch_mask_bytes,
    colocated_vllm,
    context_bytes,
    gathered_input_bytes,
    nccl_bytes,
    workspace_bytes,
)
from .zero import own_gradient_bytes, zero_buffers


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
    """Bytes of the key-value cache; in training, of what nothing else holds until the loss is computed."""
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
    states = model_states(job, stage, rotary_tables(job, arch, stage))
    stepped, buffers = _step_gradients(job, stage, states), _communication_buffers(job, stage, tied=tied)
    return RankMemory(
        job=job,
        arch=arch,
        stage=stage,
        states=states,
        saved=saved_activations(job, arch, stage),
        loss=loss_bytes(job, arch, stage),
        buffers=buffers,
        nccl=nccl_bytes(job.parallel),
        kv_cache=key_value_cache_bytes(job, arch, stage) or _cached_in_training(job, arch, stage),
        generation_cache=generation_cache_bytes(job, arch, stage),
        vllm=colocated_vllm(job, stage, plan.gpu),
        context=context_bytes(job.versions, plan.generation),
        bare_context=context_bytes(job.versions, plan.generation, kernels=False),
        workspace=workspace_bytes(
            plan.generation,
            setting=job.software.cublas_workspace,
            transformer_engine=job.framework.transformer_engine,
            experts=any(held.group.role == "expert" for held in stage.parameters),
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


def _cached_in_training(job: ResolvedJob, arch: Architecture, stage: Stage) -> int:
    """Bytes of the keys and values that transformers before 5 caches in training too, if attention has copies of them.

    ``Trainer`` of 5.0 sets ``use_cache`` to False, checkpointing always did. Without copies, attention saves the cached
    tensors themselves. A value that is a view of all projections keeps these.
    """
    if not (job.framework.trainer and job.versions.older("transformers", 5) and arch.task == "causal-lm"):
        return 0
    context = layer_context(job, arch, stage)
    laid_out = context.lays_heads_out and not context.eager_attention
    copied = arch.kv_heads != arch.heads and (context.eager_attention or context.repeats_keys)
    if not job.trains or job.recomputes or arch.encoder_decoder or not (laid_out or copied):
        return 0
    widths = job.widths
    per_token = widths.residual * arch.key_size + widths.compute * arch.value_size  # rotation's dtype, projection's
    if laid_out and arch.rules.fused_qkv_views:
        per_token = widths.compute * (arch.query_size + arch.key_size + arch.value_size)
    return job.sequences * job.local_length * stage.layers * per_token // job.parallel.tensor


def in_evaluation(rank: RankMemory, sequences: int) -> RankMemory:
    """Return a rank with a micro-batch of evaluation: so many examples, the loss of evaluation, and its cache.

    transformers before 5.0 keeps keys and values (``Trainer`` of 5.0 sets ``use_cache`` to False). Liger-Kernel leaves
    the logits out in training only (0.8, ``skip_logits`` in ``transformers/model/``).
    """
    arch, stage, training = rank.arch, rank.stage, rank.job.training
    loss = "full" if training.evaluation_loss == "full" else training.loss
    evaluated = structs.replace(training, micro_batch=sequences, loss=loss)
    job = job_with_sizes_of(rank.job, structs.replace(rank.job.job, training=evaluated))
    caches = job.framework.trainer and job.versions.older("transformers", 5) and arch.task == "causal-lm"
    cache = job.sequences * sequence_cache_bytes(job, arch, stage.layers, job.local_length) if caches else 0
    saved = saved_activations(job, arch, stage)
    return replace(rank, job=job, saved=saved, loss=loss_bytes(job, arch, stage), kv_cache=cache)


def _communication_buffers(job: ResolvedJob, stage: Stage, *, tied: bool) -> Buffers:
    """Return the gathered weights, gradients under reduction, and buckets of one rank.

    Args:
        job: the resolved job.
        stage: what the rank holds.
        tied: head and embedding are one parameter.
    """
    parallel, widths, shards = job.parallel, job.widths, job.shards
    ranks = parallel.data_ranks * parallel.context
    if job.strategy.buckets and parallel.data_ranks > 1 and not job.framework.gradient_buffer:
        trained = (held for held in stage.parameters if held.trainable)
        bucket = sum(held.elements * (widths.adapter if held.adapter else widths.gradient) for held in trained)
        waits = job.training.gradient_accumulation > 1 and not parallel.sync_every_micro_batch
        if parallel.gradient_as_bucket_view and waits:  # no_sync: gradients are tensors of their own until the last one
            return _constant_buffers(forward=bucket, backward=bucket, step=0)
        if parallel.gradient_as_bucket_view:  # the buckets are the gradients, beside the one that is being computed
            computed = _constant_buffers(forward=0, backward=largest_gradient(stage, widths), step=0)
            return replace(computed, loss_backward=0)
        return _constant_buffers(forward=bucket, backward=bucket, step=bucket)
    if job.deepspeed:
        return zero_buffers(job, stage)
    if job.strategy.megatron_fsdp and ranks > 1:
        return megatron_buffers(job, stage, tied=tied and stage.last)
    if not job.flattens and (parallel.world_size == 1 or shards.weights == 1):
        return Buffers()
    tied, keeps = tied and stage.last, job.keeps_gathered
    if job.strategy.flat_parameters:
        return flat_buffers(
            stage,
            widths,
            rule=unit_rule(job),
            share=gathered_share(job),
            shards=shards.weights,
            tied=tied,
            keeps=keeps,
            prefetches=prefetch(job, stage),
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


def _step_gradients(job: ResolvedJob, stage: Stage, states: ModelStates) -> int:
    if job.deepspeed and not job.partitions_weights and job.parallel.data_ranks > 1:
        return own_gradient_bytes(job, stage)
    if job.offloads_weights:  # FSDP1 frees them when the backward pass is over (``prepare_gradient_for_optim``)
        return 0
    copied = stage.elements(trainable=True) if job.casts_gradients else 0
    return states.gradients + 4 * copied // job.shards.optimizer


def _accumulated_gradients(job: ResolvedJob, states: ModelStates, stepped: int) -> int:
    views = job.parallel.gradient_as_bucket_view and job.strategy.buckets and job.parallel.data_ranks > 1
    if job.gradient_buffer or views:  # allocated once and zeroed (DistributedDataParallel's grad buffer)
        # fully_shard synchronizes after every micro-batch, so that the copies are made too
        copied = job.training.gradient_accumulation > 1 and not job.framework.gradient_buffer
        return stepped if copied else states.gradients
    if job.steps_in_backward:
        return 0
    if job.deepspeed and job.partitions_weights:
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
