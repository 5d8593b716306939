"""Libraries that read weights: models are built from their configs, with weights that have shapes only."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from .imports import NoLibrary, after_import
from .weights import put, quantizer_of

_HUB = ("revision", "token", "cache_dir", "trust_remote_code", "subfolder", "local_files_only", "proxies")
_LOADING = (
    "device_map", "low_cpu_mem_usage", "variant", "use_safetensors", "max_memory", "offload_folder", "from_flax",
    "offload_state_dict", "output_loading_info", "quantization_config", "disable_mmap", "ignore_mismatched_sizes",
)  # fmt: skip
"""What diffusers takes about how weights are read."""
_IN_PLACE = ("fused_adam", "cpu_adam", "fused_lion", "cpu_lion", "cpu_adagrad")
"""DeepSpeed's compiled optimizers, which change tensors in place and return nothing."""
_ZERO = "deepspeed.runtime.zero"
_FLASH = ("flash_attention_2", "flash_attention_3")


class Unread(dict[str, Any]):
    """State dict of weights that are not read; modules take it for all that they have."""


def build_without_weights(doubt: Callable[[str], None]) -> None:
    """Let libraries build pretrained models from their configs, from now on.

    Args:
        doubt: called with a sentence about weights that are elsewhere in a real run.
    """
    changes: dict[str, Callable[[ModuleType], None]] = {
        "transformers.modeling_utils": functools.partial(_change_transformers, doubt),
        "transformers.utils.import_utils": _is_no_trace,
        "diffusers.models.modeling_utils": functools.partial(_change_diffusers, doubt),
        "huggingface_hub.utils._http": _ask_twice,
        "timm.models._builder": lambda module: setattr(module, "load_pretrained", lambda *_, **__: None),
        "torchvision.extension": _define_torchvision,
        "peft.peft_model": _change_peft,
        "torch.utils.tensorboard.writer": _draw_no_graph,
        "deepspeed.ops.op_builder.builder": _change_deepspeed,
    }
    for name, change in changes.items():
        after_import(name, change)
    torch.hub.load_state_dict_from_url = lambda *_, **__: Unread()
    load = torch.nn.Module.load_state_dict

    @functools.wraps(load)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(state_dict, Unread):
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return load(self, state_dict, *args, **kwargs)

    torch.nn.Module.load_state_dict = load_state_dict


def trust_tokenizers(module: ModuleType) -> None:
    """Give tokenizers the class that their files name: the Qwen2 class of transformers 5 drops a stand-in's words."""
    getattr(module, "MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS", set()).clear()


def find_stand_ins(ids: Mapping[str, str], module: ModuleType) -> None:
    """Let transformers find stand-ins in their own cache, whichever the program names, by their ids on the hub."""
    cache = os.environ["HF_HUB_CACHE"]

    def change(find: Callable[..., Any]) -> Callable[..., Any]:
        def find_in_cache(path_or_repo_id: Any, *args: Any, **given: Any) -> Any:
            found = ids.get(str(path_or_repo_id))
            return find(found or path_or_repo_id, *args, **(given | {"cache_dir": cache} if found else given))

        return find_in_cache

    for each in ("cached_file", "cached_files", "list_repo_templates"):
        if hasattr(module, each):
            setattr(module, each, change(getattr(module, each)))
    hide_offline_mode(module)


def hide_offline_mode(module: Any) -> None:
    """Hide offline mode from the program: the rehearsal turned it on for the libraries, not the user."""
    is_offline = getattr(module, "is_offline_mode", None)
    if is_offline is not None:
        module.is_offline_mode = lambda: sys._getframe(1).f_globals.get("__name__") != "__main__" and is_offline()


def name_classes(module: ModuleType) -> None:
    """Let the config of a stand-in name the class of its language model, which TRL looks for."""
    auto = module.AutoConfig
    read = auto.from_pretrained

    def from_pretrained(*args: Any, **kwargs: Any) -> Any:
        found = read(*args, **kwargs)
        config = found[0] if isinstance(found, tuple) else found
        if not getattr(config, "architectures", None):
            names = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
            config.architectures = [names[config.model_type]] if config.model_type in names else None
        return found

    auto.from_pretrained = from_pretrained


def _change_peft(module: ModuleType) -> None:
    """Give an adapter whose weights are not there those that its config makes."""
    load = getattr(module, "load_peft_weights", None)
    if load is None:  # peft before 0.5
        return

    def load_peft_weights(model_id: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        has_file = any(Path(model_id, f"adapter_model.{end}").exists() for end in ("safetensors", "bin"))
        return load(model_id, *args, **kwargs) if has_file else {}

    module.load_peft_weights = load_peft_weights  # type: ignore[attr-defined]


def _change_deepspeed(module: ModuleType) -> None:
    """Compile no kernels for a GPU."""

    def load(self: Any, verbose: bool = True) -> Any:
        if self.NAME not in _IN_PLACE:
            raise NotImplementedError(f"vramtop cannot rehearse the kernels {self.NAME} of DeepSpeed")
        return NoLibrary()

    module.OpBuilder.load = load


def _ask_twice(module: ModuleType) -> None:
    """Let a hub that cannot be reached be asked again once, not for half a minute (or before 1.0, minutes)."""
    name = "_http_backoff_base" if hasattr(module, "_http_backoff_base") else "http_backoff"
    ask = getattr(module, name)
    setattr(module, name, lambda *args, **given: ask(*args, **{**given, "max_retries": 1}))


def _change_diffusers(doubt: Callable[[str], None], module: ModuleType) -> None:
    """Build diffusers' models as ``ModelMixin.from_pretrained`` does, from their configs."""

    def from_pretrained(cls: Any, name: Any, **kwargs: Any) -> Any:
        dtype = kwargs.pop("torch_dtype", kwargs.pop("dtype", None))
        hub = {key: value for key, value in kwargs.items() if key in (*_HUB, "force_download")}
        rest = {key: value for key, value in kwargs.items() if key not in (*hub, *_LOADING)}
        config, unused = cls.load_config(name, return_unused_kwargs=True, **hub, **rest)
        device_map, given, own = (kwargs.get("device_map"), kwargs.get("quantization_config"),
                                  config.get("quantization_config"))  # fmt: skip
        quantizer = None
        if own is not None or given is not None:
            from diffusers.quantizers import DiffusersAutoQuantizer

            quantizer = quantizer_of(DiffusersAutoQuantizer, own, given, dtype, device_map)
            dtype, device_map = quantizer.update_torch_dtype(dtype), quantizer.update_device_map(device_map)
        model = cls.from_config(config, **unused)
        in_fp32 = getattr(cls, "_keep_in_fp32_modules", None) or ()
        in_fp32 = (in_fp32,) if isinstance(in_fp32, str) else in_fp32
        if isinstance(dtype, torch.dtype):
            model = model.to(dtype)
            for path, parameter in model.named_parameters():
                if not set(in_fp32).isdisjoint(path.split(".")):
                    parameter.data = parameter.data.float()
        model.register_to_config(_name_or_path=name)
        model.eval()
        put(model, dtype or torch.float32, device_map, quantizer, in_fp32=in_fp32, doubt=doubt)
        return model

    module.ModelMixin.from_pretrained = classmethod(from_pretrained)  # type: ignore[arg-type]


def _define_torchvision(module: ModuleType) -> None:
    """Let torchvision be imported where its library cannot be loaded; without its operators it has no detectors."""
    if not module._has_ops():
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        module._library = library  # type: ignore[attr-defined] # its operators live as long


def _draw_no_graph(module: ModuleType) -> None:
    """Let TensorBoard's ``add_graph`` run the model twice, as tracing and its check do, and draw nothing."""
    drawing = sys.modules[module.graph.__module__]

    def graph(model: Any, args: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        with drawing._set_model_to_eval(model):
            for _turn in range(2):
                model(*args) if isinstance(args, (tuple, list)) else model(args)
        return drawing.GraphDef(), drawing.RunMetadata()

    module.graph = graph  # type: ignore[attr-defined]


def _is_no_trace(module: ModuleType) -> None:
    """Let transformers read masks, which it does not do of fake tensors: an attention mask of ones only is left out."""
    if hasattr(module, "is_fake_tensor"):
        module.is_fake_tensor = lambda _: False  # type: ignore[attr-defined]


def _change_transformers(doubt: Callable[[str], None], module: ModuleType) -> None:
    def from_pretrained(cls: Any, name: Any, *_: Any, config: Any = None, **kwargs: Any) -> Any:
        return _model(cls, name, config, kwargs, doubt)

    module.PreTrainedModel.from_pretrained = classmethod(from_pretrained)  # type: ignore[arg-type] # torch is not type-checked


def _model(cls: Any, name: Any, config: Any, kwargs: dict[str, Any], doubt: Callable[[str], None]) -> Any:
    hub = {key: kwargs.pop(key) for key in _HUB if key in kwargs}
    quantization = kwargs.pop("quantization_config", None)
    bits = {key: kwargs.pop(key) for key in ("load_in_4bit", "load_in_8bit") if key in kwargs}
    if quantization is None and any(bits.values()):
        from transformers import BitsAndBytesConfig

        quantization = BitsAndBytesConfig(**bits)
    if config is None or isinstance(config, str):
        config = cls.config_class.from_pretrained(config or name, **hub)
        config.name_or_path = str(name)  # transformers sets it where it reads the weights
    dtype = kwargs.pop("dtype", kwargs.pop("torch_dtype", None))
    if dtype in (None, "auto"):
        import transformers

        follows = dtype == "auto" or int(transformers.__version__.partition(".")[0]) >= 5  # its default since
        dtype = (getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)) if follows else None
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype.replace("torch.", ""))
    device_map, attention = kwargs.pop("device_map", None), _asked_attention(config, kwargs)
    generation, max_memory = kwargs.pop("generation_config", None), kwargs.pop("max_memory", None)
    own, quantizer = getattr(config, "quantization_config", None), None
    if own is not None or quantization is not None:
        from transformers.quantizers.auto import AutoHfQuantizer

        quantizer = quantizer_of(AutoHfQuantizer, own, quantization, dtype, device_map)
    if quantizer is not None:
        config.quantization_config = quantizer.quantization_config
        update = getattr(quantizer, "update_dtype", None) or quantizer.update_torch_dtype
        dtype, device_map = update(dtype), quantizer.update_device_map(device_map)
    attention = _attention(attention)
    for key, value in kwargs.items():
        if hasattr(config, key):
            setattr(config, key, value)
    if attention:
        config._attn_implementation = attention
    _say_precision(config, dtype or torch.float32, is_quantized=quantizer is not None)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or torch.float32)
    try:
        model = cls(config)
    finally:
        torch.set_default_dtype(before)
    if hasattr(model, "lm_head") and getattr(config, "scale_decoder_outputs", None) is False:
        # transformers 5 ties the head of T5 1.1 and unties it once it has read two weights
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.all_tied_weights_keys.pop("lm_head.weight", None)
    model.eval()
    _read_generation_config(model, name, generation, hub)
    put(model, dtype or torch.float32, device_map, quantizer, max_memory=max_memory, doubt=doubt)
    if quantizer is None:
        _partition(model)
    return model


def _say_precision(config: Any, dtype: Any, *, is_quantized: bool) -> None:
    """Write the precision of the weights into the config, where models inside a model and flash attention find it."""
    for part in filter(None, (config, *(getattr(config, key, None) for key in getattr(config, "sub_configs", ())))):
        setattr(part, "torch_dtype" if "torch_dtype" in vars(part) else "dtype", dtype)
        vars(part).update({"_pre_quantization_dtype": dtype} if is_quantized else {})


def _partition(model: Any) -> None:
    """Split a model for ZeRO-3 among the ranks, as the library does by building it inside DeepSpeed's ``zero.Init``.

    From then on linear layers keep parameters, not views of them, which would hold the weights that are gathered.
    """
    with contextlib.suppress(ImportError):
        from transformers.integrations.deepspeed import deepspeed_config, is_deepspeed_zero3_enabled

        if is_deepspeed_zero3_enabled():
            linear, parts = (import_module(f"{_ZERO}.{name}") for name in ("linear", "partition_parameters"))
            config = deepspeed_config()
            if config["zero_optimization"].get("memory_efficient_linear", True):
                torch.nn.functional.linear = linear.zero3_linear_wrap
            engine = getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)
            if hasattr(engine, "_cast_module_mixed_precision"):  # 0.19 casts no layers that are added to a split model
                return
            kinds = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp16": torch.float16}
            enabled = (kind for name, kind in kinds.items() if config.get(name, {}).get("enabled") is True)
            torch.nn.Module.to(model, next(enabled, torch.float32))
            parts.Init(module=model, config_dict_or_path=config)
            for module in model.modules():
                buffers = {name: each.cuda() for name, each in module._buffers.items() if each is not None}
                module._buffers.update(buffers)


def _asked_attention(config: Any, kwargs: dict[str, Any]) -> Any:
    """Return what attention is asked for; None: the library chooses (configs before 4.48 say "eager")."""
    if kwargs.pop("use_flash_attention_2", False):  # its name before 4.36
        kwargs.setdefault("attn_implementation", _FLASH[0])
    written = getattr(config, "_attn_implementation", None)
    return kwargs.pop("attn_implementation", None) or getattr(config, "_attn_implementation_internal", written)


def _attention(name: str | None) -> str | None:
    """Return what a model's attention is called here: flash-attn need not be installed."""
    if name not in _FLASH:
        return name
    from .attention import give_flash_attention
    from .cuda_kernels import FLASH_NAME, register_flash_attention

    try:
        register_flash_attention()
    except ImportError:
        give_flash_attention()
        return name
    return FLASH_NAME


def _read_generation_config(model: Any, name: Any, given: Any, hub: dict[str, Any]) -> None:
    """Let a model generate as the file beside its weights says, where there is one."""
    if name is None or not model.can_generate():
        return
    from transformers import GenerationConfig

    hub.pop("trust_remote_code", None)
    with contextlib.suppress(OSError):  # there is none
        model.generation_config = given or GenerationConfig.from_pretrained(name, **hub)
