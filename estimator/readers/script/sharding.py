"""Sharding and precision of a script's own loop: accelerate, DDP, FSDP, Megatron-FSDP, DeepSpeed, autocast."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..arguments.table import scripts
from ..source.evidence import MODEL_STATES, Setting, default_setting
from .models import models_in
from .notes import Notes
from .values import UNKNOWN, Attribute, Bound, Call, Function, Name, Thing, plain, short_text

if TYPE_CHECKING:
    from ...job.settings import UncertaintyDirection

MIXED_PRECISION = {
    **dict.fromkeys(("bfloat16", "bf16", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("float16", "half", "fp16", "16-mixed", "16"), "fp16"),
}


def put_on_gpu(call: Call, *, sharded: bool) -> Any:
    """Note that what is wrapped is on the GPU, and return it."""
    value = call.value(0, "module", "model", default=UNKNOWN)
    for model in models_in(value):
        model.on_gpu = True if model.on_gpu is None else model.on_gpu
        model.sharded = model.sharded or sharded
    return value


# accelerate: ``Accelerator(...)`` and its plugins, by the names of accelerate's flags.


_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
_WITHOUT_EFFECT = scripts().names["plugin_without_effect"]
_PLUGINS = ("fsdp_plugin", "deepspeed_plugin", "parallelism_config", "gradient_accumulation_plugin")
_UNREAD = ("deepspeed_plugins", "megatron_lm_plugin", "torch_tp_plugin", "dynamo_plugin")


class Plugin(Thing):
    """A plugin of accelerate, or a handler of DDP's: its settings, and what is not known of it."""

    def __init__(self, call: Call, switch: str | None, names: Mapping[str, str]) -> None:
        self.settings: dict[str, Setting] = {}
        self.sentences: list[str] = []
        origin = f"{call.where}: {call.name}(...)"
        unread: list[int | str] = []
        if switch is not None:
            self.settings[switch] = Setting(value=True, origin=origin)
        for at, value in enumerate(call.args):
            if call.name == "GradientAccumulationPlugin" and type(value) is int:
                self.settings[names["num_steps"]] = Setting(value=value, origin=origin)
            else:
                unread.append(at)
        for name, value in call.kwargs.items():
            if value is None or name in _WITHOUT_EFFECT:
                continue
            setting = call.setting(name)
            if name == "auto_wrap_policy" and setting is None:
                setting = Setting(value="other_wrap", origin=f"{call.where}: {call.name}({name}=...)")
            if names.get(name) is None or setting is None:
                unread.append(name)
            else:
                self.settings[names[name]] = setting
        if unread:
            keys = ", ".join(f"{each}=..." if isinstance(each, str) else "..." for each in unread)
            shown = call.shown(unread[0]) if len(unread) == 1 else f"{call.name}({keys})"
            self.sentences.append(f"{call.where}: {shown} is not read.")
        if call.unknown_table is not None:
            self.sentences.append(f"{call.where}: {call.name}(**...) is only known when the script runs.")


def make_fsdp_plugin(call: Call, notes: Notes) -> Any:
    """Follow ``FullyShardedDataParallelPlugin(...)``, which wraps the whole model as one unit unless told otherwise."""
    found = Plugin(call, "use_fsdp", scripts().flags["fsdp_plugin"])
    default = default_setting("no_wrap", "the default of FullyShardedDataParallelPlugin")
    found.settings.setdefault("fsdp_auto_wrap_policy", default)
    if call.value(None, "mixed_precision_policy") is not None:
        found.sentences.append(f"{call.where}: {call.shown('mixed_precision_policy')} is not read.")
    return found


class AcceleratorObject(Thing):
    """``Accelerator(...)`` or Lightning's ``Fabric``."""

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
        if call.name in ("prepare", "setup", "prepare_model"):
            for value in call.args:
                for model in models_in(value):
                    model.on_gpu, model.sharded = (True if model.on_gpu is None else model.on_gpu), True
                self._notes.given.append(value)
            return call.args[0] if len(call.args) == 1 else tuple(call.args)
        if call.name == "backward":
            call.run.libraries.backward()
        return call.value(0, default=UNKNOWN) if call.name in ("unwrap_model", "free_memory") else UNKNOWN


def make_accelerator(call: Call, notes: Notes) -> Any:
    """Follow ``Accelerator(mixed_precision="bf16")``."""
    for name, value in call.kwargs.items():
        if name in (*_PLUGINS, *_UNREAD):
            _take_plugin(value, call, name, notes)
        elif name == "kwargs_handlers":
            _take_handlers(value, call, notes)
        elif (setting := call.setting(name)) is not None:
            if setting.value is not None:
                notes.accelerate.setdefault(name, setting)
        elif name in ("mixed_precision", "gradient_accumulation_steps"):
            key = "training.precision" if name == "mixed_precision" else "training.gradient_accumulation"
            sentence = f"{call.where}: {call.shown(name)} is only known when the script runs."
            notes.doubt(
                sentence, *(("weights", "gradients", "activations") if "mixed" in name else ("gradients",)), key=key
            )
    return AcceleratorObject(notes)


def _take_plugin(plugin: Any, call: Call, name: str, notes: Notes) -> None:
    """Take the settings of a plugin; of one that is not known, nothing is counted as sharded."""
    if plugin is None:
        return
    if isinstance(plugin, Plugin) and name in _PLUGINS:
        for key, setting in plugin.settings.items():
            notes.accelerate.setdefault(key, setting)
        for sentence in plugin.sentences:
            notes.doubt(sentence, *MODEL_STATES, "activations", "communication", key="parallel.strategy")
        return
    sentence = f"{call.where}: Accelerator({name}=...) is not read; the figure assumes that it shards nothing."
    notes.doubt(sentence, *MODEL_STATES, direction="less", key="parallel.strategy")


def _take_handlers(value: Any, call: Call, notes: Notes) -> None:
    """Take the settings of ``Accelerator(kwargs_handlers=[...])``."""
    handlers = call.run.iterate(value)
    for handler in handlers if handlers is not None else [UNKNOWN]:
        if isinstance(handler, Plugin):
            for name, setting in handler.settings.items():
                notes.accelerate.setdefault(name, setting)
            for sentence in handler.sentences:
                direction: UncertaintyDirection = "more" if "comm_hook" in sentence else "less"
                notes.doubt(sentence, "communication", direction=direction)
        elif handler is UNKNOWN:
            sentence = f"{call.where}: Accelerator(kwargs_handlers=...) is only known when the script runs."
            notes.doubt(sentence, "communication", direction="less")


# DDP, of whose arguments ``gradient_as_bucket_view`` alone decides about bytes that count: buckets hold every
# gradient once, whatever ``bucket_cap_mb`` is (torch 2.13, ``torch/csrc/distributed/c10d/reducer.cpp``).


_VIEWS = {"gradient_as_bucket_view": "gradient_as_bucket_view", "comm_hook": "ddp_comm_hook"}


def _ddp_arguments(call: Call, notes: Notes) -> Plugin:
    """Follow ``DistributedDataParallelKwargs(...)``, or the arguments of DDP itself."""
    given = {name: value for name, value in call.kwargs.items() if name in _VIEWS}
    only = Call(call.run, call.node, call.path, None, [], given, call.nodes, call.scope)
    only.unknown_table = call.unknown_table
    return Plugin(only, None, _VIEWS)


def replicate(call: Call, notes: Notes) -> Any:
    """Follow ``DDP(model)``."""
    found = _ddp_arguments(call, notes)
    for name, setting in found.settings.items():
        notes.own_loop.setdefault(name, setting)
    for sentence in found.sentences:  # views of the buckets take less, a communication hook may take more
        direction: UncertaintyDirection = "more" if "comm_hook" in sentence else "less"
        notes.doubt(sentence, "communication", direction=direction, key="parallel.gradient_as_bucket_view")
    if call.value(None, "mixed_precision") is not None:
        sentence = f"{call.where}: {call.shown('mixed_precision')} is not read."
        notes.doubt(sentence, "weights", "activations", "communication")
    return put_on_gpu(call, sharded=False)


def _autocast_arguments(call: Call, notes: Notes) -> Any:
    """Follow ``AutocastKwargs(enabled=False)``, with which the step runs in the type of the weights."""
    if call.value(0, "enabled", default=True) is not True:
        notes.doubt(f"{call.where}: {call.name}(enabled=...) is not read.", "activations", key="training.precision")
    return Plugin(Call(call.run, call.node, call.path), None, {})


# FSDP and Megatron-FSDP in a script's own loop: units, meshes and dtypes of their shards are a rehearsal's business.


SHARDING_POLICIES = (
    "MixedPrecision",
    "MixedPrecisionPolicy",
    "CPUOffloadPolicy",
    "ModuleWrapPolicy",
    "init_device_mesh",
)
"""What is made for those who shard, perhaps in another file."""
_SHARDS = ("FSDP", "FullyShardedDataParallel", "fully_shard", "fully_shard_model", "parallelize_module")


def shard(call: Call, notes: Notes) -> Any:
    """Note that ``FSDP(model)``, ``fully_shard(model)`` or ``parallelize_module(model, ...)`` divides a model."""
    setting = Setting(value=True, origin=f"{call.where}: {call.name}(...)")
    notes.own_loop.setdefault("script_sharding", setting)
    notes.doubt(f"{setting.origin} is not read; how the model is sharded is not known.")
    model, optimizer = put_on_gpu(call, sharded=True), call.value(1, "optimizer")
    return (model, optimizer) if call.name == "fully_shard" and isinstance(optimizer, Thing) else model


# DeepSpeed, tensor parallelism, autocast, Lightning.


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
            notes.doubt(sentence, *MODEL_STATES, key="parallel.strategy")  # fp16 under DeepSpeed keeps an fp32 copy
    for each in models_in(model):
        each.on_gpu = each.sharded = True
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
        notes.doubt(sentence, "activations", key="training.precision")
    if word in MIXED_PRECISION:
        origin = f"{call.where}: {call.name}(...)"
        notes.own_loop.setdefault("mixed_precision", Setting(value=MIXED_PRECISION[word], origin=origin))
    return UNKNOWN


_TRUE_PRECISION = {"bf16-true": "bfloat16", "16-true": "float16"}
"""Lightning's precisions that convert the model's weights."""


def read_lightning(call: Call, notes: Notes) -> None:
    """Read the arguments of Lightning's ``Trainer`` and ``Fabric``."""
    for name, renamed in (("precision", "mixed_precision"), ("accumulate_grad_batches", "gradient_accumulation_steps")):
        setting = call.setting(name) if name in call.kwargs else None
        if setting is not None and setting.value is not None:
            word = MIXED_PRECISION.get(str(setting.value), "no") if name == "precision" else setting.value
            notes.accelerate.setdefault(renamed, setting.with_value(word))
            if (dtype := _TRUE_PRECISION.get(str(setting.value))) is not None:
                notes.assigned.setdefault("dtype", setting.with_value(dtype))
        elif name in call.kwargs and call.kwargs[name] is not None:
            key = "training.precision" if name == "precision" else "training.gradient_accumulation"
            sentence = f"{call.where}: {call.shown(name)} is only known when the script runs."
            notes.doubt(sentence, *MODEL_STATES, "activations", key=key)
    devices = plain(call.value(None, "devices", default="auto"))
    count = len(devices) if isinstance(devices, list) else devices
    value = count if type(count) is int and count > 0 else "all GPUs"
    if "devices" in call.kwargs or "gpus" in call.kwargs:
        notes.written.setdefault(
            "script_processes", Setting(value=value, origin=f"{call.where}: {call.shown('devices')}")
        )
    if isinstance(devices, list) and len(devices) == 1:
        notes.note_device(devices[0], f"{call.where}: {call.shown('devices')}")
    elif isinstance(devices, list) and all(type(each) is int for each in devices):
        origin = f"{call.where}: {call.shown('devices')}"
        notes.visible_devices = notes.visible_devices or Setting(value=",".join(map(str, devices)), origin=origin)
    strategy = call.value(None, "strategy", default="auto")
    if not isinstance(strategy, str) or not strategy.startswith(("auto", "ddp", "single")):
        sentence = f"{call.where}: Lightning's {call.shown('strategy')} is not read; the figure assumes no sharding."
        notes.doubt(sentence, *MODEL_STATES, direction="less", key="parallel.strategy")


def _make_fabric(call: Call, notes: Notes) -> Any:
    read_lightning(call, notes)
    return AcceleratorObject(notes)


def _search_batch(call: Call, notes: Notes) -> Any:
    """Follow ``find_executable_batch_size(function, starting_batch_size=256)``, which halves after each failure."""
    function = call.value(0, "function")
    if isinstance(function, Function):
        first = call.value(1, "starting_batch_size", default=128)  # accelerate's default (``utils/memory.py``)
        sentence = f"{call.where}: {call.name} halves the batch when it does not fit; the first batch size is counted."
        notes.doubt(sentence, "activations", "logits", direction="less", key="training.micro_batch")
        return Bound(function, (first,))
    return UNKNOWN


SHARDING_FUNCTIONS: Mapping[str, Any] = {
    **dict.fromkeys(_SHARDS, shard),
    **dict.fromkeys(("DDP", "DistributedDataParallel", "DataParallel"), replicate),
    "DistributedDataParallelKwargs": _ddp_arguments,
    "AutocastKwargs": _autocast_arguments,
    "CPUOffload": lambda call, _: call.value(0, "offload_params", default=False),
    "autocast": _autocast,
    "Accelerator": make_accelerator,
    "FullyShardedDataParallelPlugin": make_fsdp_plugin,
    "DeepSpeedPlugin": lambda call, _: Plugin(call, "use_deepspeed", scripts().flags["deepspeed_plugin"]),
    "ParallelismConfig": lambda call, _: Plugin(call, None, {name: f"parallelism_config_{name}" for name in _SIZES}),
    "GradientAccumulationPlugin": lambda call, _: Plugin(
        call, None, {"num_steps": "gradient_accumulation_steps", "sync_each_batch": "sync_each_batch"}
    ),
    "Fabric": _make_fabric,
    "find_executable_batch_size": _search_batch,
}
"""Functions and classes by the last part of their names."""
