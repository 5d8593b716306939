"""Trainers, their arguments, optimizers and data loaders of a script."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...job.rules.optimizers.by_name import NOT_KNOWN, optimizer_arguments, optimizer_by_class
from ..arguments.table import scripts
from ..source.data_files import NULL_IS_NO_LIMIT, NULL_IS_WRONG
from ..source.evidence import UNKNOWN_TABLE, Setting
from ..trl.methods import TRAINER_NAMES, method_of_class
from .models import DECISIVE_ARGUMENTS, AdapterConfig, Model, Part, add_adapters, models_in, not_followed
from .notes import Notes
from .options import LIBRARIES, Options, Parsed
from .values import UNKNOWN, Attribute, Call, Class, Function, Instance, Name, Thing, plain, short_text

TRAINING_CONFIG = re.compile(rf"[A-Za-z0-9]*TrainingArguments|(Async)?({TRAINER_NAMES})(v2)?Config|ModelConfig")
SIZE_ARGUMENTS = ("per_device_train_batch_size", "max_length")
"""Arguments whose default is hardly meant where a script computes them: the user is asked for the value."""
_SETTINGS_OF_OLD_TRAINERS = scripts().names["settings_of_old_trainers"]
"""What TRL's trainers took themselves before 0.13, and their configurations since."""
_LIBRARIES = scripts().names["libraries_of_trainers"]
"""Libraries whose trainers are transformers', or derived from it."""
_LOSS_METHODS = ("compute_loss", "concatenated_forward", "get_batch_loss_metrics", "get_batch_metrics", "dpo_loss")
_PAIRED = re.compile(r"(?i)chosen|reject|negative|\bneg_|pos_|choices|candidates|pairs|concatenated")
"""In a collator: words of batches that hold several sequences for each example."""
_JOINS = re.compile(r"\b(cat|concat|concatenate|chain|from_iterable|extend|repeat|repeat_interleave|sum)\(")
"""In a collator: what joins sequences."""


class Arguments(Thing):
    """``TrainingArguments(...)`` or one of its kin.

    Args:
        name: the class's name.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: dict[str, Setting] = {}
        self.values: dict[str, Any] = {}
        self.unresolved: dict[str, str] = {}

    def read(self, call: Call) -> None:
        """Take the keywords of its constructor."""
        for name, value in call.kwargs.items():
            text = f"{self.name}({name}={short_text(call.nodes.get(name))})"
            self._put(name, value, call.setting(name, self.name), f"{call.where}: {text}")
        if call.args and (setting := call.setting(0)) is not None:
            self.fields.setdefault("output_dir", setting)
        if call.unknown_table is not None:
            text = f"{self.name}(**{short_text(call.unknown_table)})"
            sentence = f"{call.where}: {text} is only known when the script runs; defaults are counted."
            self.unresolved[UNKNOWN_TABLE] = sentence

    def _put(self, name: str, value: Any, setting: Setting | None, text: str) -> None:
        self.values[name] = value
        self.fields.pop(name, None)
        self.unresolved.pop(name, None)
        if setting is not None and (setting.value is not None or name in (*NULL_IS_NO_LIMIT, *NULL_IS_WRONG)):
            self.fields[name] = setting
        elif setting is None and name in DECISIVE_ARGUMENTS:
            counted = "." if name in SIZE_ARGUMENTS else "; its default is counted."
            self.unresolved[name] = f"{text} is only known when the script runs{counted}"

    def attribute(self, name: str) -> Any:
        """Return an argument's value."""
        if name in ("train_batch_size", "eval_batch_size"):
            return self.values.get(f"per_device_{name}", UNKNOWN)
        known = self.values.get(name, UNKNOWN)
        return Attribute(self, name) if name in ("to_dict", "set_training", "set_optimizer") else known

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to an argument."""
        known, text = plain(value), f"{call.where}: {self.name}.{name} = {plain(value)}"
        setting = None if known is UNKNOWN else Setting(value=known, origin=text)
        self._put(name, value, setting, f"{call.where}: {self.name}.{name}")


class Optimizer(Thing):
    """An optimizer, by the call that makes it."""

    def __init__(self, call: Call) -> None:
        self.name, self.path, self.where = call.name, call.path, call.where
        self.arguments = {key: plain(value) for key, value in call.kwargs.items() if key not in ("params", "model")}
        """Keyword arguments; UNKNOWN for those only known at run time."""
        self.given: list[Any] = [call.value(0, "params", "model_params", "parameters", "model")]

    @property
    def setting(self) -> Setting:
        """Its row: an ``OptimizerChoice``."""
        known = {name: value for name, value in self.arguments.items() if name in optimizer_arguments()}
        for group in self._groups():
            known |= {name: plain(value) for name, value in group.items() if name in optimizer_arguments()}
        given = {name: NOT_KNOWN if value is UNKNOWN else value for name, value in known.items()}
        return Setting(value=optimizer_by_class(self.path, given), origin=f"{self.where}: {self.name}(...)")

    def _groups(self) -> Iterator[Mapping[str, Any]]:
        for value in self.given:
            yield from (each for each in value if isinstance(each, dict)) if isinstance(value, list) else ()

    def models(self) -> list[Model]:
        """Return the models whose parameters it is given."""
        return list(dict.fromkeys(models_in(self.given)))

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return UNKNOWN if name in ("param_groups", "state") else Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Take groups that are added."""
        if call.name == "add_param_group":
            self.given.append(call.value(0, "param_group"))
        return UNKNOWN


def is_parameters(value: Any) -> bool:
    """Return True for what an optimizer is given: parameters, a list of them, or groups of them."""
    if isinstance(value, list | tuple) and value:
        first = value[0]
        return is_parameters(first) or (isinstance(first, dict) and "params" in first)
    return isinstance(value, Part) and not isinstance(value, Model)


def make_optimizer(call: Call, notes: Notes) -> Optimizer:
    """Follow the constructor of an optimizer."""
    optimizer = Optimizer(call)
    notes.optimizers.append(optimizer)
    return optimizer


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
        self.ran = False
        self.others: list[tuple[str, Setting, Any]] = []
        """Roles and names of other models, and the model or its name as it is given."""

    def read(self, call: Call) -> None:
        """Take the arguments of its constructor."""
        key: str | int = next((name for name in ("model", "student_model") if name in call.kwargs), 0)
        model = call.value(0, "model", "student_model")
        self.arguments = call.value(1, "args", "config", "training_args")
        if not isinstance(self.arguments, Thing):
            self.arguments = next((each for each in call.args if isinstance(each, Arguments)), self.arguments)
        if call.unknown_table is not None and isinstance(self.arguments, Thing):
            text = f"{call.name}(**{short_text(call.unknown_table)})"
            self._notes.doubt(f"{call.where}: {text}: vramtop does not follow how batches are made.")
        elif self.arguments is UNKNOWN or call.unknown_table is not None:
            sentence = f"{call.where}: the arguments of {call.name}(...) are not known; defaults are counted."
            self._notes.doubt(sentence)
            self._notes.unresolved.setdefault("per_device_train_batch_size", sentence)
        for name in ("data_collator", "collate_fn"):
            doubt_collator(call.value(None, name), call, self._notes, name)
        for name in ("compute_metrics", "preprocess_logits_for_metrics"):
            if call.value(None, name) is not None:
                self._notes.hints[name] = Setting(value=True, origin=f"{call.where}: {call.name}({name}=...)")
        if isinstance(call.value(None, "model_init"), Function):
            model = call.run.call(call.kwargs["model_init"], Call(call.run, call.node, ""))
        if isinstance(model, str):
            self.model_name = call.setting(key)
        elif model is not None:
            self.model = model
        if model is UNKNOWN:
            shown = short_text(call.nodes.get(key))
            self._notes.doubt(f"{call.where}: the model {shown} that {call.name} trains is not known.", key="model.id")
        self._take_adapters(call)
        self._take_settings(call)
        for role, names in scripts().aliases["argument"].items():
            for name in names if role != "length" else ():
                self._take_other(call, name, role)
        self._take_optimizer(call)

    def _take_settings(self, call: Call) -> None:
        """Take the settings that a trainer is given itself."""
        for name in _SETTINGS_OF_OLD_TRAINERS:
            setting = call.setting(name) if name in call.kwargs else None
            if setting is not None and setting.value is not None:
                self._notes.written.setdefault(name, setting)
            elif setting is None and name in call.kwargs and name in DECISIVE_ARGUMENTS:
                sentence = f"{call.where}: {call.shown(name)} is only known when the script runs."
                self._notes.unresolved.setdefault("max_length", sentence)

    def _take_optimizer(self, call: Call) -> None:
        given = call.value(None, "optimizers")
        first = given[0] if isinstance(given, list | tuple) and given else given
        if first is not None and not isinstance(first, Optimizer):
            sentence = f"{call.where}: {call.shown('optimizers')} is an optimizer that is not known."
            self._notes.doubt(sentence, key="training.optimizer")

    def _take_adapters(self, call: Call) -> None:
        config = call.value(None, "peft_config")
        if isinstance(config, AdapterConfig):
            self.adapters = config
            if isinstance(self.model, Model) and not self.model.has_adapters:
                add_adapters(self.model, config, call, text=f"{call.name}(peft_config=...)")
        elif config is not None:
            sentence = f"{call.where}: {call.shown('peft_config')} is not known; no adapters are counted."
            self._notes.doubt(sentence, key="lora.rank")

    def _take_other(self, call: Call, name: str, role: str) -> None:
        """Take a model besides the trained one, by its name or as the script loads it."""
        value = call.value(None, name)
        if name == "reward_funcs" and value and isinstance(value, list) and all(isinstance(v, Function) for v in value):
            origin = f"{call.where}: {call.name}({name}=...): functions of the script"
            self._notes.assigned[name] = Setting(value=[], origin=origin)
        for each in value if isinstance(value, list | tuple) else [value]:
            origin = f"{call.where}: {call.name}({name}=...)"
            found = each.source if isinstance(each, Model) else Setting(value=each, origin=origin)
            if each is self.model or isinstance(each, Function | Instance | type(None)):
                continue
            if isinstance(each, Model | str) and found is not None:
                self.others.append((role, found, each))
            elif "trl" not in getattr(each, "path", ""):
                self._notes.doubt(f"{call.where}: {call.shown(name)} is not known.", key="other_models")

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
            self.ran = self._notes.trains = True
            if call.name == "fit" and call.args:
                self.model = call.args[0]
        return UNKNOWN

    def parts(self) -> Iterator[Any]:
        """Yield the models that it keeps."""
        yield self.model


def make_trainer(call: Call, notes: Notes, path: str, kind: Class | None = None) -> Any:
    """Follow the constructor of a trainer, or of a class of the script that is derived from one.

    Args:
        call: the call.
        notes: where it is noted.
        path: the trainer's dotted name.
        kind: the script's class.
    """
    name = path.rpartition(".")[2]
    root, dot, _ = path.partition(".")
    trainer = TrainerObject(notes, name, call.where)
    if "lightning" in path:
        return not_followed(call, notes)
    trainer.read(call)
    notes.trainers.append(trainer)
    notes.called.add(name)
    own = [name for name, each in kind.members.items() if isinstance(each, Function)] if kind is not None else []
    if kind is not None and own:
        sentence = f"{call.run.location(kind.node)}: the methods of {kind.name} ({', '.join(own[:3])}) are not read."
        notes.doubt(sentence)
        notes.own_loss |= not {*own}.isdisjoint(_LOSS_METHODS) and method_of_class(name) is not None
    if dot and root not in _LIBRARIES and not isinstance(trainer.arguments, Arguments | Parsed):
        notes.called.discard(name)
        notes.doubt(f"{call.where}: vramtop does not know the trainer {path} and does not follow it.")
    return trainer


def make_arguments(call: Call, notes: Notes) -> Any:
    """Follow ``TrainingArguments(...)``."""
    arguments = Arguments(call.name)
    arguments.read(call)
    notes.arguments.append(arguments)
    return arguments


def make_loader(call: Call, notes: Notes) -> Any:
    """Follow ``DataLoader(data, batch_size=8)``; loaders of test data count only if there is no other."""
    key: str | int = "batch_size" if "batch_size" in call.kwargs else 1
    is_test = re.search(r"(?i)val|test|eval|dev", short_text(call.nodes.get("dataset", call.nodes.get(0)))) is not None
    name = "per_device_train_batch_size"
    if not is_test:
        doubt_collator(call.value(None, "collate_fn"), call, notes, "collate_fn")
    if call.value(1, "batch_size") is None:
        if call.value(None, "batch_sampler") is not None and not is_test:
            sentence = f"{call.where}: {call.shown('batch_sampler')} decides how many sequences a batch has."
            notes.unresolved.setdefault(name, sentence)
        return UNKNOWN
    setting, known = call.setting(key), notes.hints.get(name)
    if setting is not None and isinstance(setting.value, int | str):
        if known is None or (not is_test and known.origin.endswith("(test data)")):
            suffix = " (test data)" if is_test else ""
            notes.hints[name] = Setting(value=setting.value, origin=f"{setting.origin}{suffix}")
    elif not is_test and known is None:
        sentence = f"{call.where}: {call.name}(batch_size=...) is only known when the script runs."
        notes.unresolved.setdefault(name, sentence)
    return UNKNOWN


def doubt_collator(value: Any, call: Call, notes: Notes, name: str) -> None:
    """Note what makes the batches, where it may put several sequences of each example into one."""
    node = value.kind.node if isinstance(value, Instance) else value.node if isinstance(value, Function) else None
    text = ast.unparse(node) if node is not None else ""
    joins = _PAIRED.search(text) is not None or _JOINS.search(text) is not None
    root, dot, _ = value.path.partition(".") if isinstance(value, Name) else ("", "", "")
    if node is not None or value is UNKNOWN or (dot and root not in LIBRARIES):
        sentence = f"{call.where}: {call.shown(name)}: vramtop does not follow how many sequences it puts into a batch."
        notes.doubt(sentence, key="training.sequences_per_example", asks=joins)


def take_options(options: Options, name: str, defaults: Mapping[str, Any], notes: Notes) -> Parsed:
    """Return the object that a parser makes of a library's class."""
    notes.called.update([name] if TRAINING_CONFIG.fullmatch(name) else [])
    return Parsed(options, None, defaults)


def accumulation(test: ast.expr, body: Iterable[ast.stmt], evaluate: Any) -> int | None:
    """Return the accumulation in a condition around an optimizer's step: ``(step + 1) % accumulation == 0``.

    None: the condition is about something else; 0: the number is not known.
    """
    steps = any(isinstance(node, ast.Attribute) and node.attr == "step" for each in body for node in ast.walk(each))
    for node in ast.walk(test) if steps else ():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            found = evaluate(node.right)
            return found if type(found) is int and 0 < found <= 4096 else 0
    return None
