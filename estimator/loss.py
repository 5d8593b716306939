"""Bytes of the last layer's output and of the loss: often the peak of the whole step, with a large vocabulary."""

from dataclasses import dataclass

from .activations import tokens_per_rank
from .architecture import Architecture
from .job import Job
from .litgpt import HEAD_CHUNK
from .rank import Stage
from .software import casts_logits_in_model, copies_shifted_logits, runs_longest_first, saves_softmax_inputs
from .states import unpacked_bytes
from .widths import Widths


@dataclass(frozen=True, slots=True, kw_only=True)
class LossBytes:
    """Bytes for one micro-batch on the last stage; zeros elsewhere."""

    forward: int
    """At most while the loss is computed, what is saved included."""
    saved: int
    """Kept for the backward pass."""
    backward: int
    """At most while the loss runs backward, what was saved included."""
    low: int = 0
    """The logits in the compute type, where they are freed before an fp32 copy runs backward."""
    kept: int = 0
    """What the script's variables hold on to while the blocks run backward and the optimizer steps."""
    kept_before: int = 0
    """What they still hold of the micro-batch before while the blocks run forward."""


def loss_bytes(job: Job, arch: Architecture, stage: Stage, widths: Widths) -> LossBytes:
    """What logits and loss take.

    transformers (since 4.49, ``loss/loss_utils.py``) computes c-byte logits, an fp32 copy of them and fp32
    log-probabilities, which alone are saved; backward adds the fp32 gradients of these and of the logits.
    """
    if not stage.last:
        return LossBytes(forward=0, saved=0, backward=0)
    tokens, c = tokens_per_rank(job), widths.compute
    if not arch.has_vocab_head:
        outputs = arch.num_labels * (tokens if arch.task == "token-classification" else job.training.micro_batch)
        return LossBytes(forward=12 * outputs, saved=4 * outputs, backward=12 * outputs)
    split = job.parallel.tensor if job.training.framework in ("torchtitan", "megatron") else 1
    logits = -(-tokens * arch.vocab // split)
    if job.training.mode == "inference":
        return LossBytes(forward=c * logits, saved=c * logits, backward=0)
    # the loss of causal models casts logits to fp32, that of the others leaves it to autocast
    wide = 4 if arch.task == "causal-lm" or widths.autocast else c
    copy = wide if c != wide else 0
    if job.training.framework == "megatron":
        # tensor_parallel/cross_entropy.py works in place: one fp32 copy becomes the softmax and then the gradient
        return LossBytes(forward=(c + 4) * logits, saved=4 * logits, backward=(c + 4) * logits)
    if job.training.framework == "litgpt" and job.training.loss != "fused-linear":
        return _litgpt(job, logits, widths, unpacked_bytes(job, (h for h in stage.held if h.group.role == "head")))
    match job.training.loss:
        case "full":
            capped = c * logits if arch.logit_softcap else 0  # what tanh gave
            low = c * logits if copy else 0
            if arch.task == "causal-lm" and copies_shifted_logits(job):
                copy += wide
                c = 0 if casts_logits_in_model(job) else c
            saved_input = wide * logits if saves_softmax_inputs(job) else 0
            return LossBytes(
                forward=(c + copy + wide) * logits + capped,
                saved=wide * logits + capped + saved_input,
                backward=3 * wide * logits + capped + saved_input,
                low=low,
            )
        case "chunked":
            chunk = -(-logits // 8)
            # torchtune keeps each chunk's fp32 log-softmax, and the logits until the loss is returned
            return LossBytes(
                forward=(c + 4) * logits + 4 * chunk, saved=4 * logits, backward=4 * logits + (8 + c) * chunk
            )
        case "fused-linear":
            # gradients are computed in the forward pass, over chunks of about T h / V tokens (Liger-Kernel)
            chunk = min(logits, tokens * arch.hidden)
            # a chunk's gradient of the head's weight is a whole matrix before it is added to the others'
            head = c * arch.vocab * arch.hidden // split if job.lora is None else 0
            return LossBytes(
                forward=(c + 8) * chunk + c * tokens * arch.hidden + head,
                saved=c * tokens * arch.hidden,
                backward=2 * c * tokens * arch.hidden,
            )


def _litgpt(job: Job, logits: int, widths: Widths, unpacked: int) -> LossBytes:
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
        forward=max(passing, computing),
        saved=8 * logits,
        backward=backward,
        kept=4 * logits,
        kept_before=before,
    )
