"""Where transformers looks at values, which fake tensors do not have, it is told what real ones would say."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def no_padding_mask() -> Iterator[None]:
    """As on real tensors without padding: transformers sees that no mask is needed, which fake ones cannot say."""
    try:
        from transformers import masking_utils
    except ImportError:  # before 4.53
        yield
        return
    changes = {"is_tracing": lambda *_: False, "find_packed_sequence_indices": lambda *_: None}
    with _replaced(masking_utils, changes):
        yield


@contextlib.contextmanager
def grouped_products() -> Iterator[None]:
    """The product of all experts in one, by transformers' own operation where torch's takes no fake tensors."""
    try:
        from transformers.integrations import moe
    except ImportError:  # before 5
        yield
        return
    with _replaced(moe, {"_can_use_grouped_mm": lambda _input, weight, _offs: weight.dtype == torch.bfloat16}):
        yield


@contextlib.contextmanager
def _replaced(module: Any, changes: dict[str, Any]) -> Iterator[None]:
    before = {name: getattr(module, name) for name in changes if hasattr(module, name)}
    for name in before:
        setattr(module, name, changes[name])
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(module, name, original)
