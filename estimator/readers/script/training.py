"""Trainers, their arguments, optimizers and data loaders of a script."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...common.records import replace
from ...job.rules.optimizers.by_name import NOT_KNOWN, optimizer_arguments, optimizer_by_class
from ..arguments.table import scripts
from ..source.data_files import NULL_IS_NO_LIMIT, NULL_IS_WRONG
from ..source.settings import UNKNOWN_TABLE, Setting
from ..trl.methods import method_of_class
from .model_calls import not_followed
from .models import AdapterConfig, Model, Part, QuantizationConfig, add_adapters
from .operators import truth
from .options import Parsed
from .values import UNKNOWN, Attribute, Call, Class, Function, Instance, Record, Thing, plain, short_text

SIZE_ARGUMENTS = ("per_device_train_batch_size", "max_length")
"""Arguments whose default is hardly meant where a script computes them: the user is asked for the value."""
_OTHER_MODELS = {"reference": "ref_model", "teacher": "teacher_model"}
"""TRL's names of arguments that name a model of a role."""
_BATCH = "per_device_train_batch_size"
_OF_TESTS = " (test data)"
_LOADING = "model_init_kwargs"
_OF_LOADING = {
    "quantization_config": "lora.quantization",
    "attn_implementation": "model.attention",
    "dtype": "training.precision",
    "torch_dtype": "training.precision",
    "device_map": "parallel.device_map",
}
_SETTINGS_OF_OLD_TRAINERS = sorted(scripts().names["settings_of_old_trainers"])
"""What TRL's trainers took themselves before 0.13, and their configurations since."""
_LIBRARIES = scripts().names["libraries_of_trainers"]
"""Libraries whose trainers are transformers', or derived from it."""
_LOSS_METHODS = ("compute_loss", "concatenated_forward", "get_batch_loss_metrics", "get_batch_metrics", "dpo_loss")
_PASSES = re.compile(r"\(\*\*|\.compute_loss\(")
"""In the source of a ``compute_loss``: a pass through a model."""
_METHODS = {
    **dict.fromkeys(("create_optimizer", "create_optimizer_and_scheduler"), "training.optimizer"),
    **dict.fromkeys(("get_train_dataloader", "_get_train_sampler", "_train_batch_size"), "training.micro_batch"),
    **dict.fromkeys(_LOSS_METHODS, "training.loss"),
    **dict.fromkeys(("training_step", "_inner_training_loop", "train")),
}
"""Methods of trainers on which a step's memory depends, and the job keys that they decide."""
_OWN_PARTS = {"compute_loss_func": "training.loss", "optimizer_cls_and_kwargs": "training.optimizer"}
"""Arguments of trainers that are the script's own code, and the job keys that they decide."""
_JOINS = re.compile(
    r"(?i)chosen|reject|negative|\bneg_|pos_|choices|candidates|pairs|concatenated"
    r"|\b(cat|concat|concatenate|chain|from_iterable|extend|repeat|repeat_interleave|sum)\("
)
"""In a collator: words of batches that hold several sequences for each example, and what joins sequences."""


class Arguments(Record):
    """``TrainingArguments(...)`` or one of its kin."""

    @property
    def fields(self) -> dict[str, Setting]:
        """Its arguments, without those that are None where that means the default."""
        kept = (*NULL_IS_NO_LIMIT, *NULL_IS_WRONG)
        found = {name: each for name, each in self.settings.items() if each.value is not None or name in kept}
        if self.unknown_table is not None:
            sentence = (
                f"{self.where}: {self.name}(**{short_text(self.unknown_table)}) is only known when the script runs."
            )
            found[UNKNOWN_TABLE] = Setting(value=UNKNOWN, origin=sentence)
        return found

    def attribute(self, name: str) -> Any:
        """Return an argument's value."""
        if name in ("train_batch_size", "eval_batch_size"):
            return self.values.get(f"per_device_{name}", UNKNOWN)
        return Attribute(self, name) if name == "to_dict" or name.startswith("set_") else super().attribute(name)

    def method(self, call: Call) -> Any:
        """Note ``set_training()`` and the like, whose settings are not read."""
        if call.name.startswith("set_"):
            sentence = f"{call.where}: {short_text(call.node)} is not read."
            call.notes.doubt(sentence)
            if call.name in ("set_training", "set_dataloader"):
                self.settings[_BATCH] = Setting(value=UNKNOWN, origin=sentence)
        return self if call.name.startswith("set_") else UNKNOWN


_TELL_TRANSFORMERS = {"HfArgumentParser", "TrlParser", "H4ArgumentParser", "Accelerator", "HfDeepSpeedConfig"}
"""Calls from which on transformers knows DeepSpeed's configuration, as from TrainingArguments on."""


def make_arguments(call: Call) -> Arguments:
    """Follow ``TrainingArguments(...)``."""
    arguments = Arguments(call)
    if call.args:
        arguments.settings.setdefault("output_dir", call.setting(0))
    notes = call.notes
    loaded = [model for model in notes.models if model.source is not None]
    if loaded and not notes.arguments and not notes.called & _TELL_TRANSFORMERS:
        origin = f"{loaded[0].where}: the model is loaded before {call.where} makes {call.name}"
        notes.accelerate["script_model_first"] = Setting(value=True, origin=origin)
    notes.arguments.append(arguments)
    return arguments


class Optimizer(Record):
    """An optimizer, by the call that makes it."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.path = call.path
        self.given: list[Any] = [call.value(0, "params", "model_params", "parameters", "model")]

    @property
    def setting(self) -> Setting:
        """Its row: an ``OptimizerChoice``."""
        groups = [
            group for value in self.given if isinstance(value, list) for group in value if isinstance(group, dict)
        ]
        known = {name: plain(value) for table in (self.values, *groups) for name, value in table.items()}
        given = {name: known[name] for name in optimizer_arguments() if name in known}
        given = {name: NOT_KNOWN if value is UNKNOWN else value for name, value in given.items()}
        return Setting(value=optimizer_by_class(self.path, given), origin=f"{self.where}: {self.name}(...)")

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)


def is_parameters(value: Any) -> bool:
    """Return True for what an optimizer is given: parameters, a list of them, or groups of them."""
    if isinstance(value, list | tuple) and value:
        return is_parameters(value[0]) or (isinstance(value[0], dict) and "params" in value[0])
    return isinstance(value, Part) and not isinstance(value, Model)


def make_optimizer(call: Call) -> Optimizer:
    """Follow the constructor of an optimizer."""
    optimizer = Optimizer(call)
    call.notes.optimizers.append(optimizer)
    return optimizer


class TrainerObject(Thing):
    """A trainer.

    Args:
        call: the call that makes it.
        name: its class's name.
    """

    def __init__(self, call: Call, name: str) -> None:
        self._notes, self.name, self.where = call.notes, name, call.where
        self.model = call.value(0, "model", "student_model")
        self.model_name: Setting | None = None
        """The name of a model that it loads itself."""
        self.arguments = call.value(1, "args", "config", "training_args")
        if not isinstance(self.arguments, Thing):
            self.arguments = next((each for each in call.args if isinstance(each, Arguments)), self.arguments)
        self.adapters = call.value(None, "peft_config")
        self.quantization = call.value(None, "quantization_config")
        """For the model that it loads itself (TRL since 1.8)."""
        self.ran = False
        self.others: list[Model] = []
        """Models besides the trained one that it is given, and that are known."""

    def read(self, call: Call) -> None:
        """Take the arguments of its constructor."""
        if call.unknown_table is not None and isinstance(self.arguments, Thing):
            text = f"{call.name}(**{short_text(call.unknown_table)})"
            call.doubt(f"{text}: vramtop does not follow how batches are made.")
        elif not isinstance(self.arguments, Arguments | Parsed | None) or call.unknown_table is not None:
            sentence = f"the arguments of {call.name}(...) are not known."
            call.doubt(sentence)
            self._notes.hints.setdefault(_BATCH, Setting(value=UNKNOWN, origin=f"{call.where}: {sentence}"))
        self._take_model(call)
        _follow_items(call, call.value(None, "train_dataset"))
        for name in ("data_collator", "collate_fn"):
            _doubt_collator(call, name)
        for name in (each for each in _OWN_PARTS if call.value(None, each) is not None):
            call.doubt(f"{call.shown(name)} is not read.", key=_OWN_PARTS[name])
        for name in ("compute_metrics", "preprocess_logits_for_metrics"):
            if call.value(None, name) is not None:
                self._notes.hints[name] = Setting(value=True, origin=f"{call.where}: {call.name}({name}=...)")
        if isinstance(self.adapters, AdapterConfig):
            if isinstance(self.model, Model) and not self.model.has_adapters:
                add_adapters(self.model, self.adapters, call, text=f"{call.name}(peft_config=...)")
        elif self.adapters is not None:
            call.doubt(f"{call.shown('peft_config')} is not known; no adapters are counted.", key="lora.rank")
        if self.quantization is UNKNOWN:
            call.doubt(f"{call.shown('quantization_config')} is not known.", key="lora.quantization")
        self._take_loading(call)
        for name, setting in call.settings(*_SETTINGS_OF_OLD_TRAINERS).items():
            is_open = setting.value is UNKNOWN and "length" in name
            self._notes.written.setdefault("max_length" if is_open else name, setting)
        self._take_others(call)
        given = call.value(None, "optimizers")
        first = given[0] if isinstance(given, list | tuple) and given else given
        if first is not None and not isinstance(first, Optimizer):
            call.doubt(f"{call.shown('optimizers')} is an optimizer that is not known.", key="training.optimizer")

    def _take_loading(self, call: Call) -> None:
        """Take how it loads a model that it is only named, from its own arguments or those of its configuration."""
        of_arguments = self.arguments.values.get(_LOADING) if isinstance(self.arguments, Arguments) else None
        table = call.value(None, _LOADING, default=of_arguments)
        if not isinstance(table, dict):
            return
        known = {str(name): plain(value) for name, value in table.items()}
        config = table.get("quantization_config")
        if isinstance(config, QuantizationConfig):
            del known["quantization_config"]
            known |= {name: setting.value for name, setting in config.counted().items()} | {"bitsandbytes_config": True}
        for name in (name for name, value in known.items() if value is UNKNOWN and name in _OF_LOADING):
            call.doubt(f"{name} of {_LOADING} is only known when the script runs.", key=_OF_LOADING[name])
        known = {name: value for name, value in known.items() if value is not UNKNOWN}
        origin = f"{call.where}: {call.name}({_LOADING}=...)"
        self._notes.written[_LOADING] = Setting(value=known, origin=origin)

    def _take_model(self, call: Call) -> None:
        key: str | int = next((name for name in ("model", "student_model") if name in call.kwargs), 0)
        made = call.value(None, "model_init")
        if isinstance(made, Function):
            self.model = call.run.call(made, Call(call.run, call.node, ""))
        if isinstance(self.model, str):
            self.model_name, self.model = call.setting(key), None
        elif self.model is UNKNOWN:
            shown = short_text(call.nodes.get(key))
            call.doubt(f"the model {shown} that {call.name} trains is not known.", key="model.id")

    def _take_others(self, call: Call) -> None:
        if len(call.args) > 1 and isinstance(call.args[1], Model):  # as TRL's trainers take their second argument
            call = replace(call, kwargs={"ref_model": call.args[1], **call.kwargs})
        for role, names in scripts().aliases["argument"].items():
            for name in names if role != "length" else ():
                self._take_other(call, name, role)

    def _take_other(self, call: Call, name: str, role: str) -> None:
        """Take models besides the trained one, by their names or as the script loads them."""
        value, known = call.value(None, name), dict[str, Setting]()
        values = [each for each in (value if isinstance(value, list | tuple) else [value]) if each is not self.model]
        values = [each for each in values if not isinstance(each, Instance | type(None))]
        origin = f"{call.where}: {call.name}({name}=...)"
        if name == "reward_funcs" and values and all(isinstance(each, Function) for each in values):
            self._notes.assigned[name] = Setting(value=[], origin=f"{origin}: functions of the script")
        for each in values:
            setting = each.source if isinstance(each, Model) else Setting(value=each, origin=origin)
            if isinstance(each, Model | str) and setting is not None:
                known[setting.value] = setting
                self.others += [each] if isinstance(each, Model) else []
            elif not isinstance(each, Function) and "trl" not in getattr(each, "path", ""):
                call.doubt(f"{call.shown(name)} is not known.", key="other_models")
        if known and role != "critic" and method_of_class(self.name) is not None:
            origins = "; ".join(setting.origin for setting in known.values())
            self._notes.written[_OTHER_MODELS.get(role, name)] = Setting(value=[*known], origin=origins)
        elif known:
            call.doubt(f"the model in {call.shown(name)} is not counted.", key="other_models")

    def attribute(self, name: str) -> Any:
        """Return the model, the arguments, or a method."""
        known = {"model": self.model, "args": self.arguments}
        return known[name] if known.get(name) is not None else Attribute(self, name)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take another model; note a method that the script replaces."""
        if name == "model":
            self.model = value
        elif name in _METHODS:
            call.doubt(f"the script's own {name} is not read.", key=_METHODS[name] if name != "compute_loss" else None)

    def method(self, call: Call) -> Any:
        """Follow the training."""
        half, arguments = self._notes.own_loop.get("mixed_precision"), self.arguments
        if call.name in ("train", "fit"):
            if half is not None and not any(truth(call.run.attribute(arguments, each)) for each in ("bf16", "fp16")):
                sentence = f"{half.origin} may be around the training, which is counted without it."
                self._notes.doubt(sentence, key="training.precision")
            self.ran = self._notes.trains = True
            self.model = call.args[0] if call.name == "fit" and call.args else self.model
        elif call.name == "hyperparameter_search":
            call.doubt("hyperparameter_search tries other settings, which are not counted.")
            self.ran = self._notes.trains = True
        return UNKNOWN

    def parts(self) -> Iterator[Any]:
        """Yield the models that it keeps."""
        yield self.model


def make_trainer(call: Call, path: str, kind: Class | None = None) -> Any:
    """Follow the constructor of a trainer, or of a class of the script that is derived from one.

    Args:
        call: the call.
        path: the trainer's dotted name.
        kind: the script's class.
    """
    name, notes = path.rpartition(".")[2], call.notes
    root, dot, _ = path.partition(".")
    if "lightning" in path:
        return not_followed(call)
    trainer = TrainerObject(call, name)
    trainer.read(call)
    notes.trainers.append(trainer)
    notes.called.add(name)
    if kind is not None:
        for each, value in kind.members.items():
            if isinstance(value, Function) and each in _METHODS:
                notes.own_loss |= each in _LOSS_METHODS and method_of_class(name) is not None
                is_plain = len(_PASSES.findall(ast.unparse(value.node))) < 2
                sentence = f"{call.run.location(kind.node)}: {kind.name}.{each} is not read."
                notes.doubt(sentence, key=_METHODS[each] if is_plain else None)
    if dot and root not in _LIBRARIES and not isinstance(trainer.arguments, Arguments | Parsed):
        notes.called.discard(name)
        call.doubt(f"vramtop does not know the trainer {path} and does not follow it.")
    return trainer


def _make_loader(call: Call) -> Any:
    """Follow ``DataLoader(data, batch_size=8)``; loaders of test data count only if there is no other."""
    hints = call.notes.hints
    key: str | int = "batch_size" if "batch_size" in call.kwargs else 1
    texts = short_text(call.nodes.get("dataset", call.nodes.get(0))), short_text(call.nodes.get(key))
    is_test = re.search(r"(?i)val|test|eval|dev(?!ice)", " ".join(texts)) is not None
    if not is_test:
        _follow_items(call, call.value(0, "dataset"))
        _doubt_collator(call, "collate_fn")
    setting = call.setting(key) if key == "batch_size" or len(call.args) > 1 else None
    if call.value(1, "batch_size") is None and call.value(None, "batch_sampler") is not None:
        sentence = f"{call.where}: {call.shown('batch_sampler')} decides how many sequences a batch has."
        setting = Setting(value=UNKNOWN, origin=sentence)
    if setting is None or setting.value is None:
        return UNKNOWN
    if is_test and type(setting.value) is int:
        hints.setdefault("per_device_eval_batch_size", setting)
        hints.setdefault("eval_strategy", setting.with_value("epoch"))
    known = hints.get(_BATCH)
    if is_test:
        hints.setdefault(_BATCH, Setting(value=setting.value, origin=f"{setting.origin}{_OF_TESTS}"))
    elif known is None or known.value is UNKNOWN or known.origin.endswith(_OF_TESTS):
        hints[_BATCH] = setting
    elif type(setting.value) is int and setting.value != known.value:
        hints[_BATCH] = max(known, setting, key=lambda each: int(each.value))
        sentence = f"loaders have batches of {known.value} and {setting.value}; which one trains is not known."
        call.doubt(sentence, key="training.micro_batch")
    return UNKNOWN


def _follow_items(call: Call, data: Any) -> None:
    """Follow ``__getitem__`` of the script's own data set, which may truncate the text."""
    make = data.kind.find("__getitem__") if isinstance(data, Instance) else None
    if isinstance(make, Function):
        call.run.call(make, Call(call.run, call.node, "__getitem__", args=[data, UNKNOWN]))


def _doubt_collator(call: Call, name: str) -> None:
    """Note what makes the batches, where it puts several sequences of each example into one."""
    value = call.value(None, name)
    node = value.kind.node if isinstance(value, Instance) else value.node if isinstance(value, Function) else None
    if node is not None and _JOINS.search(ast.unparse(node)):
        sentence = f"{call.shown(name)}: vramtop does not follow how many sequences it puts into a batch."
        call.doubt(sentence, key="training.sequences_per_example", asks=True)


TRAINING_CALLS: Mapping[str, Callable[[Call], Any]] = {"DataLoader": _make_loader}
"""Functions and classes by the last part of their names."""
