"""Replacements for code of transformers that reads values, which fake tensors do not have."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ..replaced import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def no_padding_mask() -> Iterator[None]:
    """Make transformers take a batch for one without padding, so that it builds no mask."""
    try:
        from transformers import masking_utils
    except ImportError:  # before 4.53
        yield
        return
    changes = {
        "is_tracing": lambda *_: False,
        "find_packed_sequence_indices": lambda *_: None,
        "fast_all": lambda *_: True,  # for models that make their masks themselves
    }
    with _replaced_in(masking_utils, changes):
        yield


@contextlib.contextmanager
def grouped_matrix_products() -> Iterator[None]:
    """Multiply all experts at once: by torch's operation in bf16 only, as it takes no fake tensors of other dtypes."""
    try:
        from transformers.integrations import moe
    except ImportError:  # before 5
        yield
        return
    with _replaced_in(moe, {"_can_use_grouped_mm": lambda _input, weight, _offs: weight.dtype == torch.bfloat16}):
        yield


@contextlib.contextmanager
def no_truncated_normal() -> Iterator[None]:
    """Skip truncated normal initialisation (vision models, ModernBERT), which redraws values until they lie inside."""
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


def _replaced_in(module: Any, changes: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """Replace those functions of a module that this version of it has."""
    return replaced(*((module, name, value) for name, value in changes.items() if hasattr(module, name)))
