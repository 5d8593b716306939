"""Sharding and precision of a script's own loop: accelerate, DDP, FSDP, Megatron-FSDP, DeepSpeed, autocast."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..source.evidence import (
    MEGATRON_OUTER_SHARDING,
    MEGATRON_SHARDING,
    MODEL_STATES,
    Component,
    Setting,
    default_setting,
)
from .models import Model, Part, models_in
from .notes import Notes
from .values import UNKNOWN, Attribute, Bound, Call, Class, Function, Name, Thing, plain, short_text

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


def _doubt(
    notes: Notes, call: Call, name: str, components: tuple[Component, ...], direction: Any, *, key: str | None = None
) -> None:
    notes.doubt(f"{call.where}: {call.shown(name)} is not read.", *components, direction=direction, key=key)


# accelerate: ``Accelerator(...)`` and its plugins, by the names of accelerate's flags.


_FSDP_ARGUMENTS = {
    "fsdp_version": "fsdp_version",
    "sharding_strategy": "fsdp_sharding_strategy",
    "reshard_after_forward": "fsdp_reshard_after_forward",
    "cpu_offload": "fsdp_offload_params",
    "auto_wrap_policy": "fsdp_auto_wrap_policy",
    "min_num_params": "fsdp_min_num_params",
    "transformer_cls_names_to_wrap": "fsdp_transformer_layer_cls_to_wrap",
    "activation_checkpointing": "fsdp_activation_checkpointing",
    "cpu_ram_efficient_loading": "fsdp_cpu_ram_efficient_loading",
    "backward_prefetch": "fsdp_backward_prefetch",
    "limit_all_gathers": "fsdp_limit_all_gathers",
}
_DEEPSPEED_ARGUMENTS = {
    "hf_ds_config": "deepspeed_config_file",
    "zero_stage": "zero_stage",
    "offload_optimizer_device": "offload_optimizer_device",
    "offload_param_device": "offload_param_device",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
_SIZES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
_WITHOUT_EFFECT = {
    *("forward_prefetch", "use_orig_params", "sync_module_states"),
    *("state_dict_type", "state_dict_config", "optim_state_dict_config"),
    *("param_init_fn", "mixed_precision_policy", "gradient_clipping", "zero3_save_16bit_model"),
    *("zero3_init_flag", "offload_optimizer_nvme_path", "offload_param_nvme_path", "parallelism_config"),
    *("enable_msamp", "msamp_opt_level", "transformer_moe_cls_names", "is_train_batch_min"),
}
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
    found = Plugin(call, "use_fsdp", _FSDP_ARGUMENTS)
    default = default_setting("no_wrap", "the default of FullyShardedDataParallelPlugin")
    found.settings.setdefault("fsdp_auto_wrap_policy", default)
    policy = call.value(None, "mixed_precision_policy")
    if policy is not None and not (isinstance(policy, DtypePolicy) and policy.reduced == policy.gathered):
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
        _doubt(notes, call, "mixed_precision", ("weights", "activations", "communication"), "either")
    return put_on_gpu(call, sharded=False)


def _autocast_arguments(call: Call, notes: Notes) -> Any:
    """Follow ``AutocastKwargs(enabled=False)``, with which the step runs in the type of the weights."""
    if call.value(0, "enabled", default=True) is not True:
        notes.doubt(f"{call.where}: {call.name}(enabled=...) is not read.", "activations", key="training.precision")
    return Plugin(Call(call.run, call.node, call.path), None, {})


# FSDP in a script's own loop: what it wraps, how it shards, the dtypes and offloading of its policies.


_VERSION = {"FSDP": 1, "FullyShardedDataParallel": 1, "fully_shard": 2}
_BLOCK_CLASS = re.compile(r"(?!.*(?:Moe|MoE|MLP|Attention))\w*(?:Block|Layer)")
_UNITS = "fsdp_auto_wrap_policy"
_DEFAULT_SIZE = 100_000_000
"""``min_num_params`` of ``size_based_auto_wrap_policy`` (torch/distributed/fsdp/wrap.py)."""


class DtypePolicy(Thing):
    """``MixedPrecision(...)`` or ``MixedPrecisionPolicy(...)``: the dtypes of what is gathered and reduced."""

    def __init__(self, call: Call) -> None:
        self.gathered, self.reduced = (
            plain(call.value(at, name)) for at, name in enumerate(("param_dtype", "reduce_dtype"))
        )
        self.has_main_weights = call.value(None, "main_params_dtype", default=True) is not None
        """Megatron-FSDP's policy of the same name keeps an fp32 copy of the weights."""


class _UnitPolicy(Thing):
    """``ModuleWrapPolicy({LlamaDecoderLayer})``: the classes that become units."""

    def __init__(self, classes: Any) -> None:
        self.classes = classes


class _Mesh(Thing):
    """``init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))``: its sizes by name."""

    def __init__(self, sizes: list[Any], names: list[Any]) -> None:
        self.sizes, self._names = sizes, names

    def item(self, key: Any) -> Any:
        """Return the part of it with some of its dimensions."""
        wanted = list(key) if isinstance(key, list | tuple) else [key]
        if not all(each in self._names for each in wanted) or len(self._names) != len(self.sizes):
            return UNKNOWN
        return _Mesh([self.sizes[self._names.index(each)] for each in wanted], wanted)


def _make_mesh(call: Call, notes: Notes) -> Any:
    sizes, names = call.run.iterate(call.value(1, "mesh_shape")), call.run.iterate(call.value(2, "mesh_dim_names"))
    return _Mesh(sizes, names or []) if sizes else UNKNOWN


def shard(call: Call, notes: Notes) -> Any:
    """Follow ``FSDP(model)`` and ``fully_shard(model)``."""
    if call.name == "fully_shard_model" or _OWN_ARGUMENTS & set(call.kwargs):
        return _shard_with_megatron(call, notes)
    version = _VERSION[call.name]
    setting, loop = Setting(value=True, origin=f"{call.where}: {call.name}(...)"), notes.own_loop
    value = call.value(0, "module", default=UNKNOWN)
    notes.sharded.append(value)
    loop.setdefault("use_fsdp", setting)
    loop.setdefault("script_own_sharding", setting)
    loop.setdefault("fsdp_version", setting.with_value(version))
    _read_reshard(call, notes, setting)
    _read_strategy(call, notes, setting)
    _read_dtypes(call, notes, setting)
    _read_offloading(call, notes, setting)
    if version == 1:
        _read_ahead(call, notes, setting)
        policy = call.value(4, "auto_wrap_policy")
        _read_units(policy, call, notes, setting) if policy is not None else loop.setdefault(
            _UNITS, setting.with_value("no_wrap")
        )
    elif isinstance(value, Part):
        is_layer = re.search(r"(layers?|blocks?|h)\.\?$", value.name) is not None
        if not is_layer:
            sentence = f"{call.where}: {short_text(call.node)}: units other than layers are counted with the root."
            notes.doubt(sentence, "communication", direction="less", key="parallel.fsdp_units")
        loop[_UNITS] = setting.with_value("blocks" if is_layer else "other_wrap")
    elif _UNITS not in loop:
        loop[_UNITS] = setting.with_value("no_wrap")
    elif value is UNKNOWN:
        loop[_UNITS] = setting.with_value("other_wrap")
    for name in ("ignored_modules", "ignored_states", "ignored_parameters", "ignored_params"):
        if call.value(None, name) not in (None, []):
            _unsharded(notes, call, f"{name}=... leaves parameters unsharded")
    return put_on_gpu(call, sharded=True)


def _read_reshard(call: Call, notes: Notes, setting: Setting) -> None:
    name = "reshard_after_forward"
    given = plain(call.value(None, name))
    if isinstance(given, bool):
        notes.own_loop.setdefault("fsdp_reshard_after_forward", setting.with_value(given))
    elif given is not None:
        notes.own_loop.setdefault("fsdp_reshard_after_forward", setting.with_value(False))
        _doubt(notes, call, name, ("communication",), "less")


def _read_ahead(call: Call, notes: Notes, setting: Setting) -> None:
    """Read how far FSDP1 gathers ahead: ``backward_prefetch`` and ``limit_all_gathers``."""
    prefetch, limit = call.value(5, "backward_prefetch", default=False), call.value(None, "limit_all_gathers")
    if prefetch is None or isinstance(plain(prefetch), str):
        notes.own_loop.setdefault("fsdp_backward_prefetch", setting.with_value(plain(prefetch) or "no_prefetch"))
    elif prefetch is not False:
        _doubt(notes, call, "backward_prefetch", ("communication",), "less", key="parallel.fsdp_backward_prefetch")
    if isinstance(limit, bool):
        notes.own_loop.setdefault("fsdp_limit_all_gathers", setting.with_value(limit))
    elif limit is not None:
        _doubt(notes, call, "limit_all_gathers", ("communication",), "more", key="parallel.limit_all_gathers")


def _read_units(policy: Any, call: Call, notes: Notes, setting: Setting) -> None:
    """Read what FSDP1's policy wraps: blocks by their class, or by size."""
    function = policy.function if isinstance(policy, Bound) else policy
    kwargs = policy.kwargs if isinstance(policy, Bound) else {}
    classes = policy.classes if isinstance(policy, _UnitPolicy) else kwargs.get("transformer_layer_cls")
    loop, named = notes.own_loop, getattr(function, "name", "")
    if named == "size_based_auto_wrap_policy":
        smallest = kwargs.get("min_num_params", _DEFAULT_SIZE)
        known = type(smallest) in (int, float)
        loop[_UNITS] = setting.with_value("size_based_wrap")
        loop["fsdp_min_num_params"] = setting.with_value(int(smallest) if known else _DEFAULT_SIZE)
        if not known:
            _doubt(notes, call, "auto_wrap_policy", ("communication",), "either", key="parallel.fsdp_units")
        return
    found = (call.run.iterate(classes) if not isinstance(classes, Name | Class) else [classes]) or []
    model = next(models_in(call.value(0, "module")), None)
    if found and all(_is_block_class(each, model) for each in found):
        loop[_UNITS] = setting.with_value("blocks")
    elif found and all(isinstance(each, Name) and not _BLOCK_CLASS.fullmatch(each.name) for each in found):
        loop[_UNITS] = setting.with_value("transformer_based_wrap")
        loop["fsdp_transformer_layer_cls_to_wrap"] = setting.with_value([each.name for each in found])
    else:
        loop[_UNITS] = setting.with_value("other_wrap")


def _is_block_class(kind: Any, model: Model | None) -> bool:
    """Return True for the class of a model's blocks, by its name and the family of the model."""
    if not isinstance(kind, Name | Class) or not _BLOCK_CLASS.fullmatch(kind.name):
        return False
    table = model.config.table() if model is not None and model.config is not None else None
    family = re.sub(r"_text$|_", "", str((table or {}).get("model_type") or ""))
    return isinstance(kind, Class) or not family or kind.name.lower().startswith(family)


def settle_sharding(notes: Notes, trained: Model | None) -> None:
    """Drop FSDP that shards another model than the trained one; without a root, nothing is counted as sharded."""
    setting = notes.own_loop.get("script_own_sharding")
    if setting is None or any(next(models_in(value), None) is None for value in notes.sharded):
        return
    if trained is not None and not any(trained in models_in(value) for value in notes.sharded):
        for name in [name for name in notes.own_loop if name.startswith(("fsdp_", "use_fsdp", "script_"))]:
            del notes.own_loop[name]
    elif all(isinstance(value, Part) for value in notes.sharded):
        sentence = f"{setting.origin}: parameters outside the wrapped modules are not sharded; nothing is counted so."
        notes.own_loop["fsdp_version"] = setting.with_value(1)
        notes.own_loop["fsdp_sharding_strategy"] = setting.with_value("NO_SHARD")
        notes.doubt(sentence, *MODEL_STATES, direction="less", key="parallel.strategy")


def _read_strategy(call: Call, notes: Notes, setting: Setting) -> None:
    """Read FSDP1's sharding strategy, and the mesh; what is not known may shard nothing."""
    strategy = call.value(2 if _VERSION[call.name] == 1 else None, "sharding_strategy")
    if isinstance(plain(strategy), str):
        notes.own_loop.setdefault("fsdp_sharding_strategy", setting.with_value(plain(strategy)))
    elif strategy is not None:
        _unsharded(notes, call, "its sharding strategy is only known when the script runs")
    mesh = call.value(None, "mesh", "device_mesh")
    if isinstance(mesh, _Mesh) and len(mesh.sizes) == 1:
        return
    if isinstance(mesh, _Mesh) and len(mesh.sizes) == 2 and all(type(size) is int for size in mesh.sizes):
        for name, size in zip(("replicate", "shard"), mesh.sizes, strict=True):
            notes.own_loop.setdefault(f"parallelism_config_dp_{name}_size", setting.with_value(size))
    elif mesh is not None:
        _unsharded(notes, call, "the ranks that share its shards are only known when the script runs")


def _unsharded(notes: Notes, call: Call, sentence: str) -> None:
    """Count nothing as sharded, and less as possible."""
    setting = Setting(value=1, origin=f"{call.where}: {call.name}(...)")
    notes.own_loop["fsdp_version"] = setting
    notes.own_loop["fsdp_sharding_strategy"] = setting.with_value("NO_SHARD")
    sentence = f"{setting.origin}: {sentence}; the figure assumes no sharding."
    notes.doubt(sentence, *MODEL_STATES, direction="less", key="parallel.strategy")


def _read_dtypes(call: Call, notes: Notes, setting: Setting) -> None:
    """Read the dtypes of gathered parameters and reduced gradients."""
    policy = call.value(6 if _VERSION[call.name] == 1 else None, "mixed_precision", "mp_policy")
    if policy is None:
        return
    if not isinstance(policy, DtypePolicy) or UNKNOWN in (policy.gathered, policy.reduced):
        name = "mixed_precision" if "mixed_precision" in call.kwargs else "mp_policy"
        _doubt(notes, call, name, (*MODEL_STATES, "activations", "communication"), "either", key="training.precision")
        return
    if policy.gathered is None and policy.reduced is None:
        return
    for name, value in (
        ("mixed_precision", MIXED_PRECISION.get(str(policy.gathered))),
        ("script_gathered_dtype", policy.gathered),
        ("script_reduce_dtype", policy.reduced or policy.gathered),
    ):
        if value is not None:
            notes.own_loop[name] = setting.with_value(value)


def _read_offloading(call: Call, notes: Notes, setting: Setting) -> None:
    offload = call.value(3 if _VERSION[call.name] == 1 else None, "cpu_offload", "offload_policy")
    if offload is True:
        notes.own_loop.setdefault("fsdp_offload_params", setting)
    elif offload not in (None, False):
        name = "cpu_offload" if "cpu_offload" in call.kwargs else "offload_policy"
        _doubt(notes, call, name, MODEL_STATES, "less", key="parallel.cpu_offload")


# Megatron-FSDP, once nvFSDP; names and defaults: ``megatron_fsdp/fully_shard.py`` of Megatron-LM (core 0.20).


_OWN_ARGUMENTS = {
    *("zero_dp_strategy", "fsdp_unit_modules", "dp_shard_dim", "outer_dp_sharding_strategy", "nvfsdp_unit_modules"),
    *("data_parallel_sharding_strategy", "init_model_with_meta_device", "init_nvfsdp_with_meta_device"),
}


def _shard_with_megatron(call: Call, notes: Notes) -> Any:
    """Follow ``fully_shard_model(model, ...)``, and ``fully_shard(model, optimizer, ...)``, which returns both."""
    setting = Setting(value=True, origin=f"{call.where}: {call.name}(...)")
    own: dict[str, Any] = {"megatron_fsdp": True, "megatron_fsdp_main_weights": True}
    words = ("zero_dp_strategy", "data_parallel_sharding_strategy")
    for key, table, names in (
        ("megatron_fsdp_sharding", MEGATRON_SHARDING, words),
        ("megatron_fsdp_outer", MEGATRON_OUTER_SHARDING, ("outer_dp_sharding_strategy",)),
    ):
        value = plain(call.value(None, *names))
        if value is UNKNOWN:
            _doubt(notes, call, names[0], MODEL_STATES, "either", key="parallel.sharding")
        elif (known := table.get(str(value).lower())) is not None:
            own[key] = known
    if call.value(None, "fsdp_unit_modules", "nvfsdp_unit_modules") is None:
        own["megatron_fsdp_units"] = "model"
    if any(call.value(None, name) is True for name in ("nccl_ub", "fsdp_double_buffer")):
        own["megatron_fsdp_double_buffer"] = True
    policy = call.value(None, "mixed_precision_policy")
    if isinstance(policy, DtypePolicy):
        own["megatron_fsdp_main_weights"] = policy.has_main_weights
    elif call.value(None, "preserve_fp32_weights", default=True) is False:
        own["megatron_fsdp_main_weights"] = False
    for name, value in own.items():
        notes.own_loop.setdefault(name, setting.with_value(value))
    if call.value(None, "keep_fp8_transpose_cache", default=False) is not False:
        sentence = f"{call.where}: keep_fp8_transpose_cache keeps transposed copies of FP8 weights; none are counted."
        notes.doubt(sentence, "weights", direction="more")
    model = put_on_gpu(call, sharded=True)
    optimizer = call.value(1, "optimizer") if call.name == "fully_shard" else None
    return (model, optimizer) if isinstance(optimizer, Thing) else model


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


def _split_tensors(call: Call, notes: Notes) -> Any:
    """Follow ``parallelize_module(model, mesh, plan)``, whose plan is not read."""
    sentence = f"{call.where}: {call.name}(...) is not read: tensor-parallel ranks are not counted."
    notes.doubt(sentence, *MODEL_STATES, "activations", direction="less", key="parallel.tensor")
    return call.value(0, "module", default=UNKNOWN)


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
    **dict.fromkeys((*_VERSION, "fully_shard_model"), shard),
    **dict.fromkeys(("DDP", "DistributedDataParallel", "DataParallel"), replicate),
    "DistributedDataParallelKwargs": _ddp_arguments,
    "AutocastKwargs": _autocast_arguments,
    **dict.fromkeys(("MixedPrecisionPolicy", "MixedPrecision"), lambda call, _: DtypePolicy(call)),
    "CPUOffload": lambda call, _: call.value(0, "offload_params", default=False),
    "CPUOffloadPolicy": lambda call, _: True,
    "OffloadPolicy": lambda call, _: False,
    "ModuleWrapPolicy": lambda call, _: _UnitPolicy(call.value(0, "module_classes")),
    "init_device_mesh": _make_mesh,
    "parallelize_module": _split_tensors,
    "autocast": _autocast,
    "Accelerator": make_accelerator,
    "FullyShardedDataParallelPlugin": make_fsdp_plugin,
    "DeepSpeedPlugin": lambda call, _: Plugin(call, "use_deepspeed", _DEEPSPEED_ARGUMENTS),
    "ParallelismConfig": lambda call, _: Plugin(call, None, {name: f"parallelism_config_{name}" for name in _SIZES}),
    "GradientAccumulationPlugin": lambda call, _: Plugin(
        call, None, {"num_steps": "gradient_accumulation_steps", "sync_each_batch": "sync_each_batch"}
    ),
    "Fabric": _make_fabric,
    "find_executable_batch_size": _search_batch,
}
"""Functions and classes by the last part of their names."""
