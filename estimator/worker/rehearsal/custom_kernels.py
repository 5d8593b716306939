"""Kernels of other libraries: Triton's do nothing, as their callers make the tensors that they write into.

Operators that a library defines in Python (``torch.library.custom_op``, ``register_kernel``) run their own code for
CUDA, which allocates what it allocates on a GPU.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from .imports import after_import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from .fake_gpu import FakeGpus
    from .stand_ins import Card

_FLUSHED_BYTES = 256 << 20
"""What Triton's autotuner allocates while it measures a kernel, to empty the L2 cache.

Source: triton 3.9, ``backends/nvidia/driver.py`` (``get_empty_cache_for_benchmark``)."""


class NoLibrary:
    """A compiled library whose functions do nothing."""

    compiled_with_cuda = True  # for bitsandbytes

    def __getattr__(self, name: str) -> Any:
        def nothing(*_: Any, **__: Any) -> int:
            return 0

        nothing.restype = None  # type: ignore[attr-defined] # by which unsloth knows functions of ctypes
        return nothing

    __getitem__ = __getattr__


def change_triton(gpus: FakeGpus, card: Card) -> None:
    """Let Triton find a GPU on which its kernels do nothing, once the program imports it."""

    def launch(_kernel: Any, *args: Any, **kwargs: Any) -> None:
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, FakeTensor):
                gpus.forget_values(each)

    def tune(kernel: Any, *args: Any, **kwargs: Any) -> None:
        if len(getattr(kernel, "configs", ())) > 1 and not hasattr(kernel, "_vramtop_tuned"):
            kernel._vramtop_tuned = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
            kernel._vramtop_tuned = None
            kernel.best_config = kernel.configs[0]
        launch(kernel, *args, **kwargs)

    def change_kernels(module: ModuleType) -> None:
        module.JITFunction.run = launch

    def change_tuners(module: ModuleType) -> None:
        module.Autotuner.run = tune

    def change_driver(module: ModuleType) -> None:
        module.driver.set_active(_driver(card))

    class Kernel:
        def __getitem__(self, grid: Any) -> Callable[..., None]:
            return functools.partial(launch, self)

    def change_trl(module: ModuleType) -> None:
        """Let TRL launch its kernels, as torch for CUDA comes with Triton; without it, TRL computes with torch."""
        names = [name for name in vars(module) if name.endswith("_kernel")]
        if not hasattr(module, "triton"):
            vars(module).update(dict.fromkeys(names, Kernel()), triton=SimpleNamespace(cdiv=lambda a, b: -(-a // b)))
            module._TRITON_AVAILABLE = True  # type: ignore[attr-defined]

    for name in ("chunked_logprob", "chunked_divergence"):
        after_import(f"trl.kernels.{name}", change_trl)
    after_import("triton.runtime.jit", change_kernels)
    after_import("triton.runtime.autotuner", change_tuners)
    after_import("triton.runtime.driver", change_driver)


def _driver(card: Card) -> Any:
    """Return what Triton asks about the GPU (``triton/backends/driver.py``)."""
    major, minor = card.capability
    target = SimpleNamespace(backend="cuda", arch=10 * major + minor, warp_size=32)
    properties = torch.cuda.get_device_properties()
    utils = SimpleNamespace(
        get_device_properties=lambda _device: {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "max_num_regs": properties.regs_per_multiprocessor,
            "multiprocessor_count": properties.multi_processor_count,
            "warpSize": properties.warp_size,
        }
    )
    return SimpleNamespace(
        utils=utils,
        get_current_target=lambda: target,
        get_current_device=torch.cuda.current_device,
        set_current_device=torch.cuda.set_device,
        get_current_stream=lambda _device=None: 0,
        get_device_capability=lambda _device=None: (major, minor),
        get_active_torch_device=lambda: torch.device("cuda", torch.cuda.current_device()),
        get_device_interface=lambda: torch.cuda,
    )


def _suppressed(boxes: Any, scores: Any, _most_overlap: float) -> Any:
    """Return the boxes that remain, with the overlaps of all in bits.

    Source: torchvision 0.28, ``csrc/ops/cuda/nms_kernel.cu``.
    """
    order = scores.sort(descending=True)[1]
    count = boxes.shape[0]
    made = boxes.index_select(0, order), boxes.new_empty((count * -(-count // 64),), dtype=torch.int64)
    kept = order.masked_select(torch.empty_like(order, dtype=torch.bool))
    del made
    return kept


_KERNELS: dict[str, Callable[..., Any]] = {"torchvision::nms": _suppressed}
"""Functions that are registered as kernels for CUDA, or for all devices without their own, by the operator's name."""


def registered_kernels() -> Iterator[tuple[Any, str, Any]]:
    """Yield stand-ins that record the kernels that libraries register with torch."""
    register = torch.library.register_kernel

    def register_kernel(op: Any, device_types: Any, func: Any = None, **kwargs: Any) -> Any:
        if func is None:
            return functools.partial(register_kernel, op, device_types, **kwargs)
        if isinstance(op, str) and device_types == "cuda":
            _KERNELS[op] = func
        elif isinstance(op, str) and device_types in (None, "default"):
            _KERNELS.setdefault(op, func)
        register(op, device_types, func, **kwargs)
        return func

    yield torch.library, "register_kernel", register_kernel


def python_of(func: Any) -> Callable[..., Any] | None:
    """Return what an operator that a library defines in Python runs on CUDA; None: it is another's.

    Where that needs a GPU, because it calls a kernel in C++, the library's own rule for fake tensors runs.
    """
    overload = "" if func._overloadname == "default" else f".{func._overloadname}"
    registered = _KERNELS.get(f"{func._schema.name}{overload}")
    if registered is not None:
        return registered
    defined = OPDEFS.get(func._schema.name)
    if defined is None:
        return None
    functions = defined._backend_fns

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return functions.get("cuda", functions.get(None, defined._init_fn))(*args, **kwargs)
        except (RuntimeError, TypeError):
            if defined._abstract_fn is None:
                raise
            return defined._abstract_fn(*args, **kwargs)

    return run
