"""Libraries that read weights: models are built from their configs, with weights that have shapes only."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_HUB = ("revision", "token", "cache_dir", "trust_remote_code", "subfolder", "local_files_only", "proxies")
_FLASH = ("flash_attention_2", "flash_attention_3")


class _After(importlib.abc.MetaPathFinder):
    """Changes modules once they have been imported."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self.changes = changes

    def find_spec(self, name: str, *_: Any) -> Any:
        change = self.changes.pop(name, None)
        spec = importlib.util.find_spec(name) if change is not None else None
        if change is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            change(module)

        spec.loader.exec_module = run_and_change  # type: ignore[method-assign]
        return spec


def build_without_weights() -> None:
    """Let ``from_pretrained`` of transformers' models build them from their configs, from now on."""
    sys.meta_path.insert(0, _After({"transformers.modeling_utils": _change_models}))


def _change_models(module: ModuleType) -> None:
    def from_pretrained(cls: Any, name: Any, *_: Any, config: Any = None, **kwargs: Any) -> Any:
        return _model(cls, name, config, kwargs)

    module.PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # type: ignore[arg-type] # torch is not type-checked


def _model(cls: Any, name: Any, config: Any, kwargs: dict[str, Any]) -> Any:
    hub = {key: kwargs.pop(key) for key in _HUB if key in kwargs}
    if kwargs.get("quantization_config") is not None or kwargs.get("load_in_4bit") or kwargs.get("load_in_8bit"):
        raise NotImplementedError("weights that are quantized while they are loaded are not rehearsed yet")
    if config is None or isinstance(config, str):
        config = cls.config_class.from_pretrained(config or name, **hub)
    if getattr(config, "quantization_config", None) is not None:
        raise NotImplementedError("a checkpoint with quantized weights is not rehearsed yet")
    dtype = kwargs.pop("dtype", kwargs.pop("torch_dtype", None))
    if dtype in (None, "auto"):
        import transformers

        follows = dtype == "auto" or int(transformers.__version__.partition(".")[0]) >= 5  # its default since
        dtype = (getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)) if follows else None
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype.replace("torch.", ""))
    device_map, attention = kwargs.pop("device_map", None), kwargs.pop("attn_implementation", None)
    attention = attention or getattr(config, "_attn_implementation", None)
    if attention in _FLASH:
        from ..step.forward_pass import FLASH_NAME, register_flash_attention

        register_flash_attention()
        attention = FLASH_NAME
    for key, value in kwargs.items():
        if hasattr(config, key):
            setattr(config, key, value)
    if attention:
        config._attn_implementation = attention
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or torch.float32)
    try:
        model = cls(config)
    finally:
        torch.set_default_dtype(before)
    model.eval()
    if device_map is not None and device_map != "cpu":
        model.to("cuda")
    return model
