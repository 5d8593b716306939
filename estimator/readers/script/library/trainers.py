"""Trainers, accelerators and wrappers that a script puts around its model, and what it states to them."""

import re
from collections.abc import Mapping
from typing import Any

from ...source import MODEL_STATES, Setting
from ..models import (
    LIGER_FUNCTIONS,
    AdapterConfig,
    Arguments,
    Model,
    Notes,
    ParsedArguments,
    add_adapters,
    copy_value,
    make_tensor,
    models_in,
    patch_with_liger,
    prepare_for_kbit,
    reference_model,
    take_trainer_settings,
)
from ..python import UNKNOWN, Attribute, Call, Function, Instance, Thing, plain, short_text
from .accelerators import ACCELERATE_FUNCTIONS, AcceleratorObject
from .optimizers import Optimizer
from .sharding import MIXED_PRECISION, SHARDING_FUNCTIONS
from .trainer_hooks import follow_callbacks, follow_own_optimizer
from .unfollowed import doubt_arguments, doubt_batches

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
            follow_callbacks(self.callbacks, self.model, call)
            if isinstance(call.receiver, Instance):
                follow_own_optimizer(call.receiver, call, self._notes)
            call.run.library.train_step(call)
        elif call.name == "add_callback" and call.args:
            known = self.callbacks if isinstance(self.callbacks, list | tuple) else ()
            self.callbacks = [*known, call.args[0]]
        return UNKNOWN

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
        sentence = f"{call.where}: {path} is no trainer that is known here; what it does is not followed."
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
    notes.parameters_given.append(model)
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


def checkpoint_layers(call: Call, notes: Notes) -> Any:
    """Follow ``apply_activation_checkpointing(model)``."""
    model = call.value(0, "model")
    if isinstance(model, Model):
        model.put("activation_checkpointing", True, call.where, f"{call.name}(...)")
    return model if call.name == "checkpoint_wrapper" else None


class LightningTrainer(TrainerObject):
    """Lightning's ``Trainer``; the optimizers come from its module's ``configure_optimizers``."""

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
    strategy = call.value(None, "strategy", default="auto")
    if not isinstance(strategy, str) or not strategy.startswith(("auto", "ddp", "single")):
        sentence = f"{call.where}: the strategy {plain(strategy)} of lightning is not read; nothing is sharded."
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
    **dict.fromkeys(("zeros", "ones", "empty", "rand", "randn", "full"), lambda call, notes: make_tensor(call)),
    "DataLoader": make_loader,
}
"""Functions and classes by the last part of their names."""
