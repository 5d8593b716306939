"""FSDP in a script's own loop: what it wraps, how it shards, and the dtypes and offloading of its policies."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...source.evidence import MEGATRON_OUTER_SHARDING, MEGATRON_SHARDING, MODEL_STATES, Component, Setting
from ..models.configs import Notes
from ..models.model import Model, Part, models_in
from ..python.values import UNKNOWN, Call, External, Instance, Method, ScriptClass, Thing, plain, short_text

# Megatron-FSDP, once nvFSDP, in a script's own loop: its strategy, units, buffers and dtypes.
#
# Names and defaults: ``megatron_fsdp/fully_shard.py`` and ``mixed_precision.py`` of Megatron-LM (core 0.20).


_OWN_ARGUMENTS = {
    *("zero_dp_strategy", "fsdp_unit_modules", "dp_shard_dim", "outer_dp_sharding_strategy", "nvfsdp_unit_modules"),
    *("data_parallel_sharding_strategy", "init_model_with_meta_device", "init_nvfsdp_with_meta_device"),
}


class MainDtypes(Thing):
    """``megatron_fsdp.MixedPrecisionPolicy(main_params_dtype=...)``: whether there is an fp32 copy of the weights."""

    def __init__(self, call: Call) -> None:
        self.has_main_weights = call.value(0, "main_params_dtype", default=True) is not None


def is_megatron_fsdp(call: Call) -> bool:
    """Return True for a call of Megatron-FSDP's functions, whose ``fully_shard`` has the name of torch's."""
    return call.name in ("fully_shard_model", "nvfsdp") or bool(_OWN_ARGUMENTS & set(call.kwargs))


def shard_with_megatron(call: Call, notes: Notes) -> Any:
    """Follow ``fully_shard_model(model, ...)``, and ``fully_shard(model, optimizer, ...)``, which returns both."""
    setting = Setting(value=True, origin=f"{call.where}: {call.name}(...)")
    model = call.value(0, "module", default=UNKNOWN)
    own: dict[str, Any] = {"megatron_fsdp": True, "megatron_fsdp_main_weights": True}
    names = ("zero_dp_strategy", "data_parallel_sharding_strategy")
    _take_word(call, own, "megatron_fsdp_sharding", MEGATRON_SHARDING, *names)
    _take_word(call, own, "megatron_fsdp_outer", MEGATRON_OUTER_SHARDING, "outer_dp_sharding_strategy")
    units = call.value(None, "fsdp_unit_modules", "nvfsdp_unit_modules")
    if units is None:
        own["megatron_fsdp_units"] = "model"
    if any(call.value(None, name) is True for name in ("nccl_ub", "fsdp_double_buffer")):
        own["megatron_fsdp_double_buffer"] = True
    policy = call.value(None, "mixed_precision_policy")
    if isinstance(policy, MainDtypes):
        own["megatron_fsdp_main_weights"] = policy.has_main_weights
    elif call.value(None, "preserve_fp32_weights", default=True) is False:
        own["megatron_fsdp_main_weights"] = False
    for name, value in own.items():
        notes.own_loop.setdefault(name, setting.with_value(value))
    if call.value(None, "keep_fp8_transpose_cache", default=False) is not False:
        sentence = f"{call.where}: keep_fp8_transpose_cache keeps transposed copies of FP8 weights; none are counted."
        notes.doubt(sentence, "weights", direction="more")
    for each in models_in(model):
        if isinstance(each, Model):
            each.on_gpu, each.sharded = True, True
    optimizer = call.value(1, "optimizer") if call.name == "fully_shard" else None
    return (model, optimizer) if isinstance(optimizer, Thing | Instance) else model


def _take_word(call: Call, own: dict[str, Any], key: str, words: dict[str, str], *names: str) -> None:
    value = plain(call.value(None, *names))
    known = words.get(str(value).lower())
    if known is not None:
        own[key] = known


# DDP in scripts: ``DistributedDataParallel(...)``, and the handlers that pass its arguments through accelerate.
#
# Of its arguments ``gradient_as_bucket_view`` alone decides about bytes that count. Buckets hold every gradient once,
# whatever ``bucket_cap_mb`` is; ``static_graph`` and ``find_unused_parameters`` decide when they are rebuilt, and the
# latter's map has 4 bytes per parameter tensor (torch 2.13, ``torch/csrc/distributed/c10d/reducer.cpp``).


_VIEWS = "gradient_as_bucket_view"
_HOOK = "ddp_comm_hook"


class Handler(Thing):
    """One of accelerate's ``KwargsHandler``s: its settings, and sentences on what is not known of it."""

    def __init__(self, settings: Mapping[str, Setting], sentences: Mapping[str, str]) -> None:
        self.settings = settings
        self.sentences = sentences
        """By the setting that is not known."""


def put_on_gpu(call: Call) -> Any:
    """Note that what is wrapped is on the GPU, and return it."""
    model = call.value(0, "module", default=UNKNOWN)
    for each in models_in(model):
        if isinstance(each, Model):
            each.on_gpu = True if each.on_gpu is None else each.on_gpu
            each.sharded = each.sharded or not call.name.endswith(("DDP", "DataParallel"))
    return model


def replicate(call: Call, notes: Notes) -> Any:
    """Follow ``DDP(model)``."""
    found = ddp_arguments(call)
    for name, setting in found.settings.items():
        notes.own_loop.setdefault(name, setting)
    _doubt_replicas(found, notes)
    if call.value(None, "mixed_precision") is not None:
        shown = f"{call.name}(mixed_precision={short_text(call.expression(None, 'mixed_precision'))})"
        sentence = f"{call.where}: {shown}: copies of the weights in another dtype are not counted."
        notes.doubt(sentence, "weights", direction="more")
        notes.doubt(sentence, "activations", "communication", direction="either")
    return put_on_gpu(call)


def ddp_arguments(call: Call) -> Handler:
    """Return DDP's arguments that memory depends on, as ``DistributedDataParallelKwargs`` takes them too."""
    settings: dict[str, Setting] = {}
    sentences: dict[str, str] = {}
    for name, renamed in ((_VIEWS, _VIEWS), ("comm_hook", _HOOK)):
        if name not in call.kwargs:
            continue
        setting, value = call.setting(name), plain(call.kwargs[name])
        if setting is not None and (name != _VIEWS or isinstance(value, bool)):
            settings[renamed] = setting
        else:
            shown = f"{call.name}({name}={short_text(call.nodes.get(name))})"
            sentences[renamed] = f"{call.where}: {shown} is only known when the script runs."
    if call.unknown_table is not None:
        sentences[_VIEWS] = f"{call.where}: {call.name}(**...) is only known when the script runs."
    return Handler(settings, sentences)


def take_handlers(value: Any, call: Call, notes: Notes) -> None:
    """Take the settings of ``Accelerator(kwargs_handlers=[...])``."""
    handlers = call.run.iterate(value)
    if handlers is None:
        sentence = f"{call.where}: Accelerator(kwargs_handlers=...) is only known when the script runs."
        notes.doubt(sentence, "communication", direction="less", key=f"parallel.{_VIEWS}")
        return
    for handler in handlers:
        if isinstance(handler, Handler):
            for name, setting in handler.settings.items():
                notes.accelerate.setdefault(name, setting)
            _doubt_replicas(handler, notes)


def _doubt_replicas(found: Handler, notes: Notes) -> None:
    """Note what is not known: views of the buckets take less, a communication hook may take more."""
    for name, sentence in found.sentences.items():
        if name == "autocast":
            notes.doubt(sentence, "activations", key="training.precision")
        elif name == _VIEWS:
            notes.doubt(sentence, "communication", direction="less", key=f"parallel.{_VIEWS}")
        else:
            notes.doubt(sentence, "communication", direction="more")


def autocast_arguments(call: Call, notes: Notes) -> Any:
    """Follow ``AutocastKwargs(enabled=False)``, with which the step runs in the type of the weights."""
    enabled = call.value(0, "enabled", default=True)
    shown = f"{call.name}(enabled={short_text(call.expression(0, 'enabled'))})" if enabled is not True else ""
    return Handler({}, {} if enabled is True else {"autocast": f"{call.where}: {shown} is not read."})


REPLICA_FUNCTIONS: Mapping[str, Any] = {
    **dict.fromkeys(("DDP", "DistributedDataParallel", "DataParallel"), replicate),
    "DistributedDataParallelKwargs": lambda call, notes: ddp_arguments(call),
    "AutocastKwargs": autocast_arguments,
}
"""Functions and classes by the last part of their names."""


FSDP_VERSION = {"FSDP": 1, "FullyShardedDataParallel": 1, "fully_shard": 2}
MIXED_PRECISION = {
    **dict.fromkeys(("bfloat16", "bf16", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("float16", "half", "fp16", "16-mixed", "16"), "fp16"),
}
_BLOCK_CLASS = re.compile(r"(?!.*(?:Moe|MoE|MLP|Attention))\w*(?:Block|Layer)")
_BLOCK_NAME = re.compile(r"(?:.*\.)?\d+")
_UNITS = "fsdp_auto_wrap_policy"
_SIZE_BASED, _BY_CLASS, _OTHER = "size_based_wrap", "transformer_based_wrap", "other_wrap"
_DEFAULT_SIZE = 100_000_000
"""``min_num_params`` of ``size_based_auto_wrap_policy`` (torch/distributed/fsdp/wrap.py)."""


class DtypePolicy(Thing):
    """``MixedPrecision(...)`` or ``MixedPrecisionPolicy(...)``: the dtypes of what is gathered and reduced."""

    def __init__(self, call: Call) -> None:
        self.gathered, self.reduced = (
            plain(call.value(at, name)) for at, name in enumerate(("param_dtype", "reduce_dtype"))
        )


class UnitPolicy(Thing):
    """``ModuleWrapPolicy({LlamaDecoderLayer})``: the classes that become units."""

    def __init__(self, call: Call) -> None:
        self.classes = call.value(0, "module_classes")


class Mesh(Thing):
    """``init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))``: its sizes by name."""

    def __init__(self, sizes: list[Any], names: list[Any]) -> None:
        self.sizes = sizes
        self._names = names

    def item(self, key: Any) -> Any:
        """Return the part of it with some of its dimensions."""
        wanted = list(key) if isinstance(key, list | tuple) else [key]
        if not all(each in self._names for each in wanted) or len(self._names) != len(self.sizes):
            return UNKNOWN
        return Mesh([self.sizes[self._names.index(each)] for each in wanted], wanted)


def _dtype_policy(call: Call) -> Thing:
    """Return torch's policy, or Megatron-FSDP's of the same name."""
    return MainDtypes(call) if any(name.startswith("main_") for name in call.kwargs) else DtypePolicy(call)


def make_mesh(call: Call) -> Any:
    """Follow ``init_device_mesh``."""
    sizes, names = call.run.iterate(call.value(1, "mesh_shape")), call.run.iterate(call.value(2, "mesh_dim_names"))
    return Mesh(sizes, names or []) if sizes else UNKNOWN


def shard(call: Call, notes: Notes) -> Any:
    """Follow ``FSDP(model)`` and ``fully_shard(model)``."""
    if is_megatron_fsdp(call):
        return shard_with_megatron(call, notes)
    first, version = not notes.sharded, FSDP_VERSION[call.name]
    value = call.value(0, "module", default=UNKNOWN)
    notes.sharded.append(value if isinstance(value, Thing | list | tuple) else UNKNOWN)
    setting = Setting(value=True, origin=f"{call.where}: {call.name}(...)")
    loop = notes.own_loop
    loop.setdefault("use_fsdp", setting)
    loop.setdefault("script_own_sharding", setting)
    loop.setdefault("fsdp_version", setting.with_value(version))
    if "reshard_after_forward" in call.kwargs and (found := call.setting("reshard_after_forward")) is not None:
        if isinstance(found.value, bool):
            loop.setdefault("fsdp_reshard_after_forward", found)
        elif found.value is not None:
            _doubt(notes, call, "reshard_after_forward", ("communication",), "more")
    elif "reshard_after_forward" in call.kwargs:
        loop.setdefault("fsdp_reshard_after_forward", setting.with_value(False))
        _doubt(notes, call, "reshard_after_forward", ("communication",), "less")
    if first or version == 1:
        _read_strategy(call, notes, setting)
        _read_dtypes(call, notes, setting)
        _read_offloading(call, notes, setting)
    policy = call.value(4 if version == 1 else None, "auto_wrap_policy")
    if policy is not None and _UNITS not in loop:
        _read_units(policy, call, notes, setting)
    if version == 1:
        _read_ahead(call, notes, setting)
    for name in ("ignored_modules", "ignored_states", "ignored_parameters", "ignored_params"):
        ignored = call.value(None, name)
        if ignored is not None and ignored != [] and not _is_small(ignored):
            _unsharded(notes, call, f"{name}=... leaves parameters unsharded")
    return put_on_gpu(call)


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
    """Read what FSDP1's policy wraps."""
    loop, value = notes.own_loop, call.value(0, "module", default=UNKNOWN)
    units = loop[_UNITS] = setting.with_value(_units_of_policy(policy, call, value))
    if units.value == _SIZE_BASED:
        smallest = policy.kwargs.get("min_num_params", _DEFAULT_SIZE) if isinstance(policy, Method) else _DEFAULT_SIZE
        known = type(smallest) in (int, float)
        loop["fsdp_min_num_params"] = setting.with_value(int(smallest) if known else _DEFAULT_SIZE)
        if not known:
            _doubt(notes, call, "auto_wrap_policy", ("communication",), "either", key="parallel.fsdp_units")
    elif units.value == _BY_CLASS:
        classes = call.run.iterate(_classes_of(policy)) or []
        loop["fsdp_transformer_layer_cls_to_wrap"] = setting.with_value([each.name for each in classes])


def _read_strategy(call: Call, notes: Notes, setting: Setting) -> None:
    """Read FSDP1's sharding strategy, and the mesh; what is not known may shard nothing."""
    strategy = call.value(2 if FSDP_VERSION[call.name] == 1 else None, "sharding_strategy")
    if strategy is not None:
        word = plain(strategy)
        if isinstance(word, str):
            notes.own_loop.setdefault("fsdp_sharding_strategy", setting.with_value(word))
        else:
            _unsharded(notes, call, "its sharding strategy is only known when the script runs")
    mesh = call.value(None, "mesh", "device_mesh")
    if isinstance(mesh, Mesh) and len(mesh.sizes) == 1:
        return
    if isinstance(mesh, Mesh) and len(mesh.sizes) == 2 and all(type(size) is int for size in mesh.sizes):
        for name, size in zip(("replicate", "shard"), mesh.sizes, strict=True):
            notes.own_loop.setdefault(f"parallelism_config_dp_{name}_size", setting.with_value(size))
    elif mesh is not None:
        _unsharded(notes, call, "the ranks that share its shards are only known when the script runs")


def _unsharded(notes: Notes, call: Call, sentence: str) -> None:
    """Count nothing as sharded, and less as possible."""
    notes.own_loop["fsdp_version"] = Setting(value=1, origin=f"{call.where}: {call.name}(...)")
    notes.own_loop["fsdp_sharding_strategy"] = Setting(value="NO_SHARD", origin=f"{call.where}: {call.name}(...)")
    notes.doubt(
        f"{call.where}: {call.name}(...): {sentence}; the figure assumes no sharding.",
        *MODEL_STATES,
        direction="less",
        key="parallel.strategy",
    )


def _read_dtypes(call: Call, notes: Notes, setting: Setting) -> None:
    """Read the dtypes of gathered parameters and reduced gradients."""
    policy = call.value(6 if FSDP_VERSION[call.name] == 1 else None, "mixed_precision", "mp_policy")
    if policy is None:
        return
    if not isinstance(policy, DtypePolicy) or UNKNOWN in (policy.gathered, policy.reduced):
        name = "mixed_precision" if "mixed_precision" in call.kwargs else "mp_policy"
        components: tuple[Component, ...] = (*MODEL_STATES, "activations", "communication")
        _doubt(notes, call, name, components, "either", key="training.precision")
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
    offload = call.value(3 if FSDP_VERSION[call.name] == 1 else None, "cpu_offload", "offload_policy")
    if offload is True:
        notes.own_loop.setdefault("fsdp_offload_params", setting)
    elif offload not in (None, False):
        name = "cpu_offload" if "cpu_offload" in call.kwargs else "offload_policy"
        _doubt(notes, call, name, MODEL_STATES, "less", key="parallel.cpu_offload")


def _doubt(
    notes: Notes, call: Call, name: str, components: tuple[Component, ...], direction: Any, *, key: str | None = None
) -> None:
    shown = f"{call.name}({name}={short_text(call.expression(None, name))})"
    notes.doubt(f"{call.where}: {shown} is not read.", *components, direction=direction, key=key)


def _units_of_policy(policy: Any, call: Call, module: Any) -> str:
    """Return the units that FSDP1's policy makes."""
    function = policy.function if isinstance(policy, Method) else policy
    if isinstance(function, External) and function.name == "size_based_auto_wrap_policy":
        return _SIZE_BASED
    by_class = isinstance(function, External) and function.name == "transformer_auto_wrap_policy"
    if not by_class and not isinstance(policy, UnitPolicy):
        return _OTHER
    classes = _classes_of(policy)
    found = call.run.iterate(classes) if not isinstance(classes, External | ScriptClass) else [classes]
    if found and all(_is_block_class(each, module) for each in found):
        return "blocks"
    named = bool(found) and all(isinstance(each, External) for each in found)
    return _BY_CLASS if named and FSDP_VERSION[call.name] == 1 and not _of_another_model(found, module) else _OTHER


def _classes_of(policy: Any) -> Any:
    """Return the classes that a policy names."""
    if isinstance(policy, UnitPolicy):
        return policy.classes
    if not isinstance(policy, Method):
        return None
    return policy.kwargs.get("transformer_layer_cls", policy.kwargs.get("module_classes"))


def _of_another_model(classes: list[Any], module: Any) -> bool:
    """Return True if a class is a block's, but not of this model: it wraps nothing."""
    return any(_BLOCK_CLASS.fullmatch(each.name) and not _is_block_class(each, module) for each in classes)


def _is_block_class(kind: Any, module: Any) -> bool:
    """Return True for the class of a model's blocks, by its name and the family of the model."""
    if not isinstance(kind, External | ScriptClass) or not _BLOCK_CLASS.fullmatch(kind.name):
        return False
    if isinstance(kind, ScriptClass):
        return True
    model = next((each for each in models_in(module) if isinstance(each, Model)), None)
    table = model.config.table() if model is not None and model.config is not None else None
    family = re.sub(r"_text$|_", "", str((table or {}).get("model_type") or ""))
    return not family or kind.name.lower().startswith(family)


def _is_small(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else [value]
    return all(
        isinstance(each, Part) and isinstance(each.owner, Model) and 0 < each.owner.size_of(each.prefixes) < 0.01
        for each in items
    )


def settle_sharding(notes: Notes, trained: Any) -> None:
    """Decide which units the script's own FSDP makes of the model that it trains, when all of it was followed."""
    if "script_own_sharding" not in notes.own_loop:
        return
    own = [each for each in notes.sharded if trained is None or each is UNKNOWN or trained in models_in(each)]
    if not own:  # a model beside the trained one is sharded
        for name in [name for name in notes.own_loop if name.startswith(("fsdp_", "use_fsdp", "script_"))]:
            del notes.own_loop[name]
        return
    if _UNITS not in notes.own_loop:
        setting = notes.own_loop["script_own_sharding"]
        notes.own_loop[_UNITS] = setting.with_value(_units_of_modules(own, notes, setting))


def _units_of_modules(wrapped: list[Any], notes: Notes, setting: Setting) -> str:
    """Return the units that wrapping one module after another makes."""
    parts = [each for each in _flat(wrapped) if isinstance(each, Part) and each.prefixes != ("",)]
    roots = [each for each in _flat(wrapped) if each not in parts and each is not UNKNOWN]
    if not roots and UNKNOWN not in wrapped:
        sentence = f"{setting.origin}: parameters outside the wrapped modules are not sharded; this is not counted."
        notes.own_loop["fsdp_version"] = setting.with_value(1)
        notes.own_loop["fsdp_sharding_strategy"] = setting.with_value("NO_SHARD")
        notes.doubt(sentence, *MODEL_STATES, direction="less", key="parallel.strategy")
    kinds = [each.kind for each in roots if isinstance(each, Instance)]
    if not parts:
        alike = any(kinds.count(kind) > 1 and len(kinds) > kinds.count(kind) for kind in kinds)
        return "blocks" if alike else "no_wrap" if len(wrapped) == 1 else _OTHER
    names = {part.owner.full_name(prefix) for part in parts for prefix in part.prefixes if not part.unknown}
    blocks = {name for name in names if _BLOCK_NAME.fullmatch(name)}
    if not blocks or not _covers(blocks, parts[0]):
        return _OTHER
    if names != blocks:
        notes.doubt(
            f"{setting.origin}: units other than blocks are counted with the root, which is always gathered.",
            "communication",
            direction="less",
            key="parallel.fsdp_units",
        )
    return "blocks"


def _covers(blocks: set[str], part: Part) -> bool:
    """Return True if blocks are all those of a model."""
    owner = part.owner
    shapes = owner.shapes()
    stacks: set[str] = set()
    for name in shapes or ():
        match = re.match(r"((?:.*?\.)?\d+)\.", name)
        if match:
            stacks.add(match[1])
    return bool(stacks) and stacks <= blocks


def _flat(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(list(value))
        else:
            yield value


def split_tensors(call: Call, notes: Notes) -> Any:
    """Follow ``parallelize_module(model, mesh, plan)``, whose plan is not read."""
    sentence = f"{call.where}: {call.name}(...) is not read: tensor-parallel ranks are not counted."
    notes.doubt(sentence, *MODEL_STATES, "activations", direction="less", key="parallel.tensor")
    return call.value(0, "module", default=UNKNOWN)


def autocast(call: Call, notes: Notes) -> Any:
    """Follow ``autocast("cuda", torch.bfloat16)``."""
    if call.value(None, "enabled", default=True) is False:
        return UNKNOWN
    value = call.value(1, "dtype")
    if value is None and isinstance(call.value(0), External):
        value = call.value(0)  # torch.cuda.amp.autocast(torch.bfloat16)
    word = str(plain(value)) if value is not None else "float16"
    if word in MIXED_PRECISION:
        origin = f"{call.where}: {call.name}(...)"
        notes.own_loop.setdefault("mixed_precision", Setting(value=MIXED_PRECISION[word], origin=origin))
    elif value is not None and plain(value) is UNKNOWN:
        sentence = f"{call.where}: {short_text(call.node)}: its dtype is only known when the script runs."
        notes.doubt(sentence, "activations", key="training.precision")
    return UNKNOWN


SHARDING_FUNCTIONS: Mapping[str, Any] = {
    **dict.fromkeys(FSDP_VERSION, shard),
    "fully_shard_model": shard_with_megatron,
    **REPLICA_FUNCTIONS,
    **dict.fromkeys(("MixedPrecisionPolicy", "MixedPrecision"), lambda call, _: _dtype_policy(call)),
    "CPUOffload": lambda call, _: call.value(0, "offload_params", default=False),
    "CPUOffloadPolicy": lambda call, _: True,
    "OffloadPolicy": lambda call, _: False,
    "ModuleWrapPolicy": lambda call, _: UnitPolicy(call),
    "init_device_mesh": lambda call, _: make_mesh(call),
    "parallelize_module": split_tensors,
    "autocast": autocast,
}
"""Functions and classes by the last part of their names."""
