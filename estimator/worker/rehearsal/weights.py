"""Weights of models that are built without reading any: on their devices, and quantized there.

The libraries' own code decides which weights are quantized and to what.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from .fake_gpu import program_lines

_SPLITS = ("auto", "balanced", "balanced_low_0", "sequential")
"""What ``device_map`` may be for a model that is spread over the GPUs."""
_PACKED_BY_LOADING = ("bitsandbytes", "torchao")
"""Methods of quantization whose checkpoints hold what quantizing a weight makes of it."""


def quantizer_of(library: Any, own: Any, given: Any, dtype: Any, device_map: Any) -> Any:
    """Return the quantizer of a model; None: nothing stays quantized.

    Args:
        library: the class of transformers or diffusers that makes quantizers.
        own: what a checkpoint's config says about its quantized weights; None: they are not.
        given: the program's ``quantization_config``.
        dtype: the model's.
        device_map: as the program gives it.
    """
    supports = getattr(library, "supports_quant_method", None)  # diffusers asks nothing
    if own is not None and supports is not None and not supports(own if isinstance(own, dict) else vars(own)):
        own = None
    if own is None and given is None:
        return None
    config = given if own is None else library.merge_quantization_configs(own, given)
    method = config["quant_method"] if isinstance(config, dict) else config.quant_method
    is_read = own is not None and str(getattr(method, "value", method)) not in _PACKED_BY_LOADING
    quantizer = library.from_config(config, pre_quantized=is_read)
    quantizer.validate_environment(dtype=dtype, torch_dtype=dtype, device_map=device_map, weights_only=True)
    return None if getattr(quantizer.quantization_config, "dequantize", False) else quantizer  # unpacked as it is read


def put(
    model: Any,
    dtype: Any,
    device_map: Any,
    quantizer: Any = None,
    *,
    in_fp32: Collection[str] = (),
    max_memory: Any = None,
    doubt: Callable[[str], None],
) -> None:
    """Put a model's weights on their devices, and quantize them there.

    Source: transformers, ``PreTrainedModel.from_pretrained``, and diffusers, ``ModelMixin.from_pretrained``:
    ``preprocess_model`` replaces modules, those that take quantized weights are on ``meta``; then each weight is read,
    quantized and set.

    Args:
        model: built from its config, on the host.
        dtype: its own.
        device_map: as the program gives it; None: it stays there.
        quantizer: of its weights.
        in_fp32: names of modules that the library keeps in fp32.
        max_memory: bytes of each GPU that weights may take, as accelerate takes them.
        doubt: called with a sentence about weights that are elsewhere in a real run.
    """
    if quantizer is None:
        places = _places(model, device_map, max_memory, doubt=doubt)
        for path, place in places.items():
            model.get_submodule(path).to(place)
        _dispatch(model, places)
        return
    quantizer.preprocess_model(
        model=model,
        dtype=dtype,
        device_map=device_map,
        checkpoint_files=[""],
        use_kernels=False,
        keep_in_fp32_modules=list(in_fp32),
    )
    places = _places(model, device_map, max_memory, quantizer, doubt=doubt)
    tied: dict[Any, Any] = {}
    for path, module in list(model.named_modules()):
        for name, parameter in list(module._parameters.items()):
            full = f"{path}.{name}" if path else name
            if parameter in tied:
                module._parameters[name] = tied[parameter]
            elif parameter is not None:
                _quantize(model, quantizer, full, _value(parameter, dtype, _place(places, full)))
                tied[parameter] = model.get_submodule(path)._parameters.get(name)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = _value(buffer, buffer.dtype, _place(places, f"{path}.{name}"))
    model.hf_quantizer = quantizer
    quantizer.postprocess_model(model)
    _dispatch(model, places)


def _places(
    model: Any, device_map: Any, max_memory: Any, quantizer: Any = None, *, doubt: Callable[[str], None]
) -> dict[str, Any]:
    """Return the device of each module, "" for the whole model; empty: it stays on the host.

    What accelerate would keep on the CPU or on disk, where it cannot be trained, is taken to be on the GPU.
    """
    if device_map is None or device_map == "cpu":
        return {}
    if isinstance(device_map, str) and device_map in _SPLITS:
        device_map = _balanced(model, device_map, max_memory, quantizer)
    elif not isinstance(device_map, dict):
        device_map = {"": device_map}
    elsewhere = sum(place in ("cpu", "disk") for place in device_map.values())
    if elsewhere:
        line, own = program_lines()
        doubt(
            f"{own or line} places {elsewhere} of {len(device_map)} modules on the CPU or on disk, where they cannot "
            "be trained: they count on the GPU here"
        )
    return {path: "cuda" if place in ("cpu", "disk") else place for path, place in device_map.items()}


def _balanced(model: Any, device_map: str, max_memory: Any, quantizer: Any) -> Any:
    """Return the device of each module of a model that the library spreads over the GPUs."""
    try:
        from transformers.integrations.accelerate import _get_device_map  # transformers 5
    except ImportError:
        from accelerate import infer_auto_device_map
        from accelerate.utils import get_balanced_memory

        classes = list(getattr(model, "_no_split_modules", None) or ())
        if device_map != "sequential":
            is_low = device_map == "balanced_low_0"
            max_memory = get_balanced_memory(model, max_memory, no_split_module_classes=classes, low_zero=is_low)
        return infer_auto_device_map(model, max_memory, no_split_module_classes=classes)
    return _get_device_map(model, device_map, max_memory, quantizer)


def _place(places: dict[str, Any], full: str) -> Any:
    """Return the device of a parameter or buffer."""
    path = full
    while path and path not in places:
        path = path.rpartition(".")[0]
    place = places.get(path, places.get("", "cpu"))
    return torch.device("cuda", place) if isinstance(place, int) else torch.device(place)


def _dispatch(model: Any, places: dict[str, Any]) -> None:
    """Let modules on several GPUs get their inputs there, as accelerate does."""
    if not places:
        return
    model.hf_device_map = {path: 0 if place == "cuda" else place for path, place in places.items()}
    if len({str(_place(places, path)) for path in places}) > 1:
        from accelerate import dispatch_model

        dispatch_model(
            model, device_map=model.hf_device_map, skip_keys=getattr(model, "_skip_keys_device_placement", None)
        )


def _value(tensor: Any, dtype: Any, device: Any) -> Any:
    """Return what is read for a tensor, on its device; one on ``meta`` gets its dtype there."""
    if tensor.device.type != "meta":
        return tensor.detach().to(device)
    return torch.empty(tensor.shape, dtype=dtype if tensor.is_floating_point() else tensor.dtype, device=device)


def _quantize(model: Any, quantizer: Any, full: str, value: Any) -> None:
    """Set a weight of the model, quantized if its quantizer says so."""
    needs = getattr(quantizer, "param_needs_quantization", None)
    makes = getattr(quantizer, "create_quantized_param", None)  # not in transformers 5
    rest: tuple[Any, ...] = ()
    if needs is None:  # diffusers, and transformers until 4.55
        asks = getattr(quantizer, "check_if_quantized_param", None) or quantizer.check_quantized_param
        is_quantized, rest = asks(model, value, full, {}), ({}, [])
    else:
        is_quantized = needs(model, full)
    if is_quantized and makes is not None:
        makes(model, value, full, value.device, *rest)
    elif is_quantized and not quantizer.pre_quantized:
        convert = quantizer.get_quantize_ops().convert
        made = convert({full: value}, full_layer_name=full, model=model, missing_keys=set())
        for name, each in made.items():
            _set(model, name, each[0] if isinstance(each, list) else each)
    else:
        _set(model, full, torch.nn.Parameter(value, value.is_floating_point()))


def _set(model: Any, full: str, value: Any) -> None:
    path, _, name = full.rpartition(".")
    module = model.get_submodule(path)
    if name in module._buffers:
        module._buffers[name] = value
    else:
        is_parameter = isinstance(value, torch.nn.Parameter)
        module._parameters[name] = value if is_parameter else torch.nn.Parameter(value, requires_grad=False)
