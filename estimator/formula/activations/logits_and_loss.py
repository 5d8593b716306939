"""Bytes of the last layer's output and of the loss: often the peak of the whole step, with a large vocabulary."""

from dataclasses import dataclass

from ...job.dtype_widths import Widths
from ...job.job import Job
from ...job.version_rules import (
    casts_logits_in_model,
    copies_shifted_logits,
    leaves_loss_to_eager,
    runs_longest_first,
    saves_softmax_inputs,
)
from ...model.architecture import Architecture
from ...model.rank_share import Stage, unpacked_bytes
from .layer_context import tokens_per_rank
from .litgpt import HEAD_CHUNK


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBytes:
    """Bytes for one micro-batch on the last stage; zeros elsewhere."""

    forward_bytes: int
    """At most while the loss is computed, what is saved included."""
    saved_bytes: int
    """Kept for the backward pass."""
    backward_bytes: int
    """At most while the loss runs backward, what was saved included."""
    gradient_bytes: int = 0
    """The logits' gradient in the compute type, which the head runs backward from."""
    upcast_bytes: int = 0
    """When the forward pass is over and accelerate casts what it returned to fp32, where that is more."""
    eager_extra_bytes: int = 0
    """What the loss reserves more where it is left out of what is compiled (torchtitan's ``compile.components``)."""
    low_precision_bytes: int = 0
    """The logits in the compute type, where they are freed before an fp32 copy runs backward."""
    retained_bytes: int = 0
    """What the script's variables hold on to while the blocks run backward and the optimizer steps."""
    retained_before_bytes: int = 0
    """What they still hold of the micro-batch before while the blocks run forward."""


_LOSS_CHUNKS = 8
"""Into which torchtune and torchtitan cut a sequence for their chunked losses."""


def loss_bytes(job: Job, arch: Architecture, stage: Stage, widths: Widths) -> LossBytes:
    """What logits and loss take.

    transformers (since 4.49, ``loss/loss_utils.py``) computes c-byte logits, an fp32 copy of them and fp32
    log-probabilities, which alone are saved; backward adds the fp32 gradients of these and of the logits. Losses that
    leave the cast to autocast keep c-byte log-probabilities besides: ``cross_entropy`` asks for a softmax in the type
    of the logits, and only ``nll_loss`` is given fp32 (ATen/native/LossNLL.cpp, ATen/autocast_mode.h).
    """
    if not stage.last:
        return LossBytes(forward_bytes=0, saved_bytes=0, backward_bytes=0)
    tokens, c = tokens_per_rank(job), widths.compute
    if not arch.has_vocab_head:
        outputs = arch.num_labels * (tokens if arch.task == "token-classification" else job.training.micro_batch)
        return LossBytes(forward_bytes=12 * outputs, saved_bytes=4 * outputs, backward_bytes=12 * outputs)
    split = job.parallel.tensor if job.training.framework in ("torchtitan", "megatron") else 1
    logits = -(-tokens * arch.vocab // split)
    if job.training.mode == "inference":
        return LossBytes(forward_bytes=c * logits, saved_bytes=c * logits, backward_bytes=0)
    # the loss of causal models casts logits to fp32, that of the others leaves it to autocast
    wide = 4 if arch.task == "causal-lm" or widths.mixed else c
    copy = wide if c != wide else 0
    if job.training.framework == "megatron":
        # tensor_parallel/cross_entropy.py works in place: one fp32 copy becomes the softmax and then the gradient
        return LossBytes(forward_bytes=(c + 4) * logits, saved_bytes=4 * logits, backward_bytes=(c + 4) * logits)
    if job.training.framework == "litgpt" and job.training.loss != "fused-linear":
        return _litgpt_loss(
            job, logits, widths, unpacked_bytes(job, (h for h in stage.parameters if h.group.role == "head"))
        )
    match job.training.loss:
        case "full":
            capped = c * logits if arch.logit_softcap else 0  # what tanh gave
            if compiles_loss(job):
                return LossBytes(
                    forward_bytes=c * logits + capped,
                    saved_bytes=c * logits + capped,
                    backward_bytes=2 * c * logits + capped,
                    eager_extra_bytes=(3 * wide - c) * logits if job.training.framework == "torchtitan" else 0,
                )
            if split > 1:
                return _vocabulary_parallel_loss(logits, c, wide, copy, capped)
            returned, low = c, c * logits if copy else 0
            if arch.task == "causal-lm" and copies_shifted_logits(job):
                copy += wide
                returned = 0 if casts_logits_in_model(job) else c
            lowered = c if arch.task != "causal-lm" and widths.mixed else 0  # log-probabilities before the cast
            saved = (lowered + wide) * logits + capped
            given = (lowered or wide) * logits if saves_softmax_inputs(job) else 0
            return LossBytes(
                forward_bytes=(returned + (lowered or copy) + wide) * logits + capped,
                saved_bytes=saved + given,
                backward_bytes=((lowered or wide) + 2 * wide) * logits + capped + given,
                gradient_bytes=c * logits,
                upcast_bytes=saved + (c + wide) * logits if lowered else 0,
                low_precision_bytes=low,
            )
        case "chunked":
            head = c * arch.vocab * arch.hidden // split if job.lora is None else 0
            if job.training.framework == "torchtitan":
                return _torchtitan_chunked_loss(job, logits, c, head, gradients=4 * tokens * arch.hidden)
            return _torchtune_chunked_loss(job, logits, c, head)
        case "fused-linear":
            # gradients are computed in the forward pass, over chunks of about T h / V tokens (Liger-Kernel)
            chunk = min(logits, tokens * arch.hidden)
            # a chunk's gradient of the head's weight is a whole matrix before it is added to the others'
            head = c * arch.vocab * arch.hidden // split if job.lora is None else 0
            return LossBytes(
                forward_bytes=(c + 8) * chunk + c * tokens * arch.hidden + head,
                saved_bytes=c * tokens * arch.hidden,
                backward_bytes=2 * c * tokens * arch.hidden,
            )


def compiles_loss(job: Job) -> bool:
    """Whether cast, softmax and loss are one compiled kernel, which writes no fp32 copy of the logits.

    ``compile`` covers blocks and loss in torchtitan (since 0.1: components/loss.py, pull request 1033) and torchtune
    (training/_compile.py); what is saved then are the logits themselves, and backward writes their gradient.
    """
    compiled = job.training.compile and job.training.framework in ("torchtitan", "torchtune")
    return compiled and not leaves_loss_to_eager(job)


def _vocabulary_parallel_loss(logits: int, c: int, wide: int, copy: int, capped: int) -> LossBytes:
    """Logits split over the vocabulary, as torch.distributed.tensor.parallel.loss works on them in eager mode.

    Forward: input, shifted input and its exponential; backward: log-softmax, a gradient of zeros, the exponential
    and their sum, all in fp32.
    """
    return LossBytes(
        forward_bytes=(c + copy + 2 * wide) * logits + capped,
        saved_bytes=wide * logits + capped,
        backward_bytes=4 * wide * logits + capped,
        low_precision_bytes=c * logits if copy else 0,
    )


def _torchtune_chunked_loss(job: Job, logits: int, c: int, head: int) -> LossBytes:
    """torchtune: all chunks' logits are made, then the loss of one chunk after the other (CEWithChunkedOutputLoss).

    In backward each chunk gives a gradient of the whole head, added to that of the chunks before.
    """
    chunk = -(-logits // _LOSS_CHUNKS)
    kept = c if compiles_loss(job) else 4  # logits, or their log-softmax
    passing = c if compiles_loss(job) else 8 + c
    first = kept * logits + passing * chunk
    second = first - kept * chunk + 2 * head
    forward = c * logits if compiles_loss(job) else (c + 4) * logits + 4 * chunk
    return LossBytes(
        forward_bytes=forward,
        saved_bytes=kept * logits,
        backward_bytes=max(first, first - passing * chunk + head, second),
    )


def _torchtitan_chunked_loss(job: Job, logits: int, c: int, head: int, *, gradients: int) -> LossBytes:
    """torchtitan: each chunk runs forward and backward before the next (ChunkedLossWrapper).

    The hidden states' gradients are collected in fp32.
    """
    chunk = -(-logits // _LOSS_CHUNKS)
    most = (2 * c if compiles_loss(job) else c + 16 if job.parallel.tensor > 1 else c + 12) * chunk
    largest = gradients + max(most, c * chunk + 2 * head)
    return LossBytes(forward_bytes=largest, saved_bytes=gradients, backward_bytes=largest)


def _litgpt_loss(job: Job, logits: int, widths: Widths, unpacked: int) -> LossBytes:
    """LitGPT's scripts: Fabric casts the model's outputs to fp32, and the variable ``logits`` outlives the loss.

    Adapters make the head run by chunks, whose gradients replace their log-probabilities one by one; else the last
    position is cut off, which with several sequences is a copy, and so is its gradient.
    """
    c, length = widths.compute, job.training.sequence_length
    before = 0 if runs_longest_first(job) else 4 * logits
    passing = before + c * logits + max(4 * logits if c != 4 else 0, unpacked)
    chunk = 8 * logits * min(HEAD_CHUNK, length) // length
    if job.lora:
        computing, backward = 8 * logits, max(8 * logits + chunk, (4 + c) * logits + unpacked)
    else:
        computing = (12 if job.training.micro_batch > 1 else 8) * logits
        backward = max(8 * logits + chunk, 12 * logits)
    return LossBytes(
        forward_bytes=max(passing, computing),
        saved_bytes=8 * logits,
        backward_bytes=backward,
        gradient_bytes=(4 + c) * logits,
        retained_bytes=4 * logits,
        retained_before_bytes=before,
    )
