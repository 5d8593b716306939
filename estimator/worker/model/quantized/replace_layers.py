"""Replaces the linear layers of a built model that transformers' quantizers choose by quantized ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..describe_model import is_quantizable, modules_kept_by_bitsandbytes
from ..dtypes import compute_dtype
from .linear import Linear4bit, Linear8bitLt

if TYPE_CHECKING:
    from ...request.request import Request


def quantize_linear_layers(model: Any, request: Request) -> None:
    """Replace a model's linear layers in place, except its head (``replace_with_bnb_linear``).

    Args:
        model: the model, with weights in the dtype in which they are loaded.
        request: the job, with adapters over quantized weights; 4-bit layers multiply in its precision's type.
    """
    lora = request.lora
    if lora is None or lora.quantization == "none":
        return
    product_dtype = compute_dtype(request.training)
    kept = modules_kept_by_bitsandbytes(model)
    for path, module in list(model.named_modules()):
        if not is_quantizable(path, module, kept):
            continue
        if lora.quantization == "int8":
            layer: Any = Linear8bitLt(module)
        else:
            layer = Linear4bit(
                module,
                product_dtype,
                nested=lora.quantization == "nf4-double",
                keeps_input=request.older.keeps_quantized_inputs,
                storage=product_dtype if request.parallel.sharded or request.parallel.flat_sharded else torch.uint8,
            )
        model.set_submodule(path, layer)
    setattr(model, "is_loaded_in_8bit" if lora.quantization == "int8" else "is_loaded_in_4bit", True)
