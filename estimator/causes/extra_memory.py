"""What a job may hold beside what its settings say: a second copy, another context, a library's own casts.

Each is computed from the job's budget, or from that of a changed job, by a mechanism that is named beside it.
"""

from collections.abc import Callable, Iterator

from ..budget.budget import Budget, Components, Phase
from ..common.errors import VramtopError
from ..common.sizes import MIB
from ..job.dtype_widths import read_widths, uses_megatron, uses_zero
from ..job.job import Job
from ..job.job_file import with_changes
from .cause import COMMON, RARE, SOME, UNLIKELY, USUAL, Cause

Estimate = Callable[[Job], Budget]
_EVALUATION_BATCH = 8
"""transformers' ``per_device_eval_batch_size`` where it is not given."""
_COMMUNICATOR_BYTES = 688 * MIB
"""NCCL's buffers of one more communicator (4 x A100, NVIDIA/nccl#964), as ``surroundings`` has it."""


def extra_memory_causes(job: Job, budget: Budget, estimate: Estimate) -> Iterator[Cause]:
    """Every such cause that this job can have.

    Args:
        job: as it was read.
        budget: its quick estimate.
        estimate: the same of a changed job.
    """
    step = budget.phase("optimizer step")
    if step is not None:
        yield from _of_buckets(job, step)
        yield from _of_wide_states(job, step.components)
        yield from _of_copies(job, step.components)
        yield from _of_evaluation(job, budget, step.components, estimate)
        yield from _of_upcast(job, step.components, estimate)
    if job.parallel.world_size > 1:
        yield Cause(
            name="communicator",
            words="there is one more NCCL communicator",
            plausibility=RARE,  # groups made by hand, or a second library's
            outside_bytes=_COMMUNICATOR_BYTES,
        )


def whole_gpu_causes(budget: Budget, other_processes_bytes: int | None) -> Iterator[Cause]:
    """What else a figure of the whole card holds.

    Args:
        budget: its context is that of this card.
        other_processes_bytes: what other processes are known to hold there.
    """
    loading = budget.phase("loading")
    bare = loading.components.context if loading else 0
    for count, words in ((1, "a second CUDA context is"), (2, "two more CUDA contexts are")):
        yield Cause(
            name="more contexts",
            words=f"{words} on the card (another rank, or a data loader worker that uses CUDA)",
            plausibility=USUAL / count,  # ranks that touch cuda:0 before set_device
            outside_bytes=count * bare,
            loading_bytes=count * bare,
            fix="call torch.cuda.set_device before any other CUDA call, and use none in the data loader's workers",
        )
    if other_processes_bytes:
        yield Cause(
            name="foreign processes",
            words="other processes hold the rest",
            plausibility=COMMON,  # they were seen
            outside_bytes=other_processes_bytes,
            loading_bytes=other_processes_bytes,
        )


def _of_buckets(job: Job, step: Phase) -> Iterator[Cause]:
    nccl = step.outside_bytes - step.components.context
    bucket = step.components.communication - nccl
    if job.parallel.strategy == "ddp" and bucket > 0:
        yield Cause(
            name="bucket views",
            words="gradients are views of DDP's buckets (gradient_as_bucket_view)",
            plausibility=SOME,  # off by default in torch and in accelerate
            allocated_bytes=-bucket,
        )


def _of_wide_states(job: Job, states: Components) -> Iterator[Cause]:
    pure = job.training.precision in ("bf16", "fp16") and job.lora is None
    if not pure or uses_zero(job) or uses_megatron(job):
        return
    yield Cause(
        name="fp32 gradients",
        words="gradients are kept in fp32",
        plausibility=UNLIKELY,
        allocated_bytes=states.gradients,  # 4 bytes in place of 2
    )
    if states.optimizer:
        yield Cause(
            name="master weights",
            words="the optimizer keeps fp32 master weights and states",
            plausibility=SOME,
            allocated_bytes=2 * states.weights + states.optimizer,  # 4 bytes each, the states in place of 2
        )


def _of_copies(job: Job, states: Components) -> Iterator[Cause]:
    # preference training of a language model; with adapters the reference is the model without them
    likely = job.model.task == "causal-lm" and job.lora is None
    fix = "precompute the reference's log-probabilities (precompute_ref_log_probs), or train adapters"
    yield Cause(
        name="second model",
        words="the weights are there twice: a reference model, a teacher or a moving average",
        plausibility=SOME if likely else RARE,
        allocated_bytes=states.weights,
        loading_bytes=states.weights,
        fix=fix if likely else "",
    )
    if likely:
        yield Cause(
            name="reference model and pairs",
            words="it is preference training: a reference model, and both answers of a pair in one batch",
            plausibility=RARE,
            changes={"training.micro_batch": 2 * job.training.micro_batch},
            allocated_bytes=states.weights,
            loading_bytes=states.weights,
            fix=fix,
        )


def _of_evaluation(job: Job, budget: Budget, states: Components, estimate: Estimate) -> Iterator[Cause]:
    """Evaluation holds the training states and runs forward only, on its own batch."""
    if job.training.framework != "transformers" or job.training.micro_batch >= _EVALUATION_BATCH:
        return
    changes = {"training.mode": "inference", "training.micro_batch": _EVALUATION_BATCH}
    forward = _components(job, changes, estimate, "forward")
    if forward is None:
        return
    running = forward.activations + forward.logits + forward.temporary
    more = states.weights + states.optimizer + running - budget.peak.allocated_bytes
    if more > 0:
        yield Cause(
            name="evaluation",
            words=f"evaluation runs with a batch of {_EVALUATION_BATCH} (the Trainer's default)",
            plausibility=SOME,
            allocated_bytes=more,
            fix="set per_device_eval_batch_size, eval_accumulation_steps, or prediction_loss_only",
        )


def _of_upcast(job: Job, states: Components, estimate: Estimate) -> Iterator[Cause]:
    """In ``prepare_model_for_kbit_training`` peft casts all that is not quantized to fp32: embedding, head, norms.

    These are what is left of the unquantized weights: with q bytes per quantized element, 2 L + 2 N - (q L + 2 N)
    tells the quantized elements L, and so N.
    """
    width = read_widths(job).quantized
    if job.lora is None or width is None or job.training.precision not in ("bf16", "fp16"):
        return
    whole = _components(job, {"lora.quantization": "none"}, estimate, "optimizer step")
    if whole is None:
        return
    quantized = (whole.weights - states.weights) / (2 - width)
    more = round(whole.weights - 2 * quantized)  # two more bytes for each of the others
    if more > 0:
        yield Cause(
            name="upcast for k-bit training",
            words="embedding, head and norms are cast to fp32 (prepare_model_for_kbit_training)",
            plausibility=USUAL,  # trl and many scripts call it
            allocated_bytes=more,
            loading_bytes=more,
        )


def _components(job: Job, changes: dict[str, object], estimate: Estimate, phase: str) -> Components | None:
    try:
        found = estimate(with_changes(job, changes))
    except VramtopError:
        return None
    return next((p.components for p in found.phases if p.name == phase), None)
