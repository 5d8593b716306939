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
    changes = {
        "is_tracing": lambda *_: False,
        "find_packed_sequence_indices": lambda *_: None,
        "fast_all": lambda *_: True,  # of a mask that some models make themselves
    }
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
def no_initial_values() -> Iterator[None]:
    """Truncated normal values, of vision models and ModernBERT, are drawn until they lie inside: by their values."""
    try:
        from transformers import initialization

        functions = initialization.TORCH_INIT_FUNCTIONS
    except (ImportError, AttributeError):  # before 5, where torch's own is called
        functions = vars(torch.nn.init)
    original = functions["trunc_normal_"]
    functions["trunc_normal_"] = lambda tensor, *_, **__: tensor
    try:
        yield
    finally:
        functions["trunc_normal_"] = original


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
