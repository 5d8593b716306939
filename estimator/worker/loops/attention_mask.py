"""sdpa's mask of all pairs of positions, which transformers makes while torch.compile traces a model.

Source: transformers 5.23 ``masking_utils.py`` (``_ignore_causal_mask_sdpa``): whether a batch has padding cannot be
read then. A mask keeps sdpa from flash attention, and from sharing keys among query heads. The partitioner keeps one
mask in the compute type for all blocks. FSDP's hooks, which are not compiled, end a graph before each block (torch 2.13
``_dynamo/config.py``, ``skip_fsdp_hooks``; FSDP1's are skipped): each block reads the mask of bools that the model
made, and keeps one in the compute type of its own.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def masks_made(*, per_block: bool) -> Iterator[None]:
    """Give sdpa a mask of all pairs of positions.

    Args:
        per_block: it is of bools, of which each block makes its own; otherwise blocks share one in the compute type.
    """
    from transformers import masking_utils

    registry = masking_utils.AttentionMaskInterface._global_mapping
    before = registry["sdpa"]
    registry["sdpa"] = _bools if per_block else _mask
    try:
        yield
    finally:
        registry["sdpa"] = before


def _mask(batch_size: int, q_length: int, kv_length: int, *_: Any, dtype: Any = None, **__: Any) -> Any:
    low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else dtype or torch.get_default_dtype()
    return torch.empty((batch_size, 1, q_length, kv_length), dtype=low)


def _bools(batch_size: int, q_length: int, kv_length: int, *_: Any, **__: Any) -> Any:
    return torch.empty((batch_size, 1, q_length, kv_length), dtype=torch.bool)
