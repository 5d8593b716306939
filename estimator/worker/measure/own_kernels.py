"""Libraries whose own kernels real steps run, where a trace has stand-ins: Liger-Kernel, bitsandbytes' optimizers."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from ..request.errors import RefusedError

if TYPE_CHECKING:
    from ..request.request import Request

_LIGER_LOSSES = {"fused-linear": "fused_linear_cross_entropy"}
_LIGER_PARTS = {
    "norm": ("rms_norm", "layer_norm"),
    "mlp": ("swiglu", "geglu"),
    "rope": ("rope",),
    "cross-entropy": ("cross_entropy",),
}
"""Options of Liger-Kernel's functions by the job's names (``transformers/monkey_patch.py``, 0.8)."""


def uses_liger(request: Request) -> bool:
    """Return True if the job has Liger-Kernel's kernels, which run on a GPU only."""
    return bool(request.loop.fused) or request.training.loss in _LIGER_LOSSES


def without_stand_ins(request: Request) -> Request:
    """Return the job as a model runs it that Liger-Kernel has patched: it takes its loss itself."""
    if not uses_liger(request):
        return request
    training = replace(request.training, loss="full")
    return replace(request, training=training, loop=replace(request.loop, fused=()))


def with_own_kernels(request: Request, model: Any) -> Request:
    """Return the job whose loss is the patched model's and whose optimizer is the library's, not their stand-ins.

    Raises:
        RefusedError: bitsandbytes is not installed, or does not work here.
    """
    request, optimizer = without_stand_ins(request), request.optimizer
    if optimizer is None or optimizer.library is None or request.device != "cuda":
        return request
    if optimizer.options["whole_embeddings"] and optimizer.options["bits"] == 8:
        _keep_embeddings_whole(model)
    return replace(request, optimizer=replace(optimizer, path=optimizer.library, options={}))


def apply_liger(model: Any, request: Request) -> None:
    """Put Liger-Kernel's own kernels into a model of transformers, as ``use_liger_kernel`` of the Trainer does.

    Raises:
        RefusedError: Liger-Kernel is not installed, or does not work here.
    """
    patch = _imported("liger_kernel.transformers", "fused kernels need liger-kernel")._apply_liger_kernel_to_instance
    wanted = {name for part in request.loop.fused for name in _LIGER_PARTS[part]}
    wanted.add(_LIGER_LOSSES.get(request.training.loss, ""))
    options = [name for names in _LIGER_PARTS.values() for name in names] + list(_LIGER_LOSSES.values())
    patch(model=model, **{name: name in wanted for name in options})


def _keep_embeddings_whole(model: Any) -> None:
    """Let bitsandbytes' 8-bit optimizers have fp32 states for embeddings, as the Trainer does."""
    library = _imported("bitsandbytes", "this optimizer needs bitsandbytes")
    manager = library.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


def _imported(name: str, need: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:  # noqa: BLE001 - native libraries fail in many ways
        text = " ".join(str(error).split())[:200]
        raise RefusedError(f"{need}, which cannot be imported here: {text}") from None
