"""accelerate in a script: ``Accelerator(...)`` and its plugins, by the names of accelerate's flags."""

from collections.abc import Mapping
from typing import Any

from ...source import MODEL_STATES, Setting, default_setting
from ..models import Model, Notes, models_in
from ..python import UNKNOWN, Attribute, Call, Function, Thing, short_text
from .replicas import take_handlers
from .sharding import DtypePolicy

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
_STARTING_BATCH = 128
"""accelerate's default (``utils/memory.py``)."""
_UNREAD = ("deepspeed_plugins", "megatron_lm_plugin", "torch_tp_plugin")


class Plugin(Thing):
    """A plugin of accelerate: its settings, and sentences on what is not known of it."""

    def __init__(self, call: Call, switch: str | None, names: Mapping[str, str]) -> None:
        self.settings: dict[str, Setting] = {}
        self.sentences: list[str] = []
        origin = f"{call.where}: {call.name}(...)"
        if switch is not None:
            self.settings[switch] = Setting(value=True, origin=origin)
        for at, name in enumerate(call.args):
            if at or call.name != "GradientAccumulationPlugin":
                self.sentences.append(f"{call.where}: {call.name}({short_text(call.nodes.get(at))}) is not read.")
            elif type(name) is int:
                self.settings[names["num_steps"]] = Setting(value=name, origin=origin)
        for name in call.kwargs:
            self._take(call, name, names.get(name))
        if call.unknown_table is not None:
            self.sentences.append(f"{call.where}: {call.name}(**...) is only known when the script runs.")

    def _take(self, call: Call, name: str, renamed: str | None) -> None:
        value = call.kwargs[name]
        if value is None or name in _WITHOUT_EFFECT:
            return
        setting = call.setting(name)
        if name == "auto_wrap_policy" and setting is None:
            setting = Setting(value="other_wrap", origin=f"{call.where}: {call.name}({name}=...)")
        if renamed is None or setting is None:
            shown = short_text(call.nodes.get(name))
            self.sentences.append(f"{call.where}: {call.name}({name}={shown}) is not read.")
        else:
            self.settings[renamed] = setting


def make_fsdp_plugin(call: Call, notes: Notes) -> Any:
    """Follow ``FullyShardedDataParallelPlugin(...)``, which wraps the whole model as one unit unless told otherwise."""
    found = Plugin(call, "use_fsdp", _FSDP_ARGUMENTS)
    default = default_setting("no_wrap", "the default of FullyShardedDataParallelPlugin")
    found.settings.setdefault("fsdp_auto_wrap_policy", default)
    policy = call.value(None, "mixed_precision_policy")
    if policy is not None and not (isinstance(policy, DtypePolicy) and policy.reduced == policy.gathered):
        found.sentences.append(f"{call.where}: {call.name}(mixed_precision_policy=...) is not read.")
    return found


def _plugin(switch: str | None, names: Mapping[str, str]) -> Any:
    return lambda call, notes: Plugin(call, switch, names)


class AcceleratorObject(Thing):
    """``Accelerator(...)`` or lightning's ``Fabric``."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def attribute(self, name: str) -> Any:
        """Return a property or method."""
        if name in ("is_main_process", "is_local_main_process", "sync_gradients"):
            return True
        if name in ("process_index", "local_process_index"):
            return 0
        return UNKNOWN if name in ("device", "state", "num_processes") else Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Follow ``prepare``, which returns what it is given, and ``backward``."""
        if call.name in ("prepare", "setup", "prepare_model"):
            for value in call.args:
                for model in models_in(value):
                    if isinstance(model, Model):
                        model.on_gpu = True if model.on_gpu is None else model.on_gpu
                self._notes.parameters_given.append(value)
            return call.args[0] if len(call.args) == 1 else tuple(call.args)
        if call.name == "backward":
            call.run.library.train_step(call)
        return call.value(0, default=UNKNOWN) if call.name in ("unwrap_model", "free_memory") else UNKNOWN


def make_accelerator(call: Call, notes: Notes) -> Any:
    """Follow ``Accelerator(mixed_precision="bf16")``."""
    for name in call.kwargs:
        if name in (*_PLUGINS, *_UNREAD):
            _take_plugin(call, name, notes)
            continue
        if name == "kwargs_handlers":
            take_handlers(call.kwargs[name], call, notes)
            continue
        setting = call.setting(name)
        if setting is not None and setting.value is not None:
            notes.accelerate.setdefault(name, setting)
        elif setting is None and name in ("mixed_precision", "gradient_accumulation_steps"):
            key = "training.precision" if name == "mixed_precision" else "training.gradient_accumulation"
            shown = f"Accelerator({name}={short_text(call.nodes.get(name))})"
            sentence = f"{call.where}: {shown} is only known when the script runs."
            components = ("weights", "gradients", "activations") if name == "mixed_precision" else ("gradients",)
            notes.doubt(sentence, *components, key=key)
    return AcceleratorObject(notes)


def _take_plugin(call: Call, name: str, notes: Notes) -> None:
    """Take the settings of a plugin; of one that is not known, nothing is counted as sharded."""
    plugin = call.kwargs[name]
    if plugin is None:
        return
    if isinstance(plugin, Plugin) and name in _PLUGINS:
        for key, setting in plugin.settings.items():
            notes.accelerate.setdefault(key, setting)
        for sentence in plugin.sentences:
            notes.doubt(sentence, *MODEL_STATES, "activations", "communication", key="parallel.strategy")
        return
    sentence = f"{call.where}: Accelerator({name}=...) is not read; nothing is counted as sharded by it."
    notes.doubt(sentence, *MODEL_STATES, direction="less", key="parallel.strategy")


def search_batch(call: Call, notes: Notes) -> Any:
    """Follow ``@find_executable_batch_size(starting_batch_size=256)``, which halves the batch after each failure."""
    function = call.value(0)
    if isinstance(function, Function):
        function.given = (call.value(1, "starting_batch_size", default=_STARTING_BATCH),)
        sentence = f"{call.where}: {call.name} halves the batch when it does not fit; the first one is counted."
        notes.doubt(sentence, "activations", "logits", direction="less", key="training.micro_batch")
    return UNKNOWN


ACCELERATE_FUNCTIONS: Mapping[str, Any] = {
    "Accelerator": make_accelerator,
    "FullyShardedDataParallelPlugin": make_fsdp_plugin,
    "DeepSpeedPlugin": _plugin("use_deepspeed", _DEEPSPEED_ARGUMENTS),
    "ParallelismConfig": _plugin(None, {name: f"parallelism_config_{name}" for name in _SIZES}),
    "@find_executable_batch_size": search_batch,
    "GradientAccumulationPlugin": _plugin(
        None, {"num_steps": "gradient_accumulation_steps", "sync_each_batch": "sync_each_batch"}
    ),
}
"""Functions and classes by the last part of their names."""
