"""Bytes of one model that is held beside the trained one on one rank: its weights, and its forward pass.

Its forward pass runs without a graph, so that it saves nothing: it takes the temporary memory of one block and its
logits. A model in host memory takes none on the GPU.
"""

from dataclasses import dataclass

from msgspec.structs import replace

from ...job import Job, Lora, ModelSpec, OtherModel, Parallel, ResolvedJob, Training
from ...model import Architecture, Inventory
from ..activations import forward_pass_bytes
from ..plan import Plan, make_plan
from ..rank_memory import RankMemory, rank_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldModel:
    """A model of the job's ``other_models``, as far as it could be looked up."""

    model: OtherModel
    label: str
    arch: Architecture
    inventory: Inventory
    assumed: str | None = None
    """Why it is taken for a model like the trained one, in words; None: it was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
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
    return HeldBytes(
        weights=weights,
        host_weights=0,
        temporary=_forward_bytes(plan, rank) if runs else 0,
        logits=logits,
        wide_logits=4 * logits // plan.job.widths.compute if vocabulary else 0,
        cache=rank.kv_cache if vocabulary else 0,
        gathered=max(rank.buffers.forward, rank.buffers.head_forward) if runs else 0,
    )


def _forward_bytes(plan: Plan, rank: RankMemory) -> int:
    """Return the temporary memory of a block that runs without a graph, with casts of its weights."""
    casts = rank.casts // max(1, rank.stage.layers) + rank.head_casts
    return forward_pass_bytes(plan.job, plan.arch, rank.stage) + casts


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
