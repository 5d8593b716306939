"""Bytes of TRL's losses: log-probabilities of given tokens, the divergence from a teacher, and heads run in tiles.

Counted on TRL's own functions with a tracker of every tensor as wide as the vocabulary: bytes per logit under
autocast, where accelerate hands out fp32 copies of the logits.
"""

from math import ceil

from ..job.resolved_job import ResolvedJob
from ..model.architecture import Architecture
from .loss_bytes import LossBytes

_TILE_TOKENS = 4096
_TILE_VOCABULARY = 32768
"""TRL's tile of logits (``TOKEN_CHUNK_SIZE`` in kernels/chunked_logprob.py, and its caller in trainer/utils.py)."""
_CHUNK_TOKENS = 256
"""Tokens of a recomputed chunk (``_CHUNKED_LM_HEAD_CHUNK_SIZE`` in sft_trainer.py, TRL 1.4 to 1.14)."""
_WIDE = 4
"""fp32 logits, log-probabilities and gradients of them."""


def log_probabilities(job: ResolvedJob, *, logits: int) -> LossBytes:
    """Return the bytes of log-probabilities taken from all logits (``selective_log_softmax``, TRL's trainer/utils.py).

    ``logsumexp`` keeps the fp32 logits; backward makes a gradient of each row, their stack, the gathered logits' and
    the sum. Under DeepSpeed, for which accelerate casts no outputs, logits stay in 16 bits, and log-softmax is taken
    row by row: it is kept, and runs backward into their gradient. Before 0.15 a whole log-softmax was gathered from,
    and the logits stayed for the metrics (dpo_trainer.py, ``get_batch_logps``), while the reference's were made too;
    GRPO took log-softmax row by row even then (grpo_trainer.py of 0.14, ``get_per_token_logps``).

    Args:
        job: the job.
        logits: elements of the logits.
    """
    c = job.widths.compute
    passing: float = c + _WIDE
    if job.versions.gathers_log_softmax and job.rollout is None:
        forward, kept, backward = 2 * _WIDE, 2 * _WIDE, 3 * _WIDE
        passing = forward
    elif c < _WIDE and job.deepspeed:
        forward, kept, backward = 2 * c, c, 2 * c
        passing = c + c / job.training.micro_batch  # the reference's log-softmax goes row by row
    elif job.versions.gathers_log_softmax:
        forward, kept, backward = 2 * _WIDE, _WIDE, 2 * _WIDE
    else:
        forward, kept, backward = c + _WIDE, _WIDE, 4 * _WIDE
    reference = kept + passing if job.training.reference_pass else 0
    return LossBytes(
        forward_bytes=ceil(max(forward, reference) * logits),
        backward_bytes=backward * logits,
        gradient_bytes=c * logits,
    )


def divergence(job: ResolvedJob, *, logits: int) -> LossBytes:
    """Return the bytes of the generalized Jensen-Shannon divergence on all logits of student and teacher.

    Both are scaled, their log-softmax, the stacked mixture and two divergences exist at once (``generalized_jsd_loss``,
    gkd_trainer.py).
    """
    return LossBytes(forward_bytes=68 * logits, backward_bytes=48 * logits, gradient_bytes=job.widths.compute * logits)


def one_example_at_a_time(job: ResolvedJob, *, logits: int, hidden_bytes: int, head_bytes: int) -> LossBytes:
    """Return the bytes of Liger-Kernel's losses, which run forward and backward for one example after the other.

    Args:
        job: the job.
        logits: elements of the logits of the whole micro-batch.
        hidden_bytes: the head's input, whose gradient is made in the forward pass.
        head_bytes: the gradient of the head's weight, of which a chunk makes one of its own; 0 if it is frozen.
    """
    passing = 4 * _WIDE * -(-logits // job.training.micro_batch)
    return LossBytes(forward_bytes=passing + hidden_bytes + 2 * head_bytes, backward_bytes=2 * hidden_bytes)


def without_logits(job: ResolvedJob, arch: Architecture, *, tokens: int, trains_head: bool) -> LossBytes:
    """Return the bytes of a head that is run in tiles of tokens and vocabulary, and again in the backward pass.

    Backward sums the gradients of the hidden states and of the head in fp32 before it casts them
    (``ChunkedLogProbFunction``, TRL's kernels/chunked_logprob.py). Before TRL 1.15 chunks of 256 tokens are recomputed,
    each with a gradient of the whole head (``_chunked_cross_entropy_loss``, sft_trainer.py).

    Args:
        job: the job.
        arch: the model's architecture.
        tokens: tokens that are scored.
        trains_head: the head's weight has a gradient.
    """
    widths, hidden = job.widths, tokens * arch.hidden
    head = arch.vocab * arch.hidden if trains_head else 0
    inputs = widths.residual * hidden
    if not job.versions.tiles_head:
        chunk = min(tokens, _CHUNK_TOKENS) * arch.vocab
        return LossBytes(
            forward_bytes=inputs + (2 * widths.compute + _WIDE) * chunk,
            backward_bytes=2 * inputs
            + (4 * widths.compute + _WIDE) * chunk
            + (2 * widths.gradient + widths.compute) * head,
        )
    tile = widths.compute * min(tokens, _TILE_TOKENS) * _TILE_VOCABULARY
    cast = widths.compute * min(arch.vocab, _TILE_VOCABULARY) * arch.hidden if widths.weight != widths.compute else 0
    gathered = widths.compute * arch.vocab * arch.hidden if job.strategy.fsdp2 and job.shards.weights > 1 else 0
    lowered = widths.weight if widths.weight != _WIDE else 0
    return LossBytes(
        forward_bytes=gathered + inputs + tile + cast,
        backward_bytes=gathered + 2 * inputs + tile + cast + _WIDE * hidden + (_WIDE + lowered) * head,
    )
