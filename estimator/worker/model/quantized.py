"""bitsandbytes' quantized linear layers on fake tensors: their storage, their products, and peft's adapters on them."""

from __future__ import annotations

import contextlib
import sys
import types
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from ..replaced import replaced
from .build import compute_dtype, is_quantizable, modules_kept_by_bitsandbytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..request.request import Request

# Linear layers that store, save and allocate what bitsandbytes' ``Linear4bit`` and ``Linear8bitLt`` do.
#
# Source: bitsandbytes 0.43 to 0.50, ``nn/modules.py``, ``autograd/_functions.py`` (``MatMul4Bit``, ``MatMul8bitLt``),
# ``functional.py`` (``quantize_4bit``, ``dequantize_4bit``) and ``backends/cuda/ops.py``. The packed weight is a
# parameter of the storage dtype; the constants that scale it back are no parameters there, and buffers here, so that
# a trace counts them.


BLOCK_ELEMENTS = 64
"""Elements that share a scale (``blocksize``)."""
NESTED_BLOCK = 256
"""Scales that share one, where they are quantized too."""
OUTLIER_THRESHOLD = 6.0
"""transformers' ``llm_int8_threshold``: outlying inputs are searched for; fake ones have none."""


class Linear4bit(torch.nn.Linear):  # type: ignore[misc] # torch is not type-checked
    """A 4-bit linear layer: packed weight, scales, and its input's dtype for the output.

    Args:
        linear: the layer that it replaces; its weight's dtype is that of the dequantized weight.
        compute_dtype: of the product.
        nested: the scales are quantized too.
        keeps_input: its graph holds the input beside autograd's saved tensors (bitsandbytes before 0.43.2).
        storage: dtype of the packed weight (``bnb_4bit_quant_storage``).
    """

    def __init__(
        self, linear: Any, compute_dtype: Any, *, nested: bool, keeps_input: bool, storage: Any = torch.uint8
    ) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = features(linear)
        elements = self.in_features * self.out_features
        packed = -(-elements // (2 * torch.empty((), dtype=storage).element_size()))
        self.weight = frozen(torch.empty((packed, 1), dtype=storage), elements)
        self.weight.compress_statistics, self.weight.quant_type = nested, "nf4"
        self.bias = None if linear.bias is None else frozen(linear.bias.detach(), linear.bias.numel())
        self.compute_dtype, self.weight_dtype = compute_dtype, linear.weight.dtype
        self.nested, self.keeps_input = nested, keeps_input  # FSDP1 takes a parameter's attributes away
        blocks = -(-elements // BLOCK_ELEMENTS)
        self.add_state("absmax", blocks, torch.uint8 if nested else torch.float32)
        self.add_state("code", 16, torch.float32)
        if nested:
            self.add_state("nested_absmax", -(-blocks // NESTED_BLOCK), torch.float32)
            self.add_state("nested_code", 256, torch.float32)
            self.add_state("offset", 1, torch.float32)

    def add_state(self, name: str, size: int, dtype: Any) -> None:
        """Add a tensor of the quantization's state."""
        self.register_buffer(name, torch.empty(size, dtype=dtype), persistent=False)

    def dequantize(self, dtype: Any) -> Any:
        """Return the weight in a dtype, with the temporary tensors of ``dequantize_4bit``."""
        scales = self.absmax
        if self.nested:
            scales = torch.empty_like(self.absmax, dtype=torch.float32)
        weight = scales.new_empty((self.out_features, self.in_features), dtype=self.weight_dtype)
        return weight.to(dtype)

    def forward(self, tensor: Any) -> Any:
        """Multiply in the compute dtype; the result has the input's dtype."""
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        return _MatMul4Bit.apply(tensor.to(self.compute_dtype), self, bias).to(tensor.dtype)


class _MatMul4Bit(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """The product with a dequantized weight, of which only the packed one is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, layer: Linear4bit, bias: Any) -> Any:
        ctx.layer, ctx.kept = layer, tensor if layer.keeps_input else None
        return torch.nn.functional.linear(tensor, layer.dequantize(tensor.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return torch.matmul(gradient, ctx.layer.dequantize(gradient.dtype)), None, None


class Linear8bitLt(torch.nn.Linear):  # type: ignore[misc] # torch is not type-checked
    """An 8-bit linear layer (LLM.int8): int8 weight and a scale per row; the graph holds its input.

    Args:
        linear: the layer that it replaces.
    """

    def __init__(self, linear: Any) -> None:
        torch.nn.Module.__init__(self)
        self.in_features, self.out_features = features(linear)
        shape = self.out_features, self.in_features
        self.weight = frozen(torch.empty(shape, dtype=torch.int8), self.in_features * self.out_features)
        self.bias = None if linear.bias is None else frozen(linear.bias.detach(), linear.bias.numel())
        self.register_buffer("scales", torch.empty(self.out_features, dtype=torch.float32), persistent=False)
        self.index = None
        self.state = SimpleNamespace(has_fp16_weights=False, threshold=OUTLIER_THRESHOLD)

    def forward(self, tensor: Any) -> Any:
        """Quantize the input, multiply in int8, and scale back to the input's dtype."""
        return _MatMul8Bit.apply(tensor, self)


class _MatMul8Bit(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """``MatMul8bitLt`` without outliers: its context keeps the input outside of autograd's saved tensors."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, layer: Linear8bitLt) -> Any:
        rows = tensor.reshape(-1, tensor.shape[-1])
        half = rows.to(torch.float16)
        outliers = half.abs() >= OUTLIER_THRESHOLD
        del outliers
        quantized = torch.empty_like(half, dtype=torch.int8)
        scales = half.new_empty(half.shape[0], dtype=torch.float32)
        del half
        product = quantized.new_empty((rows.shape[0], layer.out_features), dtype=torch.int32)
        result = torch.empty_like(product, dtype=torch.float16).to(tensor.dtype)
        ctx.layer, ctx.kept, ctx.shape = layer, rows, tensor.shape
        del quantized, scales, product
        return result.reshape((*tensor.shape[:-1], layer.out_features))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if not ctx.needs_input_grad[0]:
            return None, None
        dtype, layer = ctx.kept.dtype, ctx.layer
        rows = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        weight = layer.weight.to(dtype, copy=True)
        return torch.matmul(rows.to(dtype), weight).view(ctx.shape), None


def features(linear: Any) -> tuple[int, int]:
    """Return the sizes of a layer's input and output; GPT-2's ``Conv1D`` holds its weight transposed."""
    if hasattr(linear, "in_features"):
        return linear.in_features, linear.out_features
    rows, columns = linear.weight.shape
    return rows, columns


def frozen(tensor: Any, elements: int) -> Any:
    """Return a frozen parameter that stands for that many elements."""
    parameter = torch.nn.Parameter(tensor, requires_grad=False)
    parameter.vramtop_elements = elements
    return parameter


def element_count(parameter: Any) -> int:
    """Return the elements of the weight that a parameter stores, packed or not."""
    return int(getattr(parameter, "vramtop_elements", parameter.numel()))


# Dtypes of a quantized model's other parameters: peft's k-bit preparation, and TRL's casts after it.
#
# Source: peft 0.21, ``utils/other.py`` (``prepare_model_for_kbit_training``: every 16-bit parameter becomes fp32);
# TRL 0.8 to 0.25, ``peft_module_casting_to_bf16`` (embedding and head back to bf16 under ``bf16``, norms stay in
# fp32).


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


# peft's own adapter layers for bitsandbytes, on the stand-ins for its linear layers.
#
# ``peft.tuners.lora.bnb`` imports bitsandbytes and compares classes with its ``nn.Linear4bit`` and
# ``nn.Linear8bitLt``. Here it gets a module that has just these two, whether the library is installed or not.


_NAME = "bitsandbytes"


@contextlib.contextmanager
def adapters_on_stand_ins() -> Iterator[None]:
    """Let peft adapt the stand-ins as it adapts bitsandbytes' layers."""
    from peft import import_utils

    library = types.ModuleType(_NAME)
    library.__spec__ = ModuleSpec(_NAME, None)
    library.nn = types.SimpleNamespace(Linear4bit=Linear4bit, Linear8bitLt=Linear8bitLt)  # type: ignore[attr-defined]
    checks = (import_utils.is_bnb_available, import_utils.is_bnb_4bit_available)
    before = sys.modules.get(_NAME)
    sys.modules[_NAME] = library
    for check in checks:
        check.cache_clear()
    try:
        from peft.tuners.lora import bnb as layers

        with replaced((layers, "bnb", library)):
            yield
    finally:
        if before is None:
            del sys.modules[_NAME]
        else:
            sys.modules[_NAME] = before
        for check in checks:
            check.cache_clear()


def autocast_seen_by_peft() -> contextlib.AbstractContextManager[None]:
    """Answer ``torch.is_autocast_enabled()``, which asks about CUDA, for the CPU on which a trace runs."""
    original = torch.is_autocast_enabled
    return replaced((torch, "is_autocast_enabled", lambda device="cpu": original(device)))


# Replaces the linear layers of a built model that transformers' quantizers choose by quantized ones.


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
