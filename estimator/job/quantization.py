"""Bytes of a weight as bitsandbytes stores it: packed values, and the constants that scale them back.

Source: bitsandbytes 0.50, ``functional.quantize_4bit`` and ``nn.Int8Params``; every tensor takes whole blocks of
torch's allocator.
"""

from math import prod

from .job import Lora

_BLOCK = 64
"""Elements per 4-bit block, each with a constant in fp32."""
_NESTED_BLOCK = 256
"""Constants per block of double quantization, each with a constant in fp32."""
_CODE = 16 * 4
"""The values that 4 bits stand for."""
_NESTED_CODE = 256 * 4
_OFFSET = 4
_ALLOCATION = 512
"""The allocator hands out whole blocks of so many bytes."""


def quantized_bytes(shape: tuple[int, ...], kind: str, *, transposed: bool = False) -> int:
    """Bytes on the card of one linear layer's weight, its constants included.

    Args:
        shape: (out, in).
        kind: as in a job file: ``nf4``, ``nf4-double`` or ``int8``.
        transposed: the shape is (in, out).
    """
    return sum(-(-size // _ALLOCATION) * _ALLOCATION for size in tensor_bytes(shape, kind, transposed=transposed))


def tensor_bytes(shape: tuple[int, ...], kind: str, *, transposed: bool = False) -> tuple[int, ...]:
    """Bytes of each tensor that the layer's weight becomes: the packed values first."""
    elements = prod(shape)
    if kind == "int8":
        rows = shape[-1] if transposed else shape[0]
        return (elements, 4 * rows)
    blocks = -(-elements // _BLOCK)
    packed = -(-elements // 2)
    if kind == "nf4":
        return (packed, 4 * blocks, _CODE)
    return (packed, blocks, _CODE, 4 * -(-blocks // _NESTED_BLOCK), _NESTED_CODE, _OFFSET)


def quantization(lora: Lora | None) -> str | None:
    """How the job stores its frozen linear weights; None: as they are."""
    return None if lora is None or lora.quantization == "none" else lora.quantization
