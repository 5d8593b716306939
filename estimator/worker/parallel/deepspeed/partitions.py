"""Parts that all stages share: parameter groups, flat tensors, the fp32 partition's optimizer, norms of gradients."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Named = tuple[str, Any]


def parameter_groups(trained: Iterable[Named]) -> list[list[Named]]:
    """Return matrices and vectors apart: the Trainer decays no norm and no bias, which makes a second group."""
    trained = list(trained)
    groups = [[each for each in trained if each[1].dim() > 1], [each for each in trained if each[1].dim() < 2]]
    return [group for group in groups if group]


def cast_in_place(model: Any, dtype: Any) -> None:
    """Give parameters of another dtype this one, adapters included, as the engine does (``module.bfloat16()``)."""
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype and parameter.dtype.itemsize > 1:
            parameter.data = parameter.data.to(dtype)


def flatten(tensors: list[Any]) -> Any:
    """Return the tensors one after another: a copy, except of a single one (``_flatten_dense_tensors``)."""
    views = [tensor.reshape(-1) for tensor in tensors]
    return views[0] if len(views) == 1 else torch.cat(views)


def norm_of(gradients: Iterable[Any], *, chunk: int | None = None) -> None:
    """Take the norms of gradients one by one, in fp64 (``get_grad_norm_direct``)."""
    for gradient in gradients:
        parts = gradient.view(-1).split(chunk) if chunk else (gradient,)
        for part in parts:
            torch.linalg.vector_norm(part.double())


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """Allocate on a stream; None: on the current one."""
    with contextlib.nullcontext() if stream is None else torch.cpu.stream(stream):
        yield
