"""Sparse tensors on a GPU: indices and values are tensors like others, and their number may depend on values.

torch's fake tensors have none of the elements that an operation's result would have. Those of a result are at most as
many as its arguments have together. Compressed are matrices whose rows (CSR, BSR) or columns (CSC, BSC) say where
their elements begin.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

from ..memory.tracker import parts_of

_ATEN = torch.ops.aten
_AS_MANY = frozenset(
    ("_coalesce", "sparse_mask", "clone", "_to_copy", "t", "transpose", "mul", "div", "neg", "pow", "sqrt", "abs",
     "add", "sub", "_sparse_softmax", "_sparse_softmax_backward_data", "_sparse_log_softmax",
     "_sparse_log_softmax_backward_data", "sparse_sampled_addmm")
)  # fmt: skip
_REPEATS = frozenset(("add", "sub", "clone", "t", "transpose"))
"""Operators whose results may have several elements at one place."""
_MADE_SPARSE = frozenset(("_to_sparse", "_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc"))
_EMPTY = frozenset(("zeros_like", "empty_like", "_sparse_coo_tensor_with_dims_and_tensors"))
_BY_ROWS = {_ATEN._to_sparse_csr.default: torch.sparse_csc, _ATEN._to_sparse_csc.default: torch.sparse_csr}
"""Operators that sort a compressed matrix the other way, and what it is before."""
_PRODUCTS = {_ATEN.mm.default: 0, _ATEN._sparse_mm.default: 0, _ATEN.addmm.default: 1, _ATEN._sparse_addmm.default: 1}
"""Operators that multiply matrices, and the place of the first one."""
_MAKES = {_ATEN.sparse_compressed_tensor.comp_plain_value_size, _ATEN._sparse_compressed_tensor_unsafe.default}
COMPRESSED = {*_BY_ROWS, *_PRODUCTS, *_MAKES, _ATEN.sparse_mask.default}
"""Operators whose compressed matrices fake tensors do not know, or which they would run for real."""


def is_sparse(tensor: Any) -> bool:
    """Return True for a tensor that has no memory of its own."""
    return isinstance(tensor, torch.Tensor) and tensor.layout is not torch.strided


def is_decided_by_values(func: Any, args: Any) -> bool:
    """Return True for an operation whose result has as many elements as values say."""
    return func is _ATEN._coalesce.default or (_name(func) in _MADE_SPARSE and not is_sparse(args[0]))


def sparse_like(shape: Any, parts: Any, layout: Any = torch.sparse_coo, *, is_coalesced: bool = False) -> Any:
    """Return a sparse tensor of fake indices and, the last of its parts, values."""
    values, cpu = parts[-1], torch.device("cpu")
    if layout is torch.sparse_coo:
        dense = values.dim() - 1
        with values.fake_mode:
            return _ATEN._sparse_coo_tensor_with_dims_and_tensors.default(
                len(shape) - dense, dense, tuple(shape), *parts,
                dtype=values.dtype, layout=layout, device=cpu, is_coalesced=is_coalesced,
            )  # fmt: skip
    with in_kernel_invocation_manager(values.fake_mode), torch._C._DisableTorchDispatch():
        made = _ATEN._sparse_compressed_tensor_unsafe.default(
            *parts, tuple(shape), dtype=values.dtype, layout=layout, device=torch.device("meta")
        )
    return FakeTensor(values.fake_mode, made, cpu)


def with_elements(func: Any, args: Any, result: Any, empty: Any) -> Any:
    """Return an operation's sparse result with as many elements as it has at most; None: it is right as it is.

    Args:
        func: the operation.
        args: its arguments.
        result: of it, without elements.
        empty: makes a fake tensor of a shape and dtype.
    """
    *indices, stored = parts_of(result)
    if stored.numel():
        return None
    name = _name(func)
    values = [parts_of(each)[-1] for each in args if is_sparse(each)]
    is_compressed = result.layout is not torch.sparse_coo
    if is_compressed and indices[0].dim() > 1:
        raise NotImplementedError("vramtop cannot rehearse batches of compressed sparse matrices yet")
    dense = tuple(stored.shape[1:] if is_compressed or not values else values[0].shape[1:])
    if name in _MADE_SPARSE:
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
    if is_compressed:
        made = [empty(indices[0].shape, indices[0].dtype), empty((count,), indices[1].dtype)]
    else:
        made = [empty((result.dim() - len(dense), count), torch.int64)]
    parts = (*made, empty((count, *dense), result.dtype))
    return sparse_like(result.shape, parts, result.layout, is_coalesced=name not in _REPEATS)


def kernel_of_compressed(func: Any, args: Any) -> Callable[..., Any] | None:
    """Return a function that allocates what CUDA does for compressed matrices; None: fake tensors show it."""
    if func in _MAKES:
        return _made
    if func in _BY_ROWS and args[0].layout is _BY_ROWS[func]:
        return _flipped
    if func is _ATEN.sparse_mask.default and args[1].layout is torch.sparse_coo and not is_sparse(args[0]):
        return _masked
    at = _PRODUCTS.get(func)
    if at is None or args[at].layout is args[at + 1].layout is torch.strided:
        return None
    return functools.partial(_product, at) if torch.sparse_coo not in (args[at].layout, args[at + 1].layout) else None


def _made(*parts_and_shape: Any, layout: Any, dtype: Any = None, **_: Any) -> Any:
    *indices, values, shape = parts_and_shape
    return sparse_like(shape, (*indices, values if dtype is None else values.to(dtype)), layout)


def _masked(dense: Any, mask: Any) -> Any:
    """Take the elements of a dense tensor that a mask has."""
    indices, values = parts_of(mask)
    return sparse_like(dense.shape, (indices.clone(), dense.new_empty(values.shape)), is_coalesced=True)


def _flipped(matrix: Any, *_: Any, **__: Any) -> Any:
    """Sort a matrix the other way.

    Source: torch 2.13, ``ATen/native/TensorConversions.cpp`` (``sparse_compressed_to_flipped``).
    """
    layout = torch.sparse_csr if matrix.layout is torch.sparse_csc else torch.sparse_csc
    values, index_dtype = matrix.values(), parts_of(matrix)[0].dtype
    places = values.new_empty((2, values.shape[0]), dtype=index_dtype)
    order = values.new_empty(values.shape[:1], dtype=torch.int64).sort()[1]
    begins = values.new_empty((matrix.shape[layout is torch.sparse_csc] + 1,), dtype=index_dtype)
    return sparse_like(matrix.shape, (begins, places.index_select(1, order)[1], values.index_select(0, order)), layout)


def _product(at: int, *args: Any, **_: Any) -> Any:
    """Multiply a compressed matrix by a dense one, by its rows.

    Source: torch 2.13, ``ATen/native/sparse/cuda/SparseBlasImpl.cpp`` (``addmm_out_sparse_csr``).
    """
    first, second = args[at : at + 2]
    if is_sparse(first) and is_sparse(second):
        raise NotImplementedError("vramtop cannot rehearse products of two compressed sparse matrices yet")
    by_columns = (first, torch.sparse_csc) if is_sparse(first) else (second, torch.sparse_csr)
    sorted_by_rows = _flipped(by_columns[0]) if by_columns[0].layout is by_columns[1] else None
    made = (second if is_sparse(first) else first).new_empty((first.shape[0], second.shape[1]))
    del sorted_by_rows
    return made


def _name(func: Any) -> str:
    return str(func._schema.name.partition("::")[2])
