"""Bytes of the last layer's output and of the loss: often the peak of the whole step, with a large vocabulary."""

from dataclasses import dataclass

from .activations import tokens_per_rank
from .architecture import Architecture
from .job import Job
from .rank import Stage
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
    gradient: int = 0
    """The logits' gradient in the compute type, which the head runs backward from."""
    low: int = 0
    """The logits in the compute type, where they are freed before an fp32 copy runs backward."""


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
    wide = 4 if arch.task == "causal-lm" or widths.mixed else c
    copy = wide if c != wide else 0
    if job.training.framework == "megatron":
        # tensor_parallel/cross_entropy.py works in place: one fp32 copy becomes the softmax and then the gradient
        return LossBytes(forward=(c + 4) * logits, saved=4 * logits, backward=(c + 4) * logits)
    match job.training.loss:
        case "full":
            capped = c * logits if arch.logit_softcap else 0  # what tanh gave
            return LossBytes(
                forward=(c + copy + wide) * logits + capped,
                saved=wide * logits + capped,
                backward=3 * wide * logits + capped,
                gradient=c * logits,
                low=c * logits if copy else 0,
            )
        case "chunked":
            chunk = -(-logits // 8)
            if job.training.framework == "litgpt":  # logits and their log-softmax, both in c bytes, by 128 tokens
                return LossBytes(forward=2 * c * logits, saved=c * logits, backward=2 * c * logits)
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
