"""Sparse tensors (COO) on a GPU: indices and values are tensors like others, and their number may depend on values.

torch's fake tensors have none of the elements that an operation's result would have. Those of a result are at most as
many as its arguments have together.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ..memory.tracker import parts_of

_ATEN = torch.ops.aten
_AS_MANY = frozenset(
    ("_coalesce", "clone", "_to_copy", "t", "transpose", "mul", "div", "neg", "pow", "sqrt", "abs", "add", "sub",
     "_sparse_softmax", "_sparse_softmax_backward_data", "_sparse_log_softmax", "_sparse_log_softmax_backward_data")
)  # fmt: skip
_REPEATS = frozenset(("add", "sub", "clone", "t", "transpose"))
"""Operators whose results may have several elements at one place."""
_EMPTY = frozenset(("zeros_like", "empty_like", "_sparse_coo_tensor_with_dims_and_tensors"))


def is_sparse(tensor: Any) -> bool:
    """Return True for a tensor that has no memory of its own."""
    return isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided


def is_decided_by_values(func: Any, args: Any) -> bool:
    """Return True for an operation whose result has as many elements as values say."""
    return func is _ATEN._coalesce.default or (_name(func) == "_to_sparse" and not is_sparse(args[0]))


def sparse_like(shape: Any, indices: Any, values: Any, *, is_coalesced: bool) -> Any:
    """Return a sparse tensor of fake indices and values."""
    dense = values.dim() - 1
    with values.fake_mode:
        return _ATEN._sparse_coo_tensor_with_dims_and_tensors.default(
            len(shape) - dense, dense, tuple(shape), indices, values,
            dtype=values.dtype, layout=torch.sparse_coo, device=torch.device("cpu"), is_coalesced=is_coalesced,
        )  # fmt: skip


def with_elements(func: Any, args: Any, result: Any, empty: Any) -> Any:
    """Return an operation's sparse result with as many elements as it has at most; None: it is right as it is.

    Args:
        func: the operation.
        args: its arguments.
        result: of it, without elements.
        empty: makes a fake tensor of a shape and dtype.
    """
    _, stored = parts_of(result)
    if stored.numel():
        return None
    name = _name(func)
    values = [parts_of(each)[-1] for each in args if is_sparse(each)]
    dense = tuple((values[0] if values else stored).shape[1:])
    if name == "_to_sparse":
        most = result.numel() // math.prod(dense)
        count = min(most, values[0].shape[0]) if values else most
    elif name in _AS_MANY and values:
        count = sum(each.shape[0] for each in values)
    elif name == "_embedding_bag_backward":  # a row for each index; a weight of each makes no more
        count, dense = args[1].shape[0], tuple(args[0].shape[1:])
    elif func._schema.is_mutable or name in _EMPTY:
        return None
    else:
        raise NotImplementedError(f"vramtop cannot rehearse {name} of sparse tensors yet")
    indices = empty((result.dim() - len(dense), count), torch.int64)
    return sparse_like(result.shape, indices, empty((count, *dense), result.dtype), is_coalesced=name not in _REPEATS)


def masked(tensor: Any, mask: Any) -> Any:
    """Return the elements of a tensor that a mask has."""
    indices, values = parts_of(mask)
    kept = torch.empty(values.shape, dtype=tensor.dtype, device=tensor.device)
    return sparse_like(tensor.shape, indices.clone(), kept, is_coalesced=True)


def _name(func: Any) -> str:
    return str(func._schema.name.partition("::")[2])
