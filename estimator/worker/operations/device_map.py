"""Places the modules of a model that is built without weights, as accelerate does.

    {"rule": "auto", "limits": {"0": bytes, "cpu": bytes}, "dtype": "bf16", "quantization": "nf4" or null}
        -> {module: GPU number, "cpu" or "disk"}

It is ``get_balanced_memory`` and ``infer_auto_device_map``, with the limits of ``from_pretrained``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..request.protocol import UnsupportedError

if TYPE_CHECKING:
    from ..request.request import Request

_QUANTIZED_SHARE = 0.9
"""bitsandbytes' quantizers leave a tenth of every device free (``adjust_max_memory``)."""


def with_placement(request: Request, placing: dict[str, Any] | None) -> Request:
    """Return a request whose device map names the device of each module, not a rule.

    Raises:
        UnsupportedError: accelerate, whose rules they are, is not installed.
    """
    rule = request.parallel.device_map
    if not isinstance(rule, str):
        return request
    from ..model.build import build_model

    with empty_weights():
        model = build_model(request.config, request.task, code=request.code)
        found = inferred_device_map(model, placing) if placing else None
    if found is None:
        raise UnsupportedError("this interpreter lacks accelerate, whose rules place modules on GPUs")
    return replace(request, parallel=replace(request.parallel, device_map=found))


def empty_weights() -> Any:
    """Return accelerate's context in which models have no weights; torch's meta device where it is not installed."""
    import torch

    try:
        from accelerate import init_empty_weights
    except ImportError:
        return torch.device("meta")
    return init_empty_weights(include_buffers=True)


def inferred_device_map(model: Any, request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the device of each module by accelerate; None: it is not installed."""
    import torch

    try:
        from accelerate.utils import CustomDtype, get_balanced_memory, infer_auto_device_map
    except ImportError:
        return None
    dtype = {"fp32": torch.float32, "fp16": torch.float16}.get(request["dtype"], torch.bfloat16)
    kind = request.get("quantization")
    special = {}
    if kind is not None:
        stored = torch.int8 if kind == "int8" else CustomDtype.INT4
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        linear = (name for name, module in model.named_modules() if _is_linear(module) and module is not head)
        special = {f"{name}.weight": stored for name in linear}
    whole = list(getattr(model, "_no_split_modules", None) or ())
    options = {"no_split_module_classes": whole, "dtype": dtype, "special_dtypes": special}
    limits = {int(name) if name.isdigit() else name: size for name, size in request["limits"].items()}
    if request["rule"] != "sequential":
        limits = get_balanced_memory(model, limits, low_zero=request["rule"] == "balanced_low_0", **options)
    if kind is not None:
        limits = {name: int(_QUANTIZED_SHARE * size) for name, size in limits.items()}
    if hasattr(model, "tie_weights"):
        model.tie_weights()
    return dict(infer_auto_device_map(model, limits, **options))


def _is_linear(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.Linear)
