"""Trainers, accelerators and wrappers that a script puts around its model, and what it states to them."""

import re
from collections.abc import Mapping
from typing import Any

from ...source import Setting
from ..python import UNKNOWN, Attribute, Call, External, Function, Instance, Thing, plain, short_text
from .adapters import LIGER_FUNCTIONS, AdapterConfig, add_adapters, patch_with_liger, prepare_for_kbit
from .configs import Arguments, take_trainer_settings
from .loading import copy_value, reference_model
from .model import Model, models_in
from .notes import Notes
from .optimizers import Optimizer
from .parameters import make_tensor

FSDP_VERSION = {"FSDP": 1, "FullyShardedDataParallel": 1, "fully_shard": 2}
_ROLE_BY_ARGUMENT = {
    **dict.fromkeys(("ref_model", "reference_model"), "reference"),
    **dict.fromkeys(("teacher_model", "teacher"), "teacher"),
    **dict.fromkeys(("reward_model", "reward_funcs", "reward_models", "judge"), "reward"),
    **dict.fromkeys(("value_model", "critic", "critic_model"), "critic"),
}
_MIXED_PRECISION = {
    **dict.fromkeys(("bfloat16", "bf16", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("float16", "half", "fp16", "16-mixed", "16"), "fp16"),
}
_PLUGINS = ("fsdp_plugin", "deepspeed_plugin", "deepspeed_plugins", "megatron_lm_plugin", "parallelism_config")
_ACCUMULATION = "gradient_accumulation_steps"
_SHARDING_NAMES = {
    "reshard_after_forward": "fsdp_reshard_after_forward",
    "sharding_strategy": "fsdp_sharding_strategy",
}
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
        self.others: list[tuple[str, Setting]] = []
        """Roles and names of other models that it loads itself."""

    def read(self, call: Call) -> None:
        """Take the arguments of its constructor."""
        model = call.value(0, "model", "student_model")
        self.arguments = call.value(1, "args", "config", "training_args")
        if not isinstance(self.arguments, Thing):
            self.arguments = next((each for each in call.args if isinstance(each, Arguments)), self.arguments)
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
        for name, role in _ROLE_BY_ARGUMENT.items():
            self._take_other(call, name, role)
        given = call.value(None, "optimizers")
        first = given[0] if isinstance(given, list | tuple) and given else given
        if first is not None and not isinstance(first, Optimizer):
            shown = short_text(call.nodes.get("optimizers"))
            sentence = f"{call.where}: {call.name}(optimizers={shown}) is an optimizer that is not followed."
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
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, Model) and each is not self.model:
                each.role = role
                each.on_gpu = True if each.on_gpu is None else each.on_gpu
            elif isinstance(each, str):
                setting = call.setting(name) or Setting(value=each, origin=f"{call.where}: {call.name}({name}=...)")
                self.others.append((role, setting.with_value(each)))
            elif not isinstance(each, _FOLLOWED) and "trl" not in getattr(each, "path", ""):
                text = f"{call.where}: what {name} holds is only known when the script runs; it may be counted wrong."
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
            call.run.library.train_step(call)
        return UNKNOWN

    def parts(self) -> Any:
        """Yield the models that it keeps."""
        yield self.model


def make_trainer(call: Call, notes: Notes) -> Any:
    """Follow the constructor of a trainer."""
    trainer = TrainerObject(notes, call.name, call.where)
    trainer.read(call)
    notes.trainers.append(trainer)
    return trainer


def make_arguments(call: Call, notes: Notes) -> Any:
    """Follow ``TrainingArguments(...)``."""
    arguments = Arguments(notes, call.name)
    arguments.read(call)
    notes.arguments.append(arguments)
    return arguments


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
        setting = call.setting(name)
        if name in _PLUGINS and call.kwargs[name] is not None:
            sentence = f"{call.where}: Accelerator({name}=...) is not read; nothing is counted as sharded by it."
            notes.doubt(sentence, "weights", "gradients", "optimizer", direction="less", key="parallel.strategy")
        if setting is not None and setting.value is not None:
            notes.accelerate.setdefault(name, setting)
        elif setting is None and name in ("mixed_precision", "gradient_accumulation_steps"):
            key = "training.precision" if name == "mixed_precision" else "training.gradient_accumulation"
            shown = f"Accelerator({name}={short_text(call.nodes.get(name))})"
            sentence = f"{call.where}: {shown} is only known when the script runs."
            components = ("weights", "gradients", "activations") if name == "mixed_precision" else ("gradients",)
            notes.doubt(sentence, *components, key=key)
    return AcceleratorObject(notes)


def make_loader(call: Call, notes: Notes) -> Any:
    """Follow ``DataLoader(data, batch_size=8)``; loaders of test data count only if there is no other."""
    if "batch_size" in call.kwargs or len(call.args) > 1:
        key: str | int = "batch_size" if "batch_size" in call.kwargs else 1
        setting = call.setting(key)
        shown = short_text(call.expression(0, "dataset"))
        is_test = re.search(r"(?i)val|test|eval|dev", shown) is not None
        name = "per_device_train_batch_size"
        known = notes.hints.get(name)
        if setting is not None and isinstance(setting.value, int | str):
            if known is None or (not is_test and known.origin.endswith("(test data)")):
                suffix = " (test data)" if is_test else ""
                notes.hints[name] = Setting(value=setting.value, origin=f"{setting.origin}{suffix}")
        elif setting is None and not is_test and known is None:
            text = f"{call.where}: {call.name}(batch_size=...) is only known when the script runs."
            notes.unresolved.setdefault("per_device_train_batch_size", text)
    return UNKNOWN


def shard(call: Call, notes: Notes) -> Any:
    """Follow ``FSDP(model)`` and ``fully_shard(model)``."""
    setting = Setting(value=True, origin=f"{call.where}: {call.name}(...)")
    notes.own_loop.setdefault("use_fsdp", setting)
    notes.own_loop.setdefault("fsdp_version", setting.with_value(FSDP_VERSION[call.name]))
    for name, renamed in _SHARDING_NAMES.items():
        found = call.setting(name) if name in call.kwargs else None
        if found is not None and found.value is not None:
            notes.own_loop.setdefault(renamed, found)
    offload = call.value(None, "cpu_offload", "offload_policy")
    if offload is not None:
        notes.own_loop.setdefault("fsdp_offload_params", setting)
    for each in models_in(call.value(0, "module")):
        if isinstance(each, Model):
            each.sharded = True
    return replicate(call, notes)


def replicate(call: Call, notes: Notes) -> Any:
    """Follow ``DDP(model)``."""
    model = call.value(0, "module", default=UNKNOWN)
    for each in models_in(model):
        if isinstance(each, Model):
            each.on_gpu = True if each.on_gpu is None else each.on_gpu
    return model


def mixed_precision(call: Call, notes: Notes) -> Any:
    """Follow ``autocast("cuda", torch.bfloat16)`` and FSDP's policies."""
    if call.value(None, "enabled", default=True) is False:
        return UNKNOWN
    value = call.value(1, "dtype", "param_dtype")
    if value is None and isinstance(call.value(0), External):
        value = call.value(0)  # torch.cuda.amp.autocast(torch.bfloat16)
    default = "float16" if call.name == "autocast" and value is None else ""
    word = str(plain(value)) if value is not None else default
    if word in _MIXED_PRECISION:
        origin = f"{call.where}: {call.name}(...)"
        notes.own_loop.setdefault("mixed_precision", Setting(value=_MIXED_PRECISION[word], origin=origin))
    elif value is not None and plain(value) is UNKNOWN and call.name == "autocast":
        sentence = f"{call.where}: {short_text(call.node)}: its dtype is only known when the script runs."
        notes.doubt(sentence, "activations", key="training.precision")
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
    model, optimizer = call.value(1, "model", default=UNKNOWN), call.value(2, "optimizer", default=UNKNOWN)
    notes.parameters_given.append(model)
    for name in ("config", "config_params"):
        value = plain(call.kwargs.get(name))
        if isinstance(value, str | dict):
            notes.written.setdefault("deepspeed", Setting(value=value, origin=f"{call.where}: {call.name}({name}=...)"))
        elif name in call.kwargs:
            sentence = (
                f"{call.where}: {call.name}({name}={short_text(call.nodes.get(name))}) is only known when it runs."
            )
            notes.doubt(sentence, "weights", "gradients", "optimizer", direction="less", key="parallel.strategy")
    return (model, optimizer, UNKNOWN, UNKNOWN)


def checkpoint_layers(call: Call, notes: Notes) -> Any:
    """Follow ``apply_activation_checkpointing(model)``."""
    model = call.value(0, "model")
    if isinstance(model, Model):
        model.put("activation_checkpointing", True, call.where, f"{call.name}(...)")
    return model if call.name == "checkpoint_wrapper" else None


class LightningTrainer(TrainerObject):
    """A trainer of lightning, which asks its module for the optimizers."""

    def read(self, call: Call) -> None:
        """Take the arguments of its constructor."""
        for name, renamed in (("precision", "mixed_precision"), ("accumulate_grad_batches", _ACCUMULATION)):
            setting = call.setting(name) if name in call.kwargs else None
            if setting is not None and setting.value is not None:
                word = _MIXED_PRECISION.get(str(setting.value), "no") if name == "precision" else setting.value
                self._notes.accelerate.setdefault(renamed, setting.with_value(word))
        strategy = call.value(None, "strategy", default="auto")
        if not isinstance(strategy, str) or not strategy.startswith(("auto", "ddp", "single")):
            sentence = f"{call.where}: the strategy {plain(strategy)} of lightning is not read; nothing is sharded."
            self._notes.doubt(sentence, "weights", "gradients", "optimizer", direction="less", key="parallel.strategy")

    def method(self, call: Call) -> Any:
        """Follow ``fit(module)``."""
        module = call.value(0, "model")
        if call.name == "fit" and isinstance(module, Instance):
            for name, count in (("configure_model", 0), ("configure_optimizers", 0), ("training_step", 2)):
                function = module.kind.find(name)
                if isinstance(function, Function):
                    call.run.call_function(function, [module, *[UNKNOWN] * count], {})
        return super().method(call) if call.args else UNKNOWN


def make_lightning_trainer(call: Call, notes: Notes) -> Any:
    """Follow lightning's ``Trainer(precision="bf16-mixed")``."""
    notes.called.discard("Trainer")
    trainer = LightningTrainer(notes, "LightningTrainer", call.where)
    trainer.read(call)
    notes.trainers.append(trainer)
    return trainer


MODEL_FUNCTIONS: Mapping[str, Any] = {
    **dict.fromkeys(FSDP_VERSION, shard),
    **dict.fromkeys(LIGER_FUNCTIONS, patch_with_liger),
    **dict.fromkeys(("DDP", "DistributedDataParallel", "DataParallel"), replicate),
    **dict.fromkeys(("autocast", "MixedPrecisionPolicy", "MixedPrecision"), mixed_precision),
    **dict.fromkeys(("apply_activation_checkpointing", "checkpoint_wrapper"), checkpoint_layers),
    **dict.fromkeys(("deepcopy", "copy.copy"), copy_value),
    **dict.fromkeys(("prepare_model_for_kbit_training", "prepare_model_for_int8_training"), prepare_for_kbit),
    "create_reference_model": reference_model,
    **dict.fromkeys(("zeros", "ones", "empty", "rand", "randn", "full"), lambda call, notes: make_tensor(call)),
    "DataLoader": make_loader,
    "Accelerator": make_accelerator,
}
"""Functions and classes by the last part of their names."""
