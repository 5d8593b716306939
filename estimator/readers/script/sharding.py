"""Sharding and precision of a script's own loop: accelerate, DDP, FSDP, Megatron-FSDP, DeepSpeed, autocast."""

from collections.abc import Callable, Mapping
from typing import Any

from ...job.rules.strategies import DTYPE_NAMES, HALF
from ..arguments.table import scripts
from ..source.settings import Setting
from .models import models_in
from .values import UNKNOWN, Attribute, Call, Name, Thing, plain, short_text


def _put_on_gpu(value: Any) -> Any:
    """Note that what is wrapped is on the GPU, and return it."""
    for model in models_in(value):
        model.on_gpu = True if model.on_gpu is None else model.on_gpu
    return value


_JOB_KEYS = {"mixed_precision": "training.precision", "gradient_accumulation_steps": "training.gradient_accumulation"}


class AcceleratorObject(Thing):
    """``Accelerator(...)``."""

    def __init__(self, ranks: Any) -> None:
        self._known = {
            **dict.fromkeys(("is_main_process", "is_local_main_process", "sync_gradients"), True),
            **dict.fromkeys(("process_index", "local_process_index"), 0),
            **dict.fromkeys(("num_processes", "world_size"), ranks),
            **dict.fromkeys(("device", "state"), UNKNOWN),
        }

    def attribute(self, name: str) -> Any:
        """Return a property or method."""
        return self._known.get(name, Attribute(self, name))

    def method(self, call: Call) -> Any:
        """Follow ``prepare``, which returns what it is given."""
        if call.name in ("prepare", "prepare_model"):
            call.notes.given += [_put_on_gpu(value) for value in call.args]
            return call.args[0] if len(call.args) == 1 else tuple(call.args)
        return call.value(0, default=UNKNOWN) if call.name in ("unwrap_model", "free_memory") else UNKNOWN


def _backward(call: Call) -> Any:
    """Note a backward pass."""
    call.notes.trains = True
    return UNKNOWN


def _make_accelerator(call: Call) -> Any:
    """Follow ``Accelerator(mixed_precision="bf16")``; its plugins and handlers are not read."""
    for name, setting in call.settings(*call.kwargs).items():
        handlers = call.kwargs[name] if name == "kwargs_handlers" else None
        if isinstance(handlers, list) and all(isinstance(each, Name) for each in handlers):
            continue
        if name in scripts().names["plugins"]:
            shards = name not in ("gradient_accumulation_plugin", "dynamo_plugin", "kwargs_handlers")
            call.doubt(f"Accelerator({name}=...) is not read.", key="parallel.strategy" if shards else None)
        elif name == "fp16" and setting.value is True:  # its name in old versions
            call.notes.accelerate.setdefault("mixed_precision", setting.with_value("fp16"))
        elif setting.value is not UNKNOWN:
            call.notes.accelerate.setdefault(name, setting)
        elif name in _JOB_KEYS:
            call.notes.doubt(setting.origin, key=_JOB_KEYS[name])
    return AcceleratorObject(call.notes.ranks)


def _handler(call: Call) -> Any:
    """Return a handler of accelerate's that costs no memory: of DDP without views of its buckets, or of timeouts."""
    return UNKNOWN if "gradient_as_bucket_view" in call.kwargs or call.unknown_table is not None else Name(call.path)


def _replicate(call: Call) -> Any:
    """Follow ``DDP(model)``, of whose arguments ``gradient_as_bucket_view`` alone decides about bytes that count.

    Buckets hold every gradient once, whatever ``bucket_cap_mb`` is (torch 2.13,
    ``torch/csrc/distributed/c10d/reducer.cpp``).
    """
    views = call.settings("gradient_as_bucket_view")
    is_open = call.unknown_table is not None or any(setting.value is UNKNOWN for setting in views.values())
    if is_open or call.value(None, "mixed_precision") is not None:
        call.doubt(f"the arguments of {short_text(call.node)} are not read.")
    else:
        call.notes.own_loop.update(views)
    return _put_on_gpu(call.value(0, "module", "model", default=UNKNOWN))


def _split_batches(call: Call) -> Any:
    """Note ``DataParallel(model)``, one process that splits its batches over all GPUs that it sees."""
    sentence = "DataParallel splits each batch over the visible GPUs and gathers outputs on the first; one is counted."
    call.doubt(sentence, key="training.micro_batch")
    return _put_on_gpu(call.value(0, "module", default=UNKNOWN))


def _shard(call: Call) -> Any:
    """Note that ``FSDP(model)``, ``fully_shard(model)`` or ``parallelize_module(model, ...)`` divides a model.

    Units, meshes and dtypes of the shards are a rehearsal's business.
    """
    setting = Setting(value=True, origin=f"{call.where}: {call.name}(...)")
    call.notes.own_loop.setdefault("script_sharding", setting)
    call.doubt(f"{call.name}(...) is not read; how the model is sharded is not known.")
    model, optimizer = _put_on_gpu(call.value(0, "module", "model", default=UNKNOWN)), call.value(1, "optimizer")
    return (model, optimizer) if call.name == "fully_shard" and isinstance(optimizer, Thing) else model


def _initialize_deepspeed(call: Call) -> Any:
    """Follow ``deepspeed.initialize(model=..., optimizer=..., config=...)``."""
    model, optimizer = call.value(1, "model", default=UNKNOWN), call.value(2, "optimizer", default=None)
    table = plain(call.kwargs.get("config"))
    trains = optimizer is not None or "model_parameters" in call.kwargs
    if not trains and isinstance(table, dict) and not table.get("optimizer"):
        return (model, UNKNOWN, UNKNOWN, UNKNOWN)  # it only runs, as a reference model does
    call.notes.given.append(_put_on_gpu(model))
    if model is UNKNOWN:
        call.doubt("the model that deepspeed.initialize(...) trains is not known.", key="model.id")
    size = table.get("train_micro_batch_size_per_gpu") if isinstance(table, dict) else None
    for setting in call.settings("config", "config_params").values():
        if "training_data" in call.kwargs and isinstance(size, int):  # DeepSpeed makes the loader itself
            call.notes.hints["per_device_train_batch_size"] = setting.with_value(size)
        if isinstance(setting.value, str | dict):
            call.notes.written.setdefault("deepspeed", setting)
            call.notes.written["script_deepspeed_engine"] = setting.with_value(True)
        else:  # fp16 under DeepSpeed keeps an fp32 copy
            call.notes.doubt(setting.origin, key="parallel.strategy")
    return (model, optimizer, UNKNOWN, UNKNOWN)


def _autocast(call: Call) -> Any:
    """Follow ``autocast("cuda", torch.bfloat16)``, and ``torch.cuda.amp.autocast(torch.bfloat16)``."""
    enabled, value = call.value(None, "enabled", default=True), call.value(1, "dtype")
    if value is None and isinstance(call.value(0), Name):
        value = call.value(0)
    word = plain(value) if value is not None else "float16"
    if enabled is not False and (enabled is not True or word is UNKNOWN):
        call.doubt(f"{short_text(call.node)} is only known when the script runs.", key="training.precision")
    half = DTYPE_NAMES.get(str(word))
    if enabled is not False and half in HALF:
        origin = f"{call.where}: {call.name}(...)"
        call.notes.own_loop.setdefault("mixed_precision", Setting(value=half, origin=origin))
    return UNKNOWN


SHARDING_CALLS: Mapping[str, Callable[[Call], Any]] = {
    **dict.fromkeys(("FSDP", "FullyShardedDataParallel", "fully_shard", "fully_shard_model"), _shard),
    "parallelize_module": _shard,
    **dict.fromkeys(("DDP", "DistributedDataParallel"), _replicate),
    "DataParallel": _split_batches,
    "deepspeed.initialize": _initialize_deepspeed,
    "autocast": _autocast,
    "Accelerator": _make_accelerator,
    "PartialState": lambda call: AcceleratorObject(call.notes.ranks),
    **dict.fromkeys(("DistributedDataParallelKwargs", "GradScalerKwargs", "InitProcessGroupKwargs"), _handler),
    "backward": _backward,
}
"""Functions and classes by their dotted names, or the last part of them."""
