"""Sparse tensors (COO) on a GPU: indices and values are tensors like others, and their number may depend on values.

torch's fake tensors have none of the elements that an operation's result would have. Those of a result are at most as
many as its arguments have together.
"""

from __future__ import annotations

from typing import Any

import torch

from ..memory.tracker import parts_of

_AS_MANY = frozenset(
    ("_coalesce", "sparse_mask", "clone", "_to_copy", "t", "transpose", "mul", "div", "neg", "pow", "sqrt", "abs",
     "add", "sub", "_sparse_softmax", "_sparse_softmax_backward_data", "_sparse_log_softmax",
     "_sparse_log_softmax_backward_data")
)  # fmt: skip
_REPEATS = frozenset(("add", "sub", "clone", "t", "transpose"))
"""Operators whose results may have several elements at one place."""
DECIDED_BY_VALUES = {torch.ops.aten._coalesce.default, torch.ops.aten._to_sparse.default}
_EMPTY = frozenset(("zeros_like", "empty_like", "_sparse_coo_tensor_with_dims_and_tensors"))


def is_sparse(tensor: Any) -> bool:
    """Return True for a tensor that has no memory of its own."""
    return isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided


def sparse_like(shape: Any, indices: Any, values: Any, *, is_coalesced: bool) -> Any:
    """Return a sparse tensor of fake indices and values."""
    dense = values.dim() - 1
    with indices.fake_mode:
        return torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default(
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
    if parts_of(result)[1].shape[0]:
        return None
    name = func._schema.name.partition("::")[2]
    values = [parts_of(each)[1] for each in args if is_sparse(each)]
    if name == "_to_sparse":
        count, dense = args[0].numel(), ()
    elif name in _AS_MANY and values:
        count, dense = sum(each.shape[0] for each in values), tuple(values[0].shape[1:])
    elif name == "_embedding_bag_backward":  # a row for each index; a weight of each makes no more
        count, dense = args[1].shape[0], tuple(args[0].shape[1:])
    elif func._schema.is_mutable or name in _EMPTY:
        return None
    else:
        raise NotImplementedError(f"vramtop cannot rehearse {name} of sparse tensors yet")
    indices = empty((result.dim() - len(dense), count), torch.int64)
    return sparse_like(result.shape, indices, empty((count, *dense), result.dtype), is_coalesced=name not in _REPEATS)
