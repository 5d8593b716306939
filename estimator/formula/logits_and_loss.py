"""Bytes of the logits and the loss: often the peak of the whole step, with a large vocabulary.

Legend of widths: bytes per element; c in the compute type. TRL's losses were counted on its own functions with a
tracker of every tensor as wide as the vocabulary: bytes per logit under autocast, where accelerate hands out fp32
copies of the logits.
"""

from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from ..job.resolved_job import ResolvedJob
from ..job.rules.frameworks import Framework
from ..model.architecture import Architecture
from ..model.rank_share import Stage, unpacked_bytes
from .activations.litgpt import HEAD_CHUNK
from .loss_bytes import LossBytes

_LOSS_CHUNKS = 8
"""Number of chunks into which torchtune and torchtitan cut a sequence for their chunked losses."""
_UNSLOTH_LOGITS = 2**30
"""Logits in a chunk of Unsloth's loss: as many fp32 numbers as fit into 4 GiB."""
_LOSSES_OF_WHOLE_LOGITS = ("full", "log-probs", "divergence")
"""Losses of logits that the model returns."""


class _Logits(Struct, frozen=True, kw_only=True):
    """The logits of one micro-batch on one rank, and the settings that decide how they become a loss."""

    elements: int
    hidden_elements: int
    """Elements of the head's input."""
    head_bytes: int
    """The gradient of the head's weight, if that is trained."""
    compute_width: int
    loss_width: int
    """Bytes per element in which the loss is computed."""
    capped: bool
    """Soft-capped by tanh, which saves its output."""
    casts_in_loss: bool
    """The loss casts the logits to fp32 itself; otherwise it leaves the cast to autocast, if there is one."""
    mixed: bool
    compiled: bool
    """The loss is one compiled kernel."""
    saves_softmax_inputs: bool
    copies_shifted: bool
    """The loss copies the fp32 logits without the last token."""
    casts_in_model: bool
    """The model returns fp32 logits."""
    in_place: bool
    """A fused kernel writes the gradient over the logits."""
    cloned: bool
    """DistributedDataParallel copies them; autocast has cast them to fp32 before."""

    @property
    def cap_bytes(self) -> int:
        return self.compute_width * self.elements if self.capped else 0

    @property
    def copy_width(self) -> int:
        """Bytes per element of the copy in which the loss is computed; 0 if the dtypes agree."""
        return self.loss_width if self.compute_width != self.loss_width else 0


def loss_bytes(job: ResolvedJob, arch: Architecture, stage: Stage) -> LossBytes:
    """Return the bytes of logits and loss on one stage."""
    found, ranks = _loss_bytes(job, arch, stage), gathered_parts(job, arch, stage)
    if ranks == 1:
        return found
    whole = job.widths.compute * job.scored_tokens * arch.vocab
    return replace(found, gathering_bytes=-(-whole // ranks) + 2 * whole + found.retained_before_bytes)


def gathered_parts(job: ResolvedJob, arch: Architecture, stage: Stage) -> int:
    """Return the ranks whose parts of the logits are gathered, where a plan splits the head; 1: none are.

    ``Shard.redistribute`` to whole logits gathers along the first dimension, cuts the result into the ranks' parts and
    puts them side by side (``all_gather_single`` in torch 2.13, ``distributed/_functional_collectives.py``).
    """
    plan = job.framework.tensor_parallel_plan and not job.framework.splits_logits
    if not (plan and job.parallel.tensor > 1 and stage.last and arch.has_vocab_head):
        return 1
    if job.trains and job.training.loss not in _LOSSES_OF_WHOLE_LOGITS:
        return 1
    heads = [held for held in stage.head if held.group.linear and not held.adapter]
    tied = [stage.token_embedding] if stage.token_embedding is not None else []
    split = any(held.elements < held.group.elements for held in heads or tied)
    return job.parallel.tensor if split else 1


def _loss_bytes(job: ResolvedJob, arch: Architecture, stage: Stage) -> LossBytes:
    if not stage.last:
        return LossBytes(forward_bytes=0, backward_bytes=0)
    tokens = job.scored_tokens
    if not arch.has_vocab_head:
        outputs = arch.num_labels * (job.local_tokens if arch.task == "token-classification" else job.sequences)
        return LossBytes(forward_bytes=12 * outputs, backward_bytes=12 * outputs)
    framework = job.framework
    ranks = job.parallel.tensor if framework.splits_logits else 1
    logits = _logits(job, arch, tokens=tokens, ranks=ranks, trains_head=stage.trains_head)
    if not job.trains:
        size = logits.compute_width * logits.elements
        return LossBytes(forward_bytes=size, backward_bytes=0)
    if (
        framework.loss_in_place
    ):  # Megatron's (tensor_parallel/cross_entropy.py): one fp32 copy is softmax, then gradient
        size = (logits.compute_width + 4) * logits.elements
        return LossBytes(forward_bytes=size, backward_bytes=size)
    if framework.keeps_fp32_logits and job.training.loss != "fused-linear":
        unpacked = unpacked_bytes(stage.head, width=framework.unpacked_width)
        return _litgpt_loss(job, logits, unpacked)
    match job.training.loss:
        case "full":
            full = _full_loss(logits, framework, split=ranks > 1)
            return _kept_outputs(job, logits, full) if job.keeps_outputs else full
        case "log-probs" | "fused-log-probs" | "divergence":
            return _token_loss(job, logits)
        case "chunked":
            if framework.chunked_loss == "at-once":
                return _chunks_at_once(job, logits)
            if framework.chunked_loss == "without-logits":
                return _without_logits(job, arch, tokens=tokens, trains_head=logits.head_bytes > 0)
            return _chunks_one_by_one(logits)
        case "fused-linear" | "unsloth":
            return _fused_linear_loss(job, logits)


def _logits(job: ResolvedJob, arch: Architecture, *, tokens: int, ranks: int, trains_head: bool) -> _Logits:
    causal, widths = arch.task == "causal-lm", job.widths
    return _Logits(
        elements=-(-tokens * arch.vocab // ranks),
        hidden_elements=tokens * arch.hidden,
        head_bytes=widths.compute * arch.vocab * arch.hidden // ranks if trains_head else 0,
        compute_width=widths.compute,
        loss_width=4 if causal or widths.mixed else widths.compute,
        capped=bool(arch.logit_softcap),
        casts_in_loss=causal,
        mixed=widths.mixed,
        compiled=job.compiles_loss,
        saves_softmax_inputs=job.versions.saves_softmax_inputs,
        copies_shifted=causal and job.versions.copies_shifted_logits,
        casts_in_model=job.versions.casts_logits_in_model,
        in_place="cross-entropy" in job.fused_kernels,
        cloned=job.clones_outputs,
    )


def _full_loss(logits: _Logits, framework: Framework, *, split: bool) -> LossBytes:
    """Bytes of the loss on all logits at once.

    transformers (since 4.49, ``loss/loss_utils.py``) computes c-byte logits, an fp32 copy of them and fp32
    log-probabilities, of which only the last are saved; backward adds the fp32 gradients of these and of the logits.
    Losses that leave the cast to autocast keep c-byte log-probabilities besides: ``cross_entropy`` asks for a softmax
    in the dtype of the logits, and only ``nll_loss`` reads fp32 (ATen/native/LossNLL.cpp, ATen/autocast_mode.h).
    """
    n, c, wide, copy, capped = (
        logits.elements,
        logits.compute_width,
        logits.loss_width,
        logits.copy_width,
        logits.cap_bytes,
    )
    if logits.in_place:
        return _in_place_cross_entropy(logits)
    if logits.compiled:
        outputs = 4 * n if framework.trainer and logits.mixed and copy else 0  # accelerate's convert_outputs_to_fp32
        return LossBytes(
            forward_bytes=c * n + capped + outputs,
            backward_bytes=2 * c * n + capped,
            eager_extra_bytes=(3 * wide - c) * n if framework.may_leave_loss_eager else 0,
        )
    if split:
        return _vocabulary_parallel_loss(logits)
    replaced = framework.casts_logits and copy > 0  # the loop's variable holds the fp32 copy only
    returned = 0 if replaced else c
    if logits.copies_shifted:
        copy += wide
        returned = 0 if logits.casts_in_model else c
    lowered = c if logits.mixed and not logits.casts_in_loss else 0  # log-probabilities before the cast
    saved = (lowered + wide) * n + capped
    softmax_input = (lowered or wide) * n if logits.saves_softmax_inputs else 0
    return LossBytes(
        forward_bytes=(returned + (lowered or copy) + wide) * n + capped,
        backward_bytes=((lowered or wide) + 2 * wide) * n + capped + softmax_input,
        gradient_bytes=c * n,
        upcast_bytes=saved + (c + wide) * n if lowered else 0,
        cloned_bytes=saved + 2 * (4 if logits.mixed else c) * n if logits.cloned else 0,
    )


def _in_place_cross_entropy(logits: _Logits) -> LossBytes:
    """Bytes of Liger-Kernel's cross entropy, which writes the gradient over its fp32 logits (ops/cross_entropy.py)."""
    n, c, wide = logits.elements, logits.compute_width, logits.loss_width
    copy = wide * n if logits.copy_width else 0
    capped = logits.cap_bytes
    return LossBytes(
        forward_bytes=c * n + copy + capped,
        backward_bytes=(copy or c * n) + (c * n if copy else 0) + capped,
        gradient_bytes=c * n,
    )


def _kept_outputs(job: ResolvedJob, logits: _Logits, loss: LossBytes) -> LossBytes:
    """Return the bytes of a loss where the training loop's variable holds the model's outputs.

    They are in the dtype in which the model returns them, or in fp32 where accelerate casts them.
    """
    n, c = logits.elements, logits.compute_width
    torchtitan = job.versions.holds_predictions
    in_fp32 = torchtitan or logits.casts_in_model or loss.upcast_bytes
    kept = (4 if in_fp32 else c) * n
    before = kept if job.keeps_between_steps else 0
    forward = max((c + 4) * n + before, 8 * n) if torchtitan else loss.forward_bytes + before
    return replace(
        loss,
        forward_bytes=forward,
        backward_bytes=loss.backward_bytes + kept,
        gradient_bytes=loss.gradient_bytes + kept,
        retained_bytes=kept,
        retained_in_step_bytes=before,
        retained_before_bytes=before,
    )


def _token_loss(job: ResolvedJob, logits: _Logits) -> LossBytes:
    """Bytes of a loss on the log-probabilities of tokens."""
    if job.training.loss == "divergence":
        return _divergence(job, logits=logits.elements)
    if job.training.loss == "log-probs":
        return _log_probabilities(job, logits=logits.elements)
    hidden = logits.compute_width * logits.hidden_elements
    return _one_example_at_a_time(job, logits=logits.elements, hidden_bytes=hidden, head_bytes=logits.head_bytes)


def _vocabulary_parallel_loss(logits: _Logits) -> LossBytes:
    """Bytes of logits split over the vocabulary, as torch.distributed.tensor.parallel.loss treats them in eager mode.

    Forward: input, shifted input and its exponential; backward: log-softmax, a gradient of zeros, the exponential
    and their sum, all in fp32.
    """
    n, c, wide, capped = logits.elements, logits.compute_width, logits.loss_width, logits.cap_bytes
    return LossBytes(
        forward_bytes=(c + logits.copy_width + 2 * wide) * n + capped,
        backward_bytes=4 * wide * n + capped,
    )


def _fused_linear_loss(job: ResolvedJob, logits: _Logits) -> LossBytes:
    """Bytes of a loss that never has all logits at once: gradients come in the forward pass, chunk by chunk.

    Liger-Kernel's takes chunks of about T h / V tokens (ops/fused_linear_cross_entropy.py). A chunk's gradient of the
    head's weight is a whole matrix, which is added to the others'; since 0.6.2 it is cast to fp32 before that. Before
    0.5 the chunk's logits were cast to fp32.
    """
    c, hidden = logits.compute_width, logits.compute_width * logits.hidden_elements
    if job.framework.backward_fused_loss:  # everything that is as large as the head or its input is made in backward
        return LossBytes(forward_bytes=0, backward_bytes=hidden + logits.head_bytes)
    chunk = min(logits.elements, logits.hidden_elements)
    if job.training.loss == "unsloth":
        # as many logits at a time as four, eight, ... equal parts have, unless all are few: ``get_chunk_size`` in
        # unsloth_zoo's ``fused_losses/cross_entropy_loss.py`` of August 2026
        few = logits.elements <= _UNSLOTH_LOGITS
        parts = 1 if few else 4 * -(-logits.elements // (4 * _UNSLOTH_LOGITS))
        largest = 2 * c * -(-logits.elements // parts) + logits.head_bytes
    elif job.versions.adds_head_gradient_in_fp32:
        added = logits.head_bytes // c * (c + 4) if c != 4 else logits.head_bytes
        largest = max(2 * c * chunk, c * chunk + added)
    else:
        largest = (c + 8) * chunk
    return LossBytes(forward_bytes=largest + hidden + logits.head_bytes, backward_bytes=2 * hidden)


def _chunks_one_by_one(logits: _Logits) -> LossBytes:
    """Bytes of torchtune's loss: all logits exist, and the loss takes a chunk at a time (CEWithChunkedOutputLoss).

    In backward each chunk gives a gradient of the whole head, which is added to that of the chunks before.
    """
    n, c, head = logits.elements, logits.compute_width, logits.head_bytes
    chunk = -(-n // _LOSS_CHUNKS)
    kept = c if logits.compiled else 4  # logits, or their log-softmax
    passing = c if logits.compiled else 8 + c
    first = kept * n + passing * chunk
    second = first - kept * chunk + 2 * head
    return LossBytes(
        forward_bytes=c * n if logits.compiled else (c + 4) * n + 4 * chunk,
        backward_bytes=max(first, first - passing * chunk + head, second),
    )


def _chunks_at_once(job: ResolvedJob, logits: _Logits) -> LossBytes:
    """Bytes of torchtitan's loss: each chunk runs forward and backward before the next (ChunkedLossWrapper).

    The gradients of the hidden states are accumulated in fp32. FSDP2 accumulates those of the whole head in the dtype
    in which it reduces them, and copies them for the reduction after the last chunk
    (``to_accumulated_grad_if_needed`` and ``foreach_reduce`` in torch/distributed/fsdp/_fully_shard).
    """
    c, gradients, split = logits.compute_width, 4 * logits.hidden_elements, job.parallel.tensor > 1
    chunk = -(-logits.elements // _LOSS_CHUNKS)
    most = (2 * c if logits.compiled else c + 16 if split else c + 12) * chunk
    head, ranks = 2 * logits.head_bytes, job.shards.weights
    if job.strategy.fsdp2 and ranks > 1:
        reduced = job.widths.reduce * logits.head_bytes // c
        head = 2 * reduced + reduced // ranks
        most += reduced
    largest = gradients + max(most, c * chunk + head)
    return LossBytes(forward_bytes=largest, backward_bytes=largest)


def _litgpt_loss(job: ResolvedJob, logits: _Logits, unpacked: int) -> LossBytes:
    """Bytes of LitGPT's loss: Fabric casts the model's outputs to fp32, and the variable ``logits`` outlives the loss.

    Adapters make the head run by chunks, whose gradients replace their log-probabilities one by one. Otherwise the
    last position is cut off, which with several sequences is a copy, and so is its gradient.

    Args:
        job: the job.
        logits: its logits.
        unpacked: bytes of the head's dequantized weight.
    """
    n, c, length = logits.elements, logits.compute_width, job.training.sequence_length
    before = 0 if job.versions.runs_longest_first else 4 * n
    passing = before + c * n + max(4 * n if c != 4 else 0, unpacked)
    chunk = 8 * n * min(HEAD_CHUNK, length) // length
    if job.lora:
        computing, backward = 8 * n, max(8 * n + chunk, (4 + c) * n + unpacked)
    else:
        computing = (12 if job.sequences > 1 else 8) * n
        backward = max(8 * n + chunk, 12 * n)
    return LossBytes(
        forward_bytes=max(passing, computing),
        backward_bytes=backward,
        gradient_bytes=(4 + c) * n,
        retained_bytes=4 * n,
        retained_in_step_bytes=4 * n,
        retained_before_bytes=before,
    )


_TILE_TOKENS = 4096
_TILE_VOCABULARY = 32768
"""TRL's tile of logits (``TOKEN_CHUNK_SIZE`` in kernels/chunked_logprob.py, and its caller in trainer/utils.py)."""
_CHUNK_TOKENS = 256
"""Tokens of a recomputed chunk (``_CHUNKED_LM_HEAD_CHUNK_SIZE`` in sft_trainer.py, TRL 1.4 to 1.14)."""
_WIDE = 4
"""fp32 logits, log-probabilities and gradients of them."""


def _log_probabilities(job: ResolvedJob, *, logits: int) -> LossBytes:
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


def _divergence(job: ResolvedJob, *, logits: int) -> LossBytes:
    """Return the bytes of the generalized Jensen-Shannon divergence on all logits of student and teacher.

    Both are scaled, their log-softmax, the stacked mixture and two divergences exist at once (``generalized_jsd_loss``,
    gkd_trainer.py).
    """
    return LossBytes(forward_bytes=68 * logits, backward_bytes=48 * logits, gradient_bytes=job.widths.compute * logits)


def _one_example_at_a_time(job: ResolvedJob, *, logits: int, hidden_bytes: int, head_bytes: int) -> LossBytes:
    """Return the bytes of Liger-Kernel's losses, which run forward and backward for one example after the other.

    Args:
        job: the job.
        logits: elements of the logits of the whole micro-batch.
        hidden_bytes: the head's input, whose gradient is made in the forward pass.
        head_bytes: the gradient of the head's weight, of which a chunk makes one of its own; 0 if it is frozen.
    """
    passing = 4 * _WIDE * -(-logits // job.training.micro_batch)
    return LossBytes(forward_bytes=passing + hidden_bytes + 2 * head_bytes, backward_bytes=2 * hidden_bytes)


def _without_logits(job: ResolvedJob, arch: Architecture, *, tokens: int, trains_head: bool) -> LossBytes:
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
