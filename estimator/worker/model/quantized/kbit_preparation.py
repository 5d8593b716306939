"""Dtypes of a quantized model's other parameters: peft's k-bit preparation, and TRL's casts after it.

Source: peft 0.21, ``utils/other.py`` (``prepare_model_for_kbit_training``: every 16-bit parameter becomes fp32); TRL
0.8 to 0.25, ``peft_module_casting_to_bf16`` (embedding and head back to bf16 under ``bf16``, norms stay in fp32).
"""

from __future__ import annotations

from typing import Any

import torch

from .linear import Linear4bit, Linear8bitLt

EVERYTHING, NORMS = "all", "norms"
"""Parameters that are cast to fp32."""


def cast_to_fp32(model: Any, which: str) -> None:
    """Cast a quantized model's 16-bit parameters to fp32, in place; parameters that are tied stay so.

    Args:
        model: the model.
        which: ``all``, ``norms``, or another word for none.
    """
    if which not in (EVERYTHING, NORMS):
        return
    made: dict[int, Any] = {}
    for path, module in model.named_modules():
        if which == NORMS and "norm" not in path.lower():
            continue
        packed = isinstance(module, (Linear4bit, Linear8bitLt))
        for name, parameter in list(module._parameters.items()):
            if parameter is None or parameter.dtype not in (torch.float16, torch.bfloat16):
                continue
            if packed and name == "weight":  # a storage dtype, not the weight's
                continue
            if id(parameter) not in made:
                made[id(parameter)] = torch.nn.Parameter(parameter.detach().float(), requires_grad=False)
            module._parameters[name] = made[id(parameter)]


def cast_adapters(model: Any, dtype: Any) -> None:
    """Give the parameters that train a dtype, as TRL does on quantized models since 0.26 (sft_trainer.py)."""
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.requires_grad and parameter.dtype != dtype:
                module._parameters[name] = torch.nn.Parameter(parameter.detach().to(dtype))
