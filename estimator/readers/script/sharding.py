"""Sharding and precision of a script's own loop: accelerate, DDP, FSDP, Megatron-FSDP, DeepSpeed, autocast."""

from collections.abc import Mapping
from typing import Any

from ...job.rules.strategies import DTYPE_NAMES, HALF
from ..arguments.table import scripts
from ..source.evidence import Setting
from .models import models_in, not_followed
from .notes import Notes
from .values import UNKNOWN, Attribute, Call, Name, Thing, plain, short_text


def put_on_gpu(call: Call) -> Any:
    """Note that what is wrapped is on the GPU, and return it."""
    value = call.value(0, "module", "model", default=UNKNOWN)
    for model in models_in(value):
        model.on_gpu = True if model.on_gpu is None else model.on_gpu
    return value


_JOB_KEYS = {
    "mixed_precision": "training.precision",
    "gradient_accumulation_steps": "training.gradient_accumulation",
}


class AcceleratorObject(Thing):
    """``Accelerator(...)``."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def attribute(self, name: str) -> Any:
        """Return a property or method."""
        if name in ("is_main_process", "is_local_main_process", "sync_gradients"):
            return True
        if name in ("process_index", "local_process_index"):
            return 0
        if name in ("num_processes", "world_size"):
            return self._notes.ranks
        return UNKNOWN if name in ("device", "state") else Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Follow ``prepare``, which returns what it is given, and ``backward``."""
        if call.name in ("prepare", "prepare_model"):
            for value in call.args:
                for model in models_in(value):
                    model.on_gpu = True if model.on_gpu is None else model.on_gpu
                self._notes.given.append(value)
            return call.args[0] if len(call.args) == 1 else tuple(call.args)
        if call.name == "backward":
            call.run.libraries.backward()
        return call.value(0, default=UNKNOWN) if call.name in ("unwrap_model", "free_memory") else UNKNOWN


def make_accelerator(call: Call, notes: Notes) -> Any:
    """Follow ``Accelerator(mixed_precision="bf16")``; its plugins and handlers are not read."""
    for name, value in call.kwargs.items():
        if name in scripts().names["plugins"]:
            if value is not None:
                shards = name not in ("gradient_accumulation_plugin", "dynamo_plugin", "kwargs_handlers")
                sentence = f"{call.where}: Accelerator({name}=...) is not read."
                notes.doubt(sentence, key="parallel.strategy" if shards else None)
        elif (setting := call.setting(name)) is not None:
            if setting.value is not None:
                notes.accelerate.setdefault(name, setting)
        elif name in _JOB_KEYS:
            sentence = f"{call.where}: {call.shown(name)} is only known when the script runs."
            notes.doubt(sentence, key=_JOB_KEYS[name])
    return AcceleratorObject(notes)


# DDP, of whose arguments ``gradient_as_bucket_view`` alone decides about bytes that count: buckets hold every
# gradient once, whatever ``bucket_cap_mb`` is (torch 2.13, ``torch/csrc/distributed/c10d/reducer.cpp``).


def replicate(call: Call, notes: Notes) -> Any:
    """Follow ``DDP(model)``."""
    known = call.setting("gradient_as_bucket_view") if "gradient_as_bucket_view" in call.kwargs else None
    if known is not None:
        notes.own_loop.setdefault("gradient_as_bucket_view", known)
    is_open = call.unknown_table is not None or ("gradient_as_bucket_view" in call.kwargs and known is None)
    if is_open or call.value(None, "mixed_precision") is not None:
        notes.doubt(f"{call.where}: the arguments of {short_text(call.node)} are not read.")
    return put_on_gpu(call)


# FSDP and Megatron-FSDP in a script's own loop: units, meshes and dtypes of their shards are a rehearsal's business.


_SHARDS = ("FSDP", "FullyShardedDataParallel", "fully_shard", "fully_shard_model", "parallelize_module")


def shard(call: Call, notes: Notes) -> Any:
    """Note that ``FSDP(model)``, ``fully_shard(model)`` or ``parallelize_module(model, ...)`` divides a model."""
    setting = Setting(value=True, origin=f"{call.where}: {call.name}(...)")
    notes.own_loop.setdefault("script_sharding", setting)
    notes.doubt(f"{setting.origin} is not read; how the model is sharded is not known.")
    model, optimizer = put_on_gpu(call), call.value(1, "optimizer")
    return (model, optimizer) if call.name == "fully_shard" and isinstance(optimizer, Thing) else model


# DeepSpeed, tensor parallelism, autocast.


def initialize_deepspeed(call: Call, notes: Notes) -> Any:
    """Follow ``deepspeed.initialize(model=..., optimizer=..., config=...)``."""
    model, optimizer = call.value(1, "model", default=UNKNOWN), call.value(2, "optimizer", default=None)
    table = plain(call.kwargs.get("config"))
    trains = optimizer is not None or "model_parameters" in call.kwargs
    if not trains and isinstance(table, dict) and not table.get("optimizer"):
        return (model, UNKNOWN, UNKNOWN, UNKNOWN)  # it only runs, as a reference model does
    notes.given.append(model)
    size = table.get("train_micro_batch_size_per_gpu") if isinstance(table, dict) else None
    if "training_data" in call.kwargs and isinstance(size, int):  # DeepSpeed makes the loader itself
        origin = f"{call.where}: {call.name}(config=...)"
        notes.hints["per_device_train_batch_size"] = Setting(value=size, origin=origin)
    for name in ("config", "config_params"):
        value = plain(call.kwargs.get(name))
        if isinstance(value, str | dict):
            notes.written.setdefault("deepspeed", Setting(value=value, origin=f"{call.where}: {call.name}({name}=...)"))
        elif name in call.kwargs:
            sentence = f"{call.where}: {call.shown(name)} is only known when the script runs."
            notes.doubt(sentence, key="parallel.strategy")  # fp16 under DeepSpeed keeps an fp32 copy
    for each in models_in(model):
        each.on_gpu = True
    return (model, optimizer, UNKNOWN, UNKNOWN)


def _autocast(call: Call, notes: Notes) -> Any:
    """Follow ``autocast("cuda", torch.bfloat16)``."""
    enabled, value = call.value(None, "enabled", default=True), call.value(1, "dtype")
    if enabled is False:
        return UNKNOWN
    if value is None and isinstance(call.value(0), Name):
        value = call.value(0)  # torch.cuda.amp.autocast(torch.bfloat16)
    word = plain(value) if value is not None else "float16"
    if enabled is not True or word is UNKNOWN:
        sentence = f"{call.where}: {short_text(call.node)} is only known when the script runs."
        notes.doubt(sentence, key="training.precision")
    if (half := DTYPE_NAMES.get(str(word))) in HALF:
        origin = f"{call.where}: {call.name}(...)"
        notes.own_loop.setdefault("mixed_precision", Setting(value=half, origin=origin))
    return UNKNOWN


SHARDING_FUNCTIONS: Mapping[str, Any] = {
    **dict.fromkeys(_SHARDS, shard),
    **dict.fromkeys(("DDP", "DistributedDataParallel", "DataParallel"), replicate),
    "autocast": _autocast,
    "Accelerator": make_accelerator,
    "Fabric": not_followed,
}
"""Functions and classes by the last part of their names."""
