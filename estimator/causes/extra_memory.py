"""Memory that a job may hold besides what its settings describe: a second copy, another context, a library's casts.

Each figure is computed from the job's budget, or from that of a changed job, by the mechanism that its comment
names.
"""

from collections.abc import Callable, Iterator

import msgspec

from ..budget import Budget, Components, Phase, PhaseName
from ..common.errors import VramtopError
from ..common.sizes import MIB
from ..job.job import Job
from ..job.job_file.changes import with_changes
from ..job.resolved_job import ResolvedJob, resolve_job
from .cause_search import RARE, SOME, UNLIKELY, USUAL, Cause, Estimate

_EVALUATION_BATCH = 8
"""transformers' default of ``per_device_eval_batch_size``."""
_COMMUNICATOR_BYTES = 688 * MIB
"""NCCL's buffers of one more communicator (4 x A100, NVIDIA/nccl#964), as in ``cuda_overhead``."""


class TrainingBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A training job and its quick estimate."""

    job: ResolvedJob
    budget: Budget
    step: Phase
    """The optimizer step, whose components are the training states."""
    estimate: Estimate
    """Returns the quick estimate of a changed job."""

    @property
    def states(self) -> Components:
        """Weights, gradients and optimizer states."""
        return self.step.components


ExtraMemory = Callable[[TrainingBudget], Iterator[Cause]]
"""Yields the causes of one mechanism that a training job may have."""


def extra_memory_causes(job: Job, budget: Budget, estimate: Estimate) -> Iterator[Cause]:
    """Yield every such cause that a job may have.

    Args:
        job: the job as it was read.
        budget: its quick estimate.
        estimate: returns the quick estimate of a changed job.
    """
    step = budget.phase("optimizer step")
    if step is not None:
        training = TrainingBudget(job=resolve_job(job), budget=budget, step=step, estimate=estimate)
        for mechanism in EXTRA_MEMORY:
            yield from mechanism(training)
    if job.parallel.world_size > 1:
        yield Cause(
            name="communicator",
            description="there is one more NCCL communicator",
            plausibility=RARE,  # groups made by hand, or a second library's
            outside_bytes=_COMMUNICATOR_BYTES,
        )


def _bucket_views(training: TrainingBudget) -> Iterator[Cause]:
    nccl = training.step.outside_bytes - training.states.context
    bucket = training.states.communication - nccl
    if training.job.strategy.buckets and bucket > 0:
        yield Cause(
            name="bucket views",
            description="gradients are views of DDP's buckets (gradient_as_bucket_view)",
            plausibility=SOME,  # off by default in torch and in accelerate
            allocated_bytes=-bucket,
        )


def _fp32_states(training: TrainingBudget) -> Iterator[Cause]:
    job, states = training.job, training.states
    if not job.precision.half_weights or job.lora or job.deepspeed or job.megatron_precision:
        return
    yield Cause(
        name="fp32 gradients",
        description="gradients are kept in fp32",
        plausibility=UNLIKELY,
        allocated_bytes=states.gradients,  # 4 bytes in place of 2
    )
    if states.optimizer:
        yield Cause(
            name="master weights",
            description="the optimizer keeps fp32 master weights and states",
            plausibility=SOME,
            allocated_bytes=2 * states.weights + states.optimizer,  # 4 bytes each, the states in place of 2
        )


def _second_model(training: TrainingBudget) -> Iterator[Cause]:
    # preference training of a language model; with adapters the reference is the model without them
    job, weights = training.job, training.states.weights
    if job.job.other_models:  # it is known which models there are
        return
    likely = job.model.task == "causal-lm" and job.lora is None
    fix = "precompute the reference's log-probabilities (precompute_ref_log_probs), or train adapters"
    yield Cause(
        name="second model",
        description="there is a second copy of the weights: a reference model, a teacher or a moving average",
        plausibility=SOME if likely else RARE,
        allocated_bytes=weights,
        loading_bytes=weights,
        fix=fix if likely else "",
    )
    if likely:
        yield Cause(
            name="reference model and pairs",
            description="the job is preference training: a reference model, and both answers of a pair in one batch",
            plausibility=RARE,
            changes={"training.micro_batch": 2 * job.training.micro_batch},
            allocated_bytes=weights,
            loading_bytes=weights,
            fix=fix,
        )


def _evaluation(training: TrainingBudget) -> Iterator[Cause]:
    """Yield evaluation, which holds the training states and runs forward only, with its own batch size."""
    job, states = training.job, training.states
    evaluated = job.training.evaluation_batch is not None  # then it is in the budget
    if evaluated or not job.framework.evaluates or job.training.micro_batch >= _EVALUATION_BATCH:
        return
    changes = {"training.mode": "inference", "training.micro_batch": _EVALUATION_BATCH}
    forward = _changed_components(training, changes, "forward")
    if forward is None:
        return
    running = forward.activations + forward.logits + forward.temporary
    more = states.weights + states.optimizer + running - training.budget.peak.allocated_bytes
    if more > 0:
        yield Cause(
            name="evaluation",
            description=f"evaluation runs with a batch of {_EVALUATION_BATCH} (the Trainer's default)",
            plausibility=SOME,
            allocated_bytes=more,
            fix="set per_device_eval_batch_size, eval_accumulation_steps, or prediction_loss_only",
        )


def _upcast(training: TrainingBudget) -> Iterator[Cause]:
    """Yield peft's ``prepare_model_for_kbit_training``, which casts to fp32 all that is not quantized.

    That is embedding, head and norms, the rest of the unquantized weights: with q bytes per quantized element,
    2 L + 2 N - (q L + 2 N) gives the quantized elements L, and so N.
    """
    job, width = training.job, training.job.widths.quantized
    if width is None or not job.precision.half_weights:
        return
    whole = _changed_components(training, {"lora.quantization": "none"}, "optimizer step")
    if whole is None:
        return
    quantized = (whole.weights - training.states.weights) / (2 - width)
    more = round(whole.weights - 2 * quantized)  # two more bytes for each of the others
    if more > 0:
        yield Cause(
            name="upcast for k-bit training",
            description="embedding, head and norms are cast to fp32 (prepare_model_for_kbit_training)",
            plausibility=USUAL,  # trl and many scripts call it
            allocated_bytes=more,
            loading_bytes=more,
        )


EXTRA_MEMORY: tuple[ExtraMemory, ...] = (_bucket_views, _fp32_states, _second_model, _evaluation, _upcast)
"""A new mechanism is one function here."""


def _changed_components(training: TrainingBudget, changes: dict[str, object], phase: PhaseName) -> Components | None:
    try:
        found = training.estimate(with_changes(training.job.job, changes)).phase(phase)
    except VramtopError:
        return None
    return found.components if found else None
