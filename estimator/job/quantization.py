"""Bytes of a quantized weight: packed values, and the constants that scale them back.

Sources: bitsandbytes 0.50, ``functional.quantize_4bit`` and ``nn.Int8Params``; transformers' ``quantizers`` and
``integrations`` for GPTQ and AWQ (``int4``), ``finegrained_fp8.py`` and ``mxfp4.py``. Every tensor takes whole blocks
of torch's allocator.
"""

from math import prod

from .settings import Lora

_BLOCK_ELEMENTS = 64
"""Elements per 4-bit block, each with a constant in fp32."""
_NESTED_BLOCK_CONSTANTS = 256
"""Constants per block of double quantization, each with a constant in fp32."""
_CODE_BYTES = 16 * 4
"""Table of the values that 4 bits stand for."""
_NESTED_CODE_BYTES = 256 * 4
_OFFSET_BYTES = 4
_ALLOCATION_BYTES = 512
"""torch's allocator rounds every tensor up to a multiple of this."""
BITSANDBYTES = ("nf4", "nf4-double", "int8")
"""Formats of bitsandbytes, which replaces linear layers."""
BYTES_PER_ELEMENT = {
    "nf4": 0.5 + 4 / _BLOCK_ELEMENTS,
    "nf4-double": 0.5 + 1 / _BLOCK_ELEMENTS + 4 / (_BLOCK_ELEMENTS * _NESTED_BLOCK_CONSTANTS),
    "int8": 1.0,  # one 4-byte constant per row besides: negligible beside the row
    "int4": 0.5 + 2.5 / 128,  # a 16-bit scale and a 4-bit zero per group of 128
    "fp8": 1 + 4 / 128**2,  # an fp32 scale per tile
    "mxfp4": 0.5 + 1 / 32,  # an 8-bit exponent per block
}
"""Average over a large weight, by the job file's ``lora.quantization`` and ``inference.weights``."""


def quantized_bytes(shape: tuple[int, ...], kind: str, *, transposed: bool = False) -> int:
    """Return the GPU bytes of one linear layer's weight, its constants included.

    Args:
        shape: (out, in), or that of a stack of such weights.
        kind: a key of ``BYTES_PER_ELEMENT``.
        transposed: the shape is (in, out).
    """
    block = _ALLOCATION_BYTES
    return sum(-(-size // block) * block for size in tensor_bytes(shape, kind, transposed=transposed))


def tensor_bytes(shape: tuple[int, ...], kind: str, *, transposed: bool = False) -> tuple[int, ...]:
    """Return the bytes of each tensor that stores the layer's weight, the packed values first."""
    elements = prod(shape)
    if kind not in BITSANDBYTES:
        packed = elements if kind == "fp8" else -(-elements // 2)
        return (packed, round(elements * BYTES_PER_ELEMENT[kind]) - packed)
    if kind == "int8":
        rows = shape[-1] if transposed else prod(shape[:-1])
        return (elements, 4 * rows)
    blocks = -(-elements // _BLOCK_ELEMENTS)
    packed = -(-elements // 2)
    if kind == "nf4":
        return (packed, 4 * blocks, _CODE_BYTES)
    nested = 4 * -(-blocks // _NESTED_BLOCK_CONSTANTS)
    return (packed, blocks, _CODE_BYTES, nested, _NESTED_CODE_BYTES, _OFFSET_BYTES)


def is_four_bit(lora: Lora | None) -> bool:
    """Return True if the job stores its frozen linear weights in 4 bits."""
    return lora is not None and lora.quantization in ("nf4", "nf4-double")


def quantization(lora: Lora | None) -> str | None:
    """Return how the job stores its frozen linear weights; None: not quantized."""
    return None if lora is None or lora.quantization == "none" else lora.quantization
