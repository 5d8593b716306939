"""LitGPT's model as its fine-tuning scripts prepare it, and their loss.

Sources: LitGPT 0.5.13 ``finetune/lora.py``, ``finetune/full.py`` and ``utils.py`` (``chunked_cross_entropy``);
Lightning Fabric 2.6 ``wrappers.py`` (a module's outputs become fp32) and ``plugins/precision/bitsandbytes.py`` (every
linear layer is quantized, from fp16 weights, the head too).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from ...model.dtypes import compute_dtype, default_dtype
from ...model.quantized.linear import Linear4bit
from ...request.errors import UnsupportedError
from .model import GPT, NO_ADAPTERS, Adapters
from .sizes import read_sizes

if TYPE_CHECKING:
    from ...request.request import Lora, Request

CHUNK = 128
"""Positions per pass of the head (``lm_head_chunk_size``), and per chunk of the loss."""
_TARGETS = {
    "query": ("q_proj",),
    "key": ("k_proj",),
    "value": ("v_proj",),
    "projection": ("o_proj", "dense", "out_proj"),
    "mlp": ("gate_proj", "up_proj", "down_proj", "gate_up_proj", "fc1", "fc2", "dense_h_to_4h", "dense_4h_to_h"),
    "head": ("lm_head", "embed_out"),
}
"""Names in Hugging Face models of the layers that LitGPT adapts together."""
_FUSED = ("query_key_value", "qkv_proj")


def build_litgpt(request: Request, dtype: Any) -> Any:
    """Return LitGPT's model with its adapters and quantized layers, ready for training.

    Args:
        request: a job of the framework ``litgpt``.
        dtype: of the weights.

    Raises:
        UnsupportedError: LitGPT's model of this family, or adapters of such names, are not known here.
    """
    training, lora = request.training, request.lora
    with default_dtype(dtype):
        adapters = NO_ADAPTERS if lora is None else _adapters(lora)
        model = GPT(read_sizes(request.config), adapters, request.loop, training.sequence_length)
    if lora is not None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
        _quantize(model, request)
    if training.activation_checkpointing == "full":
        for block in model.transformer.h:
            block.forward = _checkpointed(block.forward)
    model.train()
    return model


def litgpt_loss(model: Any, inputs: dict[str, Any], request: Request, variables: list[Any]) -> Any:
    """Return the loss of a micro-batch; the script's variable ``logits`` holds those of the one before until then."""
    ids, labels = inputs["input_ids"], inputs["labels"][..., 1:]
    logits: Any
    if request.lora is None:
        logits = model(ids)
        variables[0] = logits
        return _chunked_cross_entropy(logits[..., :-1, :], labels)
    logits = model(ids, lm_head_chunk_size=CHUNK)
    logits[-1] = logits[-1][..., :-1, :]
    variables[0] = logits
    targets = labels.split(logits[0].size(1), dim=1)
    losses = [
        _cross_entropy(part.reshape(-1, part.size(-1)), target.reshape(-1))
        for part, target in zip(logits, targets)  # noqa: B905 - not in Python 3.9
    ]
    return torch.cat(losses).sum()


def _chunked_cross_entropy(logits: Any, targets: Any) -> Any:
    logits, targets = logits.reshape(-1, logits.size(-1)), targets.reshape(-1)
    pairs = zip(logits.split(CHUNK), targets.split(CHUNK))  # noqa: B905 - not in Python 3.9
    return torch.cat([_cross_entropy(part, target) for part, target in pairs]).sum()


def _cross_entropy(logits: Any, targets: Any) -> Any:
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def _adapters(lora: Lora) -> Adapters:
    """Return which of LitGPT's layers have adapters, from their names in the Hugging Face model."""
    names = set(lora.targets) if not isinstance(lora.targets, str) else {"all-linear"}
    if "all-linear" in names:
        names = {name for part in _TARGETS if part != "head" for name in _TARGETS[part]}
    if names & set(_FUSED):
        names |= {"q_proj", "k_proj", "v_proj"}
    unknown = names - set(_FUSED) - {name for known in _TARGETS.values() for name in known}
    if unknown:
        raise UnsupportedError(f"LitGPT has no adapter of {', '.join(sorted(unknown))}")
    return Adapters(
        rank=lora.rank,
        dropout=lora.dropout,
        **{part: bool(names & set(known)) for part, known in _TARGETS.items()},
    )


def _quantize(model: Any, request: Request) -> None:
    lora = request.lora
    if lora is None or lora.quantization == "none":
        return
    product_dtype = compute_dtype(request.training)
    for path, module in list(model.named_modules()):
        if type(module) is not torch.nn.Linear:
            continue
        layer = Linear4bit(
            module,
            product_dtype,
            nested=lora.quantization == "nf4-double",
            keeps_input=request.older.keeps_quantized_inputs,
        )
        layer.weight_dtype = torch.float16
        model.set_submodule(path, layer)
    if request.loop.stable_embedding:
        model.transformer.wte = _StableEmbedding(model.transformer.wte)


class _StableEmbedding(torch.nn.Embedding):  # type: ignore[misc] # torch is not type-checked
    """bitsandbytes' ``StableEmbedding``, which LitGPT puts in since 0.5: a norm follows the embedding."""

    def __init__(self, embedding: Any) -> None:
        torch.nn.Module.__init__(self)
        self.weight, self.padding_idx = embedding.weight, None
        self.norm = torch.nn.LayerNorm(embedding.embedding_dim, dtype=self.weight.dtype)
        self.norm.requires_grad_(requires_grad=False)

    def forward(self, ids: Any) -> Any:
        """Return the normalised embedding, which is computed in the default dtype."""
        rows = torch.nn.functional.embedding(ids, self.weight).to(torch.get_default_dtype())
        return self.norm(rows.to(self.norm.weight.dtype)).to(self.weight.dtype)


def _checkpointed(forward: Any) -> Any:
    return lambda *args: checkpoint(forward, *args, use_reentrant=False)
