"""The environment variables that configure torch's caching allocator."""

from collections.abc import Mapping

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""In the order in which torch reads them (c10/cuda/CUDAAllocatorConfig.h, 2.13); the first one that is set counts."""


def allocator_settings(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the variable that configures the allocator, and its text; None if none is set."""
    return next(((name, environ[name]) for name in VARIABLES if name in environ), None)
