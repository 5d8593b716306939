"""Kernels of Triton, which do nothing: their callers make the tensors that they write into."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from .imports import after_import

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from .fake_gpu import FakeGpus

_FLUSHED_BYTES = 256 << 20
"""What Triton's autotuner allocates while it measures a kernel, to empty the L2 cache.

Source: triton 3.9, ``backends/nvidia/driver.py`` (``get_empty_cache_for_benchmark``)."""


def change_triton(gpus: FakeGpus) -> None:
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
    after_import("triton.runtime.jit", lambda module: setattr(module.JITFunction, "run", launch))
    after_import("triton.runtime.autotuner", lambda module: setattr(module.Autotuner, "run", tune))
    after_import("triton.runtime.driver", lambda module: module.driver.set_active(_driver()))


def _driver() -> Any:
    """Return what Triton asks about the GPU (``triton/backends/driver.py``)."""
    major, minor = torch.cuda.get_device_capability()
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
