"""bitsandbytes' own quantized layers in a model without weights, filled with random ones a layer at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..model.describe_model import is_quantizable, modules_kept_by_bitsandbytes
from ..model.dtypes import compute_dtype
from ..model.quantized.kbit_preparation import cast_to_fp32
from ..model.quantized.linear import OUTLIER_THRESHOLD, features
from ..request.errors import RefusedError
from .placed_model import STANDARD_DEVIATION

if TYPE_CHECKING:
    from ..request.request import Request


def quantize(model: Any, request: Request, device: Any) -> None:
    """Replace the linear layers that transformers' quantizers choose (``replace_with_bnb_linear``), in place.

    Args:
        model: without weights.
        request: the job, with adapters over quantized weights.
        device: that holds the quantized weights.

    Raises:
        RefusedError: bitsandbytes is not installed, or does not work here.
    """
    lora = request.lora
    assert lora is not None  # noqa: S101 - the caller has asked
    try:
        import bitsandbytes
    except Exception as error:  # noqa: BLE001 - its native library fails in many ways
        text = " ".join(str(error).split())[:200]
        raise RefusedError(f"quantized weights need bitsandbytes, which cannot be imported here: {text}") from None
    product_dtype = compute_dtype(request.training)
    kept = modules_kept_by_bitsandbytes(model)
    for path, module in list(model.named_modules()):
        if is_quantizable(path, module, kept):
            made = _quantized_layer(bitsandbytes, module, lora.quantization, product_dtype, device)
            model.set_submodule(path, made)
    setattr(model, "is_loaded_in_8bit" if lora.quantization == "int8" else "is_loaded_in_4bit", True)
    cast_to_fp32(model, lora.fp32_parameters)


def _quantized_layer(library: Any, linear: Any, kind: str, product_dtype: Any, device: Any) -> Any:
    inputs, outputs = features(linear)
    nested = kind == "nf4-double"
    with torch.device("meta"):
        if kind == "int8":
            layer = library.nn.Linear8bitLt(
                inputs, outputs, linear.bias is not None, has_fp16_weights=False, threshold=OUTLIER_THRESHOLD
            )
        else:
            layer = library.nn.Linear4bit(
                *(inputs, outputs, linear.bias is not None),
                compute_dtype=product_dtype,
                compress_statistics=nested,
                quant_type="nf4",
            )
    weight = torch.empty((outputs, inputs), dtype=linear.weight.dtype, device=device).normal_(std=STANDARD_DEVIATION)
    if kind == "int8":
        packed = library.nn.Int8Params(weight.half(), requires_grad=False, has_fp16_weights=False)
    else:
        options = {"compress_statistics": nested, "quant_type": "nf4"}
        packed = library.nn.Params4bit(weight, requires_grad=False, **options)
    layer._parameters["weight"] = packed.to(device)  # the quantization runs here
    if linear.bias is not None:
        layer._parameters["bias"] = torch.nn.Parameter(linear.bias.detach(), requires_grad=False)
    return layer
