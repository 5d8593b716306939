"""The forward pass and loss of loops other than the Trainer's, on transformers' model.

torchtitan: ``train.py`` (``pred`` is freed before the backward pass since June 2024). torchtune 0.6:
``recipes/full_finetune_*.py``, ``modules/transformer.py`` (fp32 logits, or chunks of 16-bit ones). NeMo AutoModel 0.1
to 0.5: ``recipes/llm/train_ft.py``, ``components/distributed/parallelizer.py``. Liger-Kernel: ``transformers/model``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import checkpoint

from ..model.build import recomputing, transformer_blocks, without_adapters
from ..request.errors import UnsupportedError
from .compiled_model import check_units, compile_model
from .fused_kernels import fuse_modules
from .litgpt.step import litgpt_loss
from .losses import CHUNKS, chunked_loss, chunks_at_once_loss, full_loss, fused_linear_loss
from .selective_checkpointing import gate_shapes, keeping_contexts

if TYPE_CHECKING:
    from ..request.request import Request

LITGPT = "litgpt"
_PARTS = (
    ("mlp", "feed_forward", "ffn"),
    ("self_attn", "attention", "attn", "linear_attn"),
    ("input_layernorm", "attention_norm", "norm1"),
    ("post_attention_layernorm", "ffn_norm", "norm2"),
)
"""Names of the parts of a block that AutoModel checkpoints."""


def takes_own_loss(request: Request) -> bool:
    """Return True if the loop takes the loss itself, or a fused one takes the head's place."""
    fused = request.training.loss != "full" or "cross-entropy" in request.loop.fused
    return request.training.mode == "train" and (request.loop.own_loss or fused)


def prepare_loop(model: Any, request: Request) -> None:
    """Put in fused kernels, checkpoint parts of blocks one by one, and have the model return what the loss reads."""
    if request.training.framework == LITGPT:
        return
    if request.loop.compiles and not request.loop.own_loss:
        compile_model(model)
        check_units(model, request.parallel)
    fuse_modules(model, request.loop)
    if request.loop.checkpoints_parts:
        _checkpoint_parts(model)
    if request.training.activation_checkpointing == "selective":
        width = model.config.intermediate_size if request.loop.compiles else None
        settings = {"use_reentrant": False, "context_fn": keeping_contexts(width, gate_shapes(model))}
        settings |= recomputing(request)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
    if takes_own_loss(request) and request.training.loss != "full":
        base, head = _base_and_head(model)
        chunks = request.training.loss == "chunked" and not request.loop.chunks_at_once

        def forward(input_ids: Any) -> Any:
            hidden = base(input_ids=input_ids, use_cache=False)[0]
            return [head(part) for part in hidden.chunk(CHUNKS, dim=1)] if chunks else hidden

        def forward_and_loss(input_ids: Any) -> Any:
            return fused_linear_loss(
                forward(input_ids), head.weight, in_backward=False, fp32_sums=request.loop.fp32_sums
            )

        inside = request.training.loss == "fused-linear" and not request.loop.own_loss
        model.forward = forward_and_loss if inside else forward


def loop_loss(model: Any, inputs: dict[str, Any], request: Request, variables: list[Any]) -> Any:
    """Return the loss of a micro-batch.

    Args:
        model: the model.
        inputs: with labels.
        request: the job.
        variables: what the loop's variables hold; the outputs replace it if the loop keeps them.
    """
    if request.training.framework == LITGPT:
        return litgpt_loss(model, inputs, request, variables)
    loop, kind, labels = request.loop, request.training.loss, inputs.pop("labels")
    if kind == "fused-linear":
        output = model(input_ids=inputs["input_ids"])
        if not loop.own_loss:
            return output
        _base, head = _base_and_head(model)
        variables[0] = output if loop.keeps_outputs else None
        return fused_linear_loss(output, head.weight, in_backward=True, fp32_sums=False)
    if kind == "chunked" and loop.chunks_at_once:
        _base, head = _base_and_head(model)
        hidden = model(input_ids=inputs["input_ids"])
        return chunks_at_once_loss(hidden, labels, head, compiled=loop.compiles_loss)
    if kind == "chunked":
        return chunked_loss(model(input_ids=inputs["input_ids"]), labels, compiled=loop.compiles_loss)
    logits = model(**inputs, use_cache=False).logits
    if loop.casts_logits:
        logits = logits.float()
    variables[0] = logits if loop.keeps_outputs else None
    return full_loss(logits, labels, in_place="cross-entropy" in loop.fused, compiled=loop.compiles_loss)


def _base_and_head(model: Any) -> tuple[Any, Any]:
    inner = without_adapters(model)
    head, base = inner.get_output_embeddings(), getattr(inner, inner.base_model_prefix, None)
    if head is None or base is None:
        raise UnsupportedError(f"{type(inner).__name__} has no head over a vocabulary")
    return base, head


def _checkpoint_parts(model: Any) -> None:
    for block in transformer_blocks(model).values():
        for names in _PARTS:
            part = next((getattr(block, name) for name in names if hasattr(block, name)), None)
            if part is not None:
                part.forward = _checkpointed(part.forward)


def _checkpointed(forward: Any) -> Any:
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)
