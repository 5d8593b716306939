"""The job's model on its devices, with random weights: whole, sharded, split or copied as the job says."""

from __future__ import annotations

import contextlib
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..loops.training_loop import prepare_loop
from ..model.build import build_model, prepare_for_training
from ..parallel.fsdp1.wrapping import wrap_fsdp1
from ..parallel.process_group import device_mesh
from ..replaced import replaced
from ..request.request import OlderVersions
from ..step.forward_pass import autocast_dtype, weights_dtype
from ..step.training_steps import parallelize
from .own_kernels import apply_liger, uses_liger, without_stand_ins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..request.request import Request

STANDARD_DEVIATION = 0.02
"""Standard deviation of random weights: transformers' usual ``initializer_range``."""


def placed_model(request: Request, device: Any) -> Any:
    """Build the model of this rank.

    What is split is made without weights first: no rank ever holds the whole.

    Args:
        request: a job that ``check_measurable`` accepts.
        device: of this rank.

    Raises:
        RefusedError: the installed libraries cannot build it.
    """
    request = replace(request, older=OlderVersions())  # the installed versions run, nothing is imitated
    if request.training.compile:
        request = replace(request, loop=replace(request.loop, fused=(), compiles=False))  # of which torch does all
    parallel, lora = request.parallel, request.lora
    quantized = lora is not None and lora.quantization != "none"
    without_weights = quantized or parallel.sharded or parallel.flat_sharded or parallel.tensor > 1
    with torch.device(device), weights_on_meta() if without_weights else contextlib.nullcontext():
        model = build_model(
            request.config,
            request.task,
            attention=request.attention,
            dtype=weights_dtype(request),
            code=request.code,
        )
        if uses_liger(request):
            apply_liger(model, request)
            request = without_stand_ins(request)
        if quantized and lora is not None:
            from .quantized import quantize

            quantize(model, request, device)
            request = replace(request, lora=replace(lora, quantization="none"))
        model = prepare_for_training(model, request)
    prepare_loop(model, request)
    if parallel.flat_sharded:
        mesh = device_mesh(parallel, request.device)
        return wrap_fsdp1(model, request, mesh, autocast_dtype(request), materialize=_materializer(device))
    model = parallelize(model, request)
    if without_weights:
        fill_weights(model, torch.device("cpu") if parallel.cpu_offload == "all" else device)
    if parallel.data_replicate > 1 and not parallel.sharded:
        model = _copied(model, request, device)
    # behind DistributedDataParallel, as accelerate does it (``Accelerator.prepare_model``, 1.15)
    return torch.compile(model) if request.training.compile else model


@contextlib.contextmanager
def weights_on_meta() -> Iterator[None]:
    """Build parameters without storage; buffers have theirs, as a model computes them when it is built.

    Each parameter is replaced as soon as it is registered (accelerate's ``init_empty_weights``).
    """
    original = torch.nn.Module.register_parameter

    def register(module: Any, name: str, parameter: Any) -> None:
        original(module, name, parameter)
        if parameter is not None and not parameter.is_meta:
            empty = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            module._parameters[name] = empty

    with replaced((torch.nn.Module, "register_parameter", register)):
        yield


def fill_weights(model: Any, device: Any) -> None:
    """Give the parameters that have no storage one on the device, with random values; tied ones stay tied."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_meta:
                continue
            made = torch.nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
            torch.utils.swap_tensors(parameter, made)
            _fill(getattr(parameter, "_local_tensor", parameter), name)


def _fill(tensor: Any, name: str) -> None:
    if tensor.dim() > 1:
        tensor.normal_(std=STANDARD_DEVIATION)
    else:
        tensor.fill_(0.0 if name.endswith("bias") else 1.0)


def _materializer(device: Any) -> Callable[[Any], None]:
    """Return what gives a module's own parameters storage on the device, as FSDP1 calls it before it shards a unit.

    The Trainer moves a unit at a time to the GPU, too: its model is loaded in CPU RAM.
    """
    made: dict[Any, weakref.ref[Any]] = {}  # tied parameters are one; nothing here keeps them

    def materialize(module: Any) -> None:
        with torch.no_grad():
            for name, parameter in list(module._parameters.items()):
                if parameter is None or not parameter.is_meta:
                    continue
                known = made[parameter]() if parameter in made else None
                if known is None:
                    known = torch.nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
                    _fill(known, name)
                    made[parameter] = weakref.ref(known)
                module._parameters[name] = known

    return materialize


class _Copy(DistributedDataParallel):  # type: ignore[misc] # torch is not type-checked
    """DistributedDataParallel whose model's attributes are its own, as FSDP1's are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["module"], name)


def _copied(model: Any, request: Request, device: Any) -> Any:
    """Return the model in DistributedDataParallel, with the Trainer's options (``Trainer._wrap_model``, 5.0)."""
    return _Copy(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        find_unused_parameters=request.training.activation_checkpointing == "none",
        gradient_as_bucket_view=request.parallel.gradient_as_bucket_view,
    )
