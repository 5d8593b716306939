"""Trainers, accelerators and wrappers that a script puts around its model, and what it states to them."""

import ast
import re
from collections.abc import Mapping
from typing import Any

from ....job.rules.optimizers.by_name import NOT_KNOWN, optimizer_arguments, optimizer_by_class, optimizer_class_names
from ...source.evidence import MODEL_STATES, Setting, default_setting
from ..models.adapters import (
    LIGER_FUNCTIONS,
    AdapterConfig,
    add_adapters,
    copy_value,
    patch_with_liger,
    prepare_for_kbit,
    reference_model,
)
from ..models.configs import Arguments, Notes, ParsedArguments, take_trainer_settings
from ..models.layers import Container, parameters_of
from ..models.model import Adapter, Model, Parameter, ParameterList, ParameterOwner, make_tensor, models_in
from ..python.values import (
    UNKNOWN,
    Attribute,
    Call,
    Function,
    Instance,
    ScriptClass,
    Thing,
    as_number,
    plain,
    short_text,
)
from .sharding import MIXED_PRECISION, SHARDING_FUNCTIONS, DtypePolicy, take_handlers
from .trainer_hooks import doubt_arguments, doubt_batches, follow_callbacks, follow_own_optimizer

# accelerate in a script: ``Accelerator(...)`` and its plugins, by the names of accelerate's flags.


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
        if name in ("num_processes", "world_size"):
            return self._notes.ranks
        return UNKNOWN if name in ("device", "state") else Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Follow ``prepare``, which returns what it is given, and ``backward``."""
        if call.name in ("prepare", "setup", "prepare_model"):
            for value in call.args:
                for model in models_in(value):
                    if isinstance(model, Model):
                        model.on_gpu = True if model.on_gpu is None else model.on_gpu
                        model.sharded = True
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
    sentence = f"{call.where}: Accelerator({name}=...) is not read; the figure assumes that it shards nothing."
    notes.doubt(sentence, *MODEL_STATES, direction="less", key="parallel.strategy")


def search_batch(call: Call, notes: Notes) -> Any:
    """Follow ``@find_executable_batch_size(starting_batch_size=256)``, which halves the batch after each failure."""
    function = call.value(0)
    if isinstance(function, Function):
        function.given = (call.value(1, "starting_batch_size", default=_STARTING_BATCH),)
        sentence = f"{call.where}: {call.name} halves the batch when it does not fit; the first batch size is counted."
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


# Optimizers of a script: their class, arguments, and the parameters that they are given.


_AVERAGES = re.compile(r"(?i)ema|ema.?(model|v\d|params)?|.*exponentialmovingaverage|averagedmodel|modelema\w*|.*_ema")
"""Classes that keep an average of a model's weights."""


_MAX_ACCUMULATION = 4096
_BASES = ("Optimizer", "Optimizer1State", "Optimizer2State")
"""Bases of the optimizers of torch and bitsandbytes."""


class Optimizer(Thing):
    """An optimizer.

    Args:
        call: the call that makes it.
        name: its class's name.
        notes: the reading that it belongs to.
    """

    def __init__(self, call: Call, name: str, notes: Notes) -> None:
        self.name, self.path, self.where, self._notes = name, call.path, call.where, notes
        self.arguments = {key: plain(value) for key, value in call.kwargs.items() if key not in ("params", "model")}
        """Keyword arguments; UNKNOWN for those only known at run time."""
        self.values: list[Any] = []
        """What it was given to train."""
        self.take(call.value(0, "params", "model_params", "parameters"))

    @property
    def setting(self) -> Setting:
        """Its row: an ``OptimizerChoice``."""
        known = {name: value for name, value in self.arguments.items() if name in optimizer_arguments()}
        given = {name: NOT_KNOWN if value is UNKNOWN else value for name, value in known.items()}
        return Setting(value=optimizer_by_class(self.path, given), origin=f"{self.where}: {self.name}(...)")

    def take(self, value: Any) -> None:
        """Take more parameters to train: a list, or groups with ``params``."""
        if isinstance(value, list | tuple):
            for item in value[:50_000]:
                self.take(item)
        elif isinstance(value, dict):
            if "params" in value:
                self.take(value["params"])
                for name in set(optimizer_arguments()) & value.keys():  # the rank of GaLore's group
                    self.arguments.setdefault(name, plain(value[name]))
        else:
            self.values.append(value)

    def trains(self) -> dict[ParameterOwner, set[str] | None]:
        """Return the models and layers that it trains: names of parameters, or None for all of them."""
        found: dict[ParameterOwner, set[str] | None] = {}
        for value in self.values:
            groups = value.groups if isinstance(value, ParameterList) else []
            for owner, prefixes, _ in groups:
                listed = owner.list_parameters(prefixes) if prefixes != ("",) else None
                names = None if listed is None else {each.name or "" for _, each in listed}
                _add(found, owner, names)
            if isinstance(value, Parameter):
                _add(found, value.owner, None if value.name is None or value.many else {value.name})
            elif isinstance(value, Adapter):
                found.setdefault(value.owner, set())
            elif isinstance(value, ParameterOwner):
                _add(found, value, None)
        return found

    def trains_unknown(self) -> bool:
        """Return True if it was given the parameters of a model of which nothing is known."""
        return any(isinstance(value, UnknownParameters) for value in self.values)

    def has_unknown(self) -> bool:
        """Return True if it was given parameters of which nothing is known."""
        return not self.values or any(not isinstance(value, Thing) for value in self.values)

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return UNKNOWN if name in ("param_groups", "state") else Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Follow a step, and groups that are added."""
        if call.name == "add_param_group":
            self.take(call.value(0, "param_group"))
        elif call.name == "step":
            note_accumulation(call, self._notes)
            call.run.library.train_step(call)
        return UNKNOWN


def _add(found: dict[ParameterOwner, set[str] | None], owner: ParameterOwner, names: set[str] | None) -> None:
    before = found.get(owner, set())
    found[owner] = None if names is None or before is None else before | names


def is_parameters(value: Any) -> bool:
    """Return True for what an optimizer is given: parameters, a list of them, or groups of them."""
    if isinstance(value, list | tuple) and value:
        first = value[0]
        return is_parameters(first) or (isinstance(first, dict) and "params" in first)
    return isinstance(value, ParameterList | Parameter | Adapter | UnknownParameters)


class UnknownParameters(Thing):
    """``model.parameters()`` of a model of which nothing is known."""

    def elements(self) -> list[Any] | None:
        """Return nothing that is known."""
        return None


def make_optimizer(call: Call, notes: Notes) -> Optimizer:
    """Follow the constructor of an optimizer."""
    optimizer = Optimizer(call, call.name, notes)
    model = call.value(None, "model")
    if isinstance(model, Model) and not optimizer.values:
        optimizer.take(model)
    notes.optimizers.append(optimizer)
    return optimizer


def make_average(call: Call, notes: Notes) -> Any:
    """Follow a class that keeps an average of a model's weights; None if it is given no model."""
    value = call.value(0, "model", "parameters", default=None)
    value = call.value(None, "ema_model", "params", default=value)
    found = value if isinstance(value, Model) else None
    if isinstance(value, ParameterList) and value.groups and isinstance(value.groups[0][0], Model):
        found = value.groups[0][0]
    if isinstance(value, Instance | Container):
        inside = parameters_of(value)
        found = next((owner for owner, _, _ in inside.groups if isinstance(owner, Model)), None) if inside else None
    if found is None:
        return None
    average = found.copy(call.where)
    average.label, average.role, average.runs = f"{call.name}(...)", "ema", False
    device = call.value(None, "device")
    if device == "cpu":
        average.on_gpu = False
    notes.models = [each for each in notes.models if each is not average]
    notes.models.append(average)
    return average


def is_average(name: str) -> bool:
    """Return True for the name of a class that keeps an average of weights."""
    return _AVERAGES.fullmatch(name) is not None


def optimizer_path(kind: ScriptClass, base: str) -> str | None:
    """Return the path by which a script's class that derives from a base counts as an optimizer; None if it is none.

    A class that derives from torch's plain ``Optimizer`` has its module in its path, so that it is not taken for a
    library's class of the same name.
    """
    last = base.rpartition(".")[2]
    if last in optimizer_class_names():
        return base
    if last not in _BASES:
        return None
    file = kind.module.path
    return f"{file.parent.name}.{file.stem}.{kind.name}" if file is not None else f"script.{kind.name}"


def note_accumulation(call: Call, notes: Notes) -> None:
    """Note the accumulation in the conditions around an optimizer's step: ``(step + 1) % accumulation == 0``."""
    for test, scope in call.run.guards:
        for node in ast.walk(test):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                steps = as_number(call.run.evaluate(node.right, scope))
                shown = f"{call.run.location(test)}: {short_text(test)}"
                if isinstance(steps, int) and 1 < steps <= _MAX_ACCUMULATION:
                    origin = call.run.origin(node.right, scope)
                    origin = f"{origin.origin} ({shown})" if origin is not None else shown
                    notes.hints.setdefault("gradient_accumulation_steps", Setting(value=steps, origin=origin))
                elif not isinstance(steps, int):
                    sentence = f"{shown}: how often the optimizer steps is only known when the script runs."
                    notes.doubt(sentence, "gradients", direction="more", key="training.gradient_accumulation")


_ROLE_BY_ARGUMENT = {
    **dict.fromkeys(("ref_model", "reference_model"), "reference"),
    **dict.fromkeys(("teacher_model", "teacher"), "teacher"),
    **dict.fromkeys(("reward_model", "reward_funcs", "reward_models", "judge"), "reward"),
    **dict.fromkeys(("value_model", "critic", "critic_model"), "critic"),
}
_ACCUMULATION = "gradient_accumulation_steps"
_TRUE_PRECISION = {"bf16-true": "bfloat16", "16-true": "float16"}
"""Lightning's precisions that convert the model's weights."""
_LIBRARIES = (
    *("transformers", "trl", "unsloth", "sentence_transformers", "setfit", "optimum", "adapters", "span_marker"),
    *("pylate", "gliner", "llamafactory", "swift", "axolotl"),
)
"""Libraries whose trainers are transformers', or derived from it."""
_FOLLOWED = (Model, Function, Instance, type(None))


class TrainerObject(Thing):
    """A trainer.

    Args:
        notes: the reading that it belongs to.
        name: its class's name.
        where: the script and line that make it.
    """

    def __init__(self, notes: Notes, name: str, where: str) -> None:
        self._notes, self.name, self.where = notes, name, where
        self.model: Any = None
        self.model_name: Setting | None = None
        """The name of a model that it loads itself."""
        self.arguments: Any = None
        self.adapters: AdapterConfig | None = None
        self.unknown_model: str | None = None
        """The expression of a model of which nothing is known."""
        self.ran = False
        self.callbacks: Any = None
        self.others: list[tuple[str, Setting]] = []
        """Roles and names of other models that it loads itself."""

    def read(self, call: Call) -> None:
        """Take the arguments of its constructor."""
        model = call.value(0, "model", "student_model")
        self.arguments = call.value(1, "args", "config", "training_args")
        if not isinstance(self.arguments, Thing):
            self.arguments = next((each for each in call.args if isinstance(each, Arguments)), self.arguments)
        doubt_arguments(self.arguments, call, self._notes)
        doubt_batches(call.value(None, "data_collator"), call, self._notes, name="data_collator")
        for name in ("compute_metrics", "preprocess_logits_for_metrics"):
            if call.value(None, name) is not None:
                origin = f"{call.where}: {call.name}({name}=...)"
                self._notes.hints[name] = Setting(value=True, origin=origin)
        node = call.expression(0, "model")
        if isinstance(call.value(None, "model_init"), Function):
            model = call.run.call(call.kwargs["model_init"], Call(call.run, call.node, "", None))
        if isinstance(model, str):
            self.model_name = call.setting("model" if "model" in call.kwargs else 0)
        elif isinstance(model, Model | Instance) or list(models_in(model)):
            self.model = model
        elif model is UNKNOWN:
            self.unknown_model = short_text(node)
        self._take_adapters(call)
        take_trainer_settings(call, self._notes)
        self.callbacks = call.value(None, "callbacks")
        for name, role in _ROLE_BY_ARGUMENT.items():
            self._take_other(call, name, role)
        given = call.value(None, "optimizers")
        first = given[0] if isinstance(given, list | tuple) and given else given
        if first is not None and not isinstance(first, Optimizer):
            shown = short_text(call.nodes.get("optimizers"))
            sentence = f"{call.where}: {call.name}(optimizers={shown}) is an optimizer that vramtop does not follow."
            self._notes.doubt(sentence, "optimizer", key="training.optimizer")
        elif isinstance(first, Optimizer) and first not in self._notes.optimizers:
            self._notes.optimizers.append(first)

    def _take_adapters(self, call: Call) -> None:
        config = call.value(None, "peft_config")
        if isinstance(config, AdapterConfig):
            self.adapters = config
            if isinstance(self.model, Model) and not self.model.has_adapters:
                add_adapters(self.model, config, call, text=f"{call.name}(peft_config=...)")
        elif config is UNKNOWN and "peft_config" in call.kwargs:
            shown = short_text(call.nodes.get("peft_config"))
            self._notes.doubt(
                f"{call.where}: {call.name}(peft_config={shown}) is only known when the script runs; "
                "no adapters are counted.",
                *("gradients", "optimizer", "activations"),
                direction="less",
                key="lora.rank",
            )

    def _take_other(self, call: Call, name: str, role: str) -> None:
        value = call.value(None, name)
        if name == "reward_funcs" and value and isinstance(value, list) and all(isinstance(v, Function) for v in value):
            origin = f"{call.where}: {call.name}({name}=...): functions of the script"
            self._notes.assigned[name] = Setting(value=[], origin=origin)
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, Model) and each is not self.model:
                each.role = role
                each.on_gpu = True if each.on_gpu is None else each.on_gpu
            elif isinstance(each, str):
                setting = call.setting(name) or Setting(value=each, origin=f"{call.where}: {call.name}({name}=...)")
                self.others.append((role, setting.with_value(each)))
            elif not isinstance(each, _FOLLOWED) and "trl" not in getattr(each, "path", ""):
                text = (
                    f"{call.where}: the contents of {name} are only known when the script runs; the figure may be "
                    "wrong."
                )
                self._notes.doubt(text, "weights", key="other_models")

    def attribute(self, name: str) -> Any:
        """Return the model, the arguments, or a method."""
        known = {"model": self.model, "args": self.arguments}
        return known[name] if known.get(name) is not None else Attribute(self, name)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take another model."""
        if name == "model":
            self.model = value

    def method(self, call: Call) -> Any:
        """Follow the training."""
        if call.name in ("train", "fit"):
            self.ran = True
            if call.name == "fit" and call.args:
                self.model = call.args[0]
            follow_callbacks(self.callbacks, self.model, call)
            if isinstance(call.receiver, Instance):
                follow_own_optimizer(call.receiver, call, self._notes)
            call.run.library.train_step(call)
            self._follow_forward(call)
        elif call.name == "add_callback" and call.args:
            known = self.callbacks if isinstance(self.callbacks, list | tuple) else ()
            self.callbacks = [*known, call.args[0]]
        return UNKNOWN

    def _follow_forward(self, call: Call) -> None:
        """Follow the forward pass of a model of the script's own, in which another may run several times."""
        forward = self.model.kind.find("forward") if isinstance(self.model, Instance) else None
        if isinstance(forward, Function):
            self._notes.passes.clear()
            call.run.call_function(forward, [self.model], {})
            call.run.library.end_step(call)

    def parts(self) -> Any:
        """Yield the models that it keeps."""
        yield self.model


def make_trainer(call: Call, notes: Notes, path: str) -> TrainerObject:
    """Follow the constructor of a trainer, or of a class derived from it.

    Args:
        call: the call.
        notes: where it is noted.
        path: the trainer's dotted name.
    """
    name = path.rpartition(".")[2]
    trainer = TrainerObject(notes, name, call.where)
    trainer.read(call)
    notes.trainers.append(trainer)
    notes.called.add(name)
    root, dot, _ = path.partition(".")
    if dot and root not in _LIBRARIES and not isinstance(trainer.arguments, Arguments | ParsedArguments):
        notes.called.discard(name)
        sentence = f"{call.where}: vramtop does not know the trainer {path} and does not follow it."
        notes.doubt(sentence, *MODEL_STATES, "activations", "logits")
    return trainer


def make_arguments(call: Call, notes: Notes) -> Any:
    """Follow ``TrainingArguments(...)``."""
    arguments = Arguments(notes, call.name)
    arguments.read(call)
    notes.arguments.append(arguments)
    return arguments


def make_loader(call: Call, notes: Notes) -> Any:
    """Follow ``DataLoader(data, batch_size=8)``; loaders of test data count only if there is no other."""
    if "batch_size" in call.kwargs or len(call.args) > 1:
        key: str | int = "batch_size" if "batch_size" in call.kwargs else 1
        setting = call.setting(key)
        shown = short_text(call.expression(0, "dataset"))
        is_test = re.search(r"(?i)val|test|eval|dev", shown) is not None
        if not is_test:
            doubt_batches(call.value(None, "collate_fn"), call, notes, name="collate_fn")
        name = "per_device_train_batch_size"
        known = notes.hints.get(name)
        if setting is not None and isinstance(setting.value, int | str):
            if is_test:
                notes.tested_batch = setting
            if known is None or (not is_test and known.origin.endswith("(test data)")):
                suffix = " (test data)" if is_test else ""
                notes.hints[name] = Setting(value=setting.value, origin=f"{setting.origin}{suffix}")
        elif setting is None and not is_test and known is None:
            text = f"{call.where}: {call.name}(batch_size=...) is only known when the script runs."
            notes.unresolved.setdefault("per_device_train_batch_size", text)
    return UNKNOWN


def compile_model(call: Call, notes: Notes) -> Any:
    """Follow ``torch.compile(model)``."""
    value = call.value(0, "model", default=UNKNOWN)
    for model in models_in(value):
        if isinstance(model, Model):
            model.put("torch_compile", True, call.where, "torch.compile(...)")
    if isinstance(value, Instance):
        notes.hints.setdefault("torch_compile", Setting(value=True, origin=f"{call.where}: torch.compile(...)"))
    return value


def initialize_deepspeed(call: Call, notes: Notes) -> Any:
    """Follow ``deepspeed.initialize(model=..., optimizer=..., config=...)``."""
    model, optimizer = call.value(1, "model", default=UNKNOWN), call.value(2, "optimizer", default=None)
    table = plain(call.kwargs.get("config"))
    trains = optimizer is not None or "model_parameters" in call.kwargs
    if not trains and isinstance(table, dict) and not table.get("optimizer"):
        return (model, UNKNOWN, UNKNOWN, UNKNOWN)  # it only runs, as a reference model does
    if not trains and table is UNKNOWN and _is_in_trainer(call):  # which itself trains another model
        _shard_beside(model, call, notes)
        return (model, UNKNOWN, UNKNOWN, UNKNOWN)
    notes.parameters_given.append(model)
    size = table.get("train_micro_batch_size_per_gpu") if isinstance(table, dict) else None
    if "training_data" in call.kwargs and isinstance(size, int):  # DeepSpeed makes the loader itself
        origin = f"{call.where}: {call.name}(config=...)"
        notes.hints["per_device_train_batch_size"] = Setting(value=size, origin=origin)
    for name in ("config", "config_params"):
        value = plain(call.kwargs.get(name))
        if isinstance(value, str | dict):
            notes.written.setdefault("deepspeed", Setting(value=value, origin=f"{call.where}: {call.name}({name}=...)"))
        elif name in call.kwargs:
            sentence = (
                f"{call.where}: {call.name}({name}={short_text(call.nodes.get(name))}) is only known when it runs."
            )
            notes.doubt(sentence, *MODEL_STATES, key="parallel.strategy")  # fp16 under DeepSpeed keeps an fp32 copy
    return (model, optimizer, UNKNOWN, UNKNOWN)


def _is_in_trainer(call: Call) -> bool:
    """Return True in a method of a trainer's class of the script."""
    scope = call.scope.find("self") if call.scope is not None else None
    owner = scope.names["self"] if scope is not None else None
    return isinstance(owner, Instance) and any(path.endswith("Trainer") for path in owner.kind.external_bases())


def _shard_beside(value: Any, call: Call, notes: Notes) -> None:
    """Take the stage of the trainer's own DeepSpeed for a model that it only runs, as TRL's trainers do."""
    for model in models_in(value):
        if isinstance(model, Model):
            model.sharded, model.role = True, model.role or "reference"
    shown = short_text(call.nodes.get("config"))
    sentence = f"{call.where}: {call.name}(config={shown}) is assumed to shard the other model like the trained one."
    notes.doubt(sentence, "weights", key="other_models")


def checkpoint_layers(call: Call, notes: Notes) -> Any:
    """Follow ``apply_activation_checkpointing(model)``."""
    model = call.value(0, "model")
    if "context_fn" in call.kwargs:
        sentence = (
            f"{call.where}: {call.name}(context_fn=...) keeps tensors by its policy; no kept tensors are counted."
        )
        notes.doubt(sentence, "activations", direction="more", key="training.activation_checkpointing")
    if isinstance(model, Model):
        model.put("activation_checkpointing", True, call.where, f"{call.name}(...)")
    else:  # a model of the script's own
        setting = Setting(value=True, origin=f"{call.where}: {call.name}(...)")
        notes.hints.setdefault("activation_checkpointing", setting)
    return model if call.name == "checkpoint_wrapper" else None


class LightningTrainer(TrainerObject):
    """Lightning's ``Trainer``; the optimizers come from its module's ``configure_optimizers``."""

    def method(self, call: Call) -> Any:
        """Follow ``fit(module)``."""
        module = call.value(0, "model")
        if call.name == "fit" and isinstance(module, Instance):
            followed = ("val_dataloader", 0), ("configure_model", 0), ("configure_optimizers", 0), ("training_step", 2)
            for name, count in followed:
                function = module.kind.find(name)
                if isinstance(function, Function):
                    call.run.call_function(function, [module, *[UNKNOWN] * count], {})
            batch = self._notes.tested_batch
            validates = (
                call.value(2, "val_dataloaders") is not None or module.kind.find("val_dataloader") is not UNKNOWN
            )
            if batch is not None and validates:
                self._notes.written["eval_strategy"] = batch.with_value("epoch")
                self._notes.written["per_device_eval_batch_size"] = batch
        return super().method(call) if call.args else UNKNOWN


def make_lightning_trainer(call: Call, notes: Notes) -> Any:
    """Follow lightning's ``Trainer(precision="bf16-mixed")``."""
    notes.called.discard("Trainer")
    trainer = LightningTrainer(notes, "LightningTrainer", call.where)
    _read_lightning(call, notes)
    notes.trainers.append(trainer)
    return trainer


def make_fabric(call: Call, notes: Notes) -> Any:
    """Follow lightning's ``Fabric(precision="bf16-true")``."""
    _read_lightning(call, notes)
    return AcceleratorObject(notes)


def _read_lightning(call: Call, notes: Notes) -> None:
    for name, renamed in (("precision", "mixed_precision"), ("accumulate_grad_batches", _ACCUMULATION)):
        setting = call.setting(name) if name in call.kwargs else None
        if setting is None or setting.value is None:
            continue
        word = MIXED_PRECISION.get(str(setting.value), "no") if name == "precision" else setting.value
        notes.accelerate.setdefault(renamed, setting.with_value(word))
        if (dtype := _TRUE_PRECISION.get(str(setting.value))) is not None:
            notes.assigned.setdefault("dtype", setting.with_value(dtype))
    if "precision" in call.kwargs and call.setting("precision") is None:
        sentence = f"{call.where}: {call.name}(precision=...) is only known when the script runs."
        notes.doubt(sentence, *MODEL_STATES, "activations", key="training.precision")
    devices = plain(call.value(None, "devices", default="auto"))
    count = len(devices) if isinstance(devices, list) else devices
    value = count if type(count) is int and count > 0 else "all GPUs"
    origin = f"{call.where}: {call.name}(devices={short_text(call.expression(None, 'devices'))})"
    if "devices" in call.kwargs or "gpus" in call.kwargs or value != "all GPUs":
        notes.written.setdefault("script_processes", Setting(value=value, origin=origin))
    if isinstance(devices, list) and all(type(each) is int for each in devices):
        if len(devices) == 1:
            notes.note_device(devices[0], origin)
        elif notes.visible_devices is None:
            notes.visible_devices = Setting(value=",".join(map(str, devices)), origin=origin)
    strategy = call.value(None, "strategy", default="auto")
    if not isinstance(strategy, str) or not strategy.startswith(("auto", "ddp", "single")):
        sentence = (
            f"{call.where}: the strategy {plain(strategy)} of Lightning is not read; the figure assumes no sharding."
        )
        notes.doubt(sentence, *MODEL_STATES, direction="less", key="parallel.strategy")


MODEL_FUNCTIONS: Mapping[str, Any] = {
    "Fabric": make_fabric,
    **SHARDING_FUNCTIONS,
    **ACCELERATE_FUNCTIONS,
    **dict.fromkeys(LIGER_FUNCTIONS, patch_with_liger),
    **dict.fromkeys(("apply_activation_checkpointing", "checkpoint_wrapper"), checkpoint_layers),
    **dict.fromkeys(("deepcopy", "copy.copy"), copy_value),
    **dict.fromkeys(("prepare_model_for_kbit_training", "prepare_model_for_int8_training"), prepare_for_kbit),
    "create_reference_model": reference_model,
    **dict.fromkeys(("get_world_size", "get_num_processes"), lambda call, notes: notes.ranks),
    **dict.fromkeys(("zeros", "ones", "empty", "rand", "randn", "full"), lambda call, notes: make_tensor(call)),
    "DataLoader": make_loader,
}
"""Functions and classes by the last part of their names."""
