"""Code of older library versions on the installed ones: their loss, their experts, their checkpointing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .build import default_dtype

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..request.request import OlderVersions

# The causal loss of transformers 4: fp32 logits made by the model or the loss, and copied without the last token.
#
# Source: transformers 4.46 to 4.48, ``loss/loss_utils.py`` (``ForCausalLMLoss``); 4.45 and older, the model's own
# forward (``logits = logits.float()`` and ``logits[..., :-1, :].contiguous()`` in ``modeling_llama.py`` and its
# like).


def use_older_loss(model: Any, task: str, older: OlderVersions) -> None:
    """Give a causal language model the loss of the version that the job states, in place."""
    if task != "causal-lm" or not older.copies_shifted_logits or not hasattr(model, "loss_function"):
        return
    if older.casts_logits_in_model:
        _CastingModel(model)
    else:
        model.loss_function = _shifted_loss


def _shifted_loss(logits: Any, labels: Any, vocab_size: int, *_: Any, **__: Any) -> Any:
    """Return the loss of all tokens but the last, on a copy of the fp32 logits."""
    logits = logits.float()
    shifted = logits[..., :-1, :].contiguous()
    return torch.nn.functional.cross_entropy(shifted.view(-1, vocab_size), labels[..., 1:].contiguous().view(-1))


class _CastingModel:
    """Makes a model return fp32 logits, and frees the 16-bit ones before the loss.

    A forward pass cannot be told to replace its variable ``logits``: the loss empties the storage of the 16-bit ones
    once they are cast, as no backward pass reads them.
    """

    def __init__(self, model: Any) -> None:
        self.logits: Any = None
        model.loss_function = self.loss
        model.register_forward_hook(self._return_logits)

    def loss(self, logits: Any, labels: Any, vocab_size: int, *_: Any, **__: Any) -> Any:
        """Return the loss on a copy of the fp32 logits, which the model returns."""
        self.logits = logits.float()
        if self.logits is not logits:
            logits.untyped_storage().resize_(0)
        return _shifted_loss(self.logits, labels, vocab_size)

    def _return_logits(self, _model: Any, _inputs: Any, outputs: Any) -> Any:
        kept, self.logits = self.logits, None
        if kept is not None and getattr(outputs, "logits", None) is not None:
            outputs.logits = kept
        return outputs


# Experts as transformers 4 had them: a list of MLPs of linear layers, each of which is called with its own tokens.
#
# Source: transformers 4.48, ``MixtralSparseMoeBlock`` (models/mixtral/modeling_mixtral.py); ``qwen2_moe``,
# ``qwen3_moe``, ``olmoe``, ``deepseek_v3`` and others have the same loop. Since 5.0 experts are two tensors, which
# bitsandbytes leaves as they are.


_FUSED = ("gate_up_proj", "down_proj")


def separate_experts(model: Any, names: Sequence[str]) -> None:
    """Replace fused experts by one MLP of three linear layers each, in place.

    Args:
        model: the model, before it is quantized.
        names: of the gate, the other half and the last projection, under transformers 4.
    """
    for path, module in list(model.named_modules()):
        tensors = [getattr(module, name, None) for name in _FUSED]
        if all(isinstance(tensor, torch.nn.Parameter) and tensor.dim() == 3 for tensor in tensors):
            model.set_submodule(path, _Experts(module, names))


class _Expert(torch.nn.Module):  # type: ignore[misc] # torch is not type-checked
    """One gated MLP."""

    def __init__(self, hidden: int, size: int, activation: Any, names: Sequence[str]) -> None:
        super().__init__()
        gate, up, down = names
        self.add_module(gate, torch.nn.Linear(hidden, size, bias=False))
        self.add_module(up, torch.nn.Linear(hidden, size, bias=False))
        self.add_module(down, torch.nn.Linear(size, hidden, bias=False))
        self.activation, self.names = activation, tuple(names)

    def forward(self, tensor: Any) -> Any:
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self.activation(gate(tensor)) * up(tensor))


class _Experts(torch.nn.ModuleList):  # type: ignore[misc] # torch is not type-checked
    """The experts of a block, each with an equal share of the tokens: which ones it gets depends on values."""

    def __init__(self, fused: Any, names: Sequence[str]) -> None:
        count, hidden, size = fused.down_proj.shape
        with default_dtype(fused.down_proj.dtype):
            super().__init__(_Expert(hidden, size, fused.act_fn, names) for _ in range(count))

    def forward(self, hidden: Any, indices: Any, weights: Any) -> Any:
        """Add up the experts' results, of each token's choices."""
        result = torch.zeros_like(hidden)
        weights = weights.to(hidden.dtype)
        share, rest = divmod(indices.numel(), len(self))
        for number, expert in enumerate(self):
            chosen = torch.zeros(share + (number < rest), dtype=torch.long)
            rank = torch.zeros_like(chosen)
            own = hidden[None, chosen].reshape(-1, hidden.shape[-1])
            found = expert(own) * weights[chosen, rank, None]
            result.index_add_(0, chosen, found.to(hidden.dtype))
        return result
