"""The causal loss of transformers 4: fp32 logits made by the model or the loss, and copied without the last token.

Source: transformers 4.46 to 4.48, ``loss/loss_utils.py`` (``ForCausalLMLoss``); 4.45 and older, the model's own forward
(``logits = logits.float()`` and ``logits[..., :-1, :].contiguous()`` in ``modeling_llama.py`` and its like).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ...request.request import OlderVersions


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
