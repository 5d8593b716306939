"""Bytes of a weight as bitsandbytes stores it: packed values, and the constants that scale them back.

Source: bitsandbytes 0.50, ``functional.quantize_4bit`` and ``nn.Int8Params``; every tensor takes whole blocks of
torch's allocator.
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
BYTES_PER_ELEMENT = {
    "nf4": 0.5 + 4 / _BLOCK_ELEMENTS,
    "nf4-double": 0.5 + 1 / _BLOCK_ELEMENTS + 4 / (_BLOCK_ELEMENTS * _NESTED_BLOCK_CONSTANTS),
    "int8": 1.0,  # one 4-byte constant per row besides: negligible beside the row
}
"""Average over a large weight, by the job file's ``lora.quantization``."""


def quantized_bytes(shape: tuple[int, ...], kind: str, *, transposed: bool = False) -> int:
    """Return the GPU bytes of one linear layer's weight, its constants included.

    Args:
        shape: (out, in), or that of a stack of such weights.
        kind: as in a job file: ``nf4``, ``nf4-double`` or ``int8``.
        transposed: the shape is (in, out).
    """
    block = _ALLOCATION_BYTES
    return sum(-(-size // block) * block for size in tensor_bytes(shape, kind, transposed=transposed))


def tensor_bytes(shape: tuple[int, ...], kind: str, *, transposed: bool = False) -> tuple[int, ...]:
    """Return the bytes of each tensor that stores the layer's weight, the packed values first."""
    elements = prod(shape)
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
