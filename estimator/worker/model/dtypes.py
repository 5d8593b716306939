"""Dtypes of torch by the words of job files, and the dtype in which modules are created."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..request.request import Training

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""By the job file's words."""


def compute_dtype(training: Training) -> torch.dtype:
    """Return the dtype of matrix products, which the first word of the precision names: bf16 of ``bf16-mixed``."""
    return DTYPES[training.precision.partition("-")[0]]


@contextlib.contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    """Create floating-point tensors in this dtype where none is stated."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
