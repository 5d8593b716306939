"""Quantized weights as their libraries make them: the libraries' Python runs as it is, their native calls do nothing.

Their kernels for CUDA are Python functions (``python_operators``) that allocate results and temporaries and then call
native code. Parameters of a library's own class (``Params4bit``) are fake tensors too (``library_classes``).
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from .imports import NoLibrary, after_import

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from .fake_gpu import FakeGpus


def elements(parameter: Any) -> int:
    """Return the elements of the weight that a parameter stores, packed or not, or of which it holds a shard."""
    if hasattr(parameter, "ds_numel"):  # DeepSpeed's ZeRO 3
        return int(parameter.ds_numel)
    if hasattr(parameter, "_unpadded_unsharded_size"):  # FSDP1
        return int(parameter._unpadded_unsharded_size.numel())
    shape = getattr(getattr(parameter, "quant_state", None), "shape", None)
    return math.prod(shape) if shape is not None else int(parameter.numel())


def buffers_of(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and tensors of a module's buffers, and of scales and zero points, which HQQ keeps in a dict."""
    yield from module.named_buffers()
    for name, each in module.named_modules():
        for leaf in tree_leaves(getattr(each, "meta", None)):
            if isinstance(leaf, FakeTensor):
                yield name, leaf


def packed_sizes(module: Any) -> Iterator[tuple[Any, int]]:
    """Yield the weights that HQQ has packed, with the elements of each before that (``HQQLinear.meta``)."""
    for each in module.modules():
        if hasattr(each, "W_q"):
            yield each.W_q, math.prod(each.meta["shape"])


def keep_libraries_python(gpus: FakeGpus) -> None:
    """Let libraries that quantize run without their native code, once they are imported."""

    def managed_memory(module: ModuleType) -> None:
        pages = 0

        def get_paged(*shape: int, dtype: Any = torch.float32, **_: Any) -> Any:
            """Return memory that CUDA moves to the GPU and back as it likes, which torch does not allocate."""
            nonlocal pages
            made = gpus.on_host(torch.empty(shape, dtype=dtype, device="meta"))
            made.is_paged, made.page_deviceid = True, 0
            pages += made.nbytes
            gpus.doubts.sentences.pop(said[-1], None)
            said.append(
                f"paged optimizer states of {pages / 2**30:.2f} GiB are not in this figure: CUDA moves them to the "
                "GPU while they are used, and away where there is no room"
            )
            gpus.doubts.add(said[-1])
            return made

        said = [""]
        module.get_paged = get_paged  # type: ignore[attr-defined]

    def multiply_integers(mode: FakeGpus, _product: Any, _dtype: Any, *args: Any) -> Any:
        """Multiply 8-bit integers as torchao does on CUDA; of fake tensors it takes what it takes while compiling."""
        with mode:
            return torch._int_mm(*args)

    logging.getLogger("bitsandbytes.cextension").disabled = True  # its library needs CUDA's
    after_import("bitsandbytes.cextension", lambda module: setattr(module, "lib", NoLibrary()))
    after_import("bitsandbytes.functional", managed_memory)
    after_import("torchao.kernel.intmm", lambda module: module.out_dtype.py_impl(type(gpus))(multiply_integers))
