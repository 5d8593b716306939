"""Effects of calls into torch, transformers, peft, accelerate and TRL in a script, as far as memory depends on them."""

import ast
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ....job.rules.optimizers.by_name import optimizer_class_names
from ...source.evidence import MODEL_STATES, Component, Setting
from ...source.versions import AssumedVersion, old_arguments, old_names
from ...trl.methods import method_of_class
from ..command_line.options import Options
from ..command_line.parsed import OPTION_FUNCTIONS, OPTION_PATHS, Parsed
from ..models.adapters import (
    AdapterConfig,
    QuantizationConfig,
    config_class,
    copy_of_class,
    from_class,
    from_pretrained,
    get_peft_model,
    is_adapter_config,
    is_model_class,
    peft_config,
    quantization_config,
    sentence_model,
    set_default_dtype,
)
from ..models.configs import (
    CONFIG_DEFAULTS,
    LENGTH_ARGUMENTS,
    TRAINING_CONFIG,
    Arguments,
    Notes,
    ParsedArguments,
    doubt_patch,
    patch_attention,
)
from ..models.layers import (
    Container,
    assign_attribute,
    freeze_unknown,
    make_layer,
    module_method,
    parameters_of,
    reachable_models,
)
from ..models.model import Model, models_in
from ..python.evaluation import BUILTINS, STANDARD_LIBRARY
from ..python.interpreter import ScriptEndsError
from ..python.values import UNKNOWN, Call, External, Function, Instance, Method, ScriptClass, Thing, short_text
from .collators import is_collator, line_of_several, sequences_by_option
from .trainer_hooks import (
    COLLATORS,
    doubt_forward,
    doubt_groups,
    doubt_import,
    doubt_library_change,
    doubt_trainer,
    doubt_unknown,
)
from .trainers import (
    MODEL_FUNCTIONS,
    TrainerObject,
    UnknownParameters,
    compile_model,
    initialize_deepspeed,
    is_average,
    is_parameters,
    make_arguments,
    make_average,
    make_lightning_trainer,
    make_optimizer,
    make_trainer,
    optimizer_path,
)

_CHANGES_MODELS = re.compile(r"(?i)freeze|lora|peft|quant|prun|adapter|offload|convert|inject|swap|replace|patch|wrap")
"""Functions that change a model which they are given, by their names."""
_ANSWERS = re.compile(r"(?i)response|completion|candidate|answer")
"""In collators that join what was written to one prompt."""
_USUAL = 4
"""Such answers to a prompt, where only the data say how many."""
_PAIR_WORDS = ((r"(?i)chosen|prefer|winner|_w\b", r"(?i)reject|dispref|loser|_l\b"),)
_OUTCOMES = re.compile(r"(?i)reward|log_?p|loss|score|logit|margin|acc|value")
"""In the names of what a model returns, which is joined after it has run."""
_PAIRS = re.compile(r"(?i)reward|pairwise|preference|dpo")
_ADAPTS = re.compile(
    r"(?i)^(?!get|save|load_state|print|is_|has_|find|count|merge).*(?<!no_)(lora|peft|quantiz|freeze)"
)
"""In the names of functions of the script's own that change a model."""
_HARMLESS = re.compile(
    r"(?i).*(policy|evaluat|print|count|summar|log|save|load_state|plot|test|valid|num_|size|generate|pipeline|clip_grad|watch"
    r"|scheduler|collator|apply_liger_kernel).*"
)
_LIBRARIES_OF_WRAPPERS = ("torch", "transformers", "accelerate", "peft", "trl", "datasets", "evaluate", "wandb", "tqdm")
DIFFUSION = "a model of diffusers"
"""Stands among the names that are called for one of diffusers' models that can be trained."""
_DIFFUSED = re.compile(r"UNet|Transformer\w*Model|ControlNet\w*\.|Prior\w*Model")
_LOSS_METHODS = ("compute_loss", "concatenated_forward", "get_batch_loss_metrics", "get_batch_metrics", "dpo_loss")
PAIRED = ("concatenated_forward", "concatenated_inputs")
"""Functions of trainers, after TRL's, in which a chosen and a rejected sequence run as one batch."""
_MAX_POINTS = 16
"""Times at which a script trains with other models in memory, that are noted."""
_MAX_FOLLOWED = 64
"""Functions handed to libraries that are followed, per script."""


_NO_FUNCTION = object()
"""Stands for a function that is not known by its dotted name."""


class ScriptLibrary:
    """Answers what libraries' functions return, and notes what they do.

    Args:
        notes: where it is noted.
        options: the script's options.
    """

    def __init__(self, notes: Notes, options: Options) -> None:
        self.notes, self.options = notes, options
        self._followed = 0
        self._has_unsloth = False

    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of a library's name."""
        if value.path == "sys" and name == "argv":
            return ["script", *self.options.arguments]
        if value.name == "FLAGS":
            return Parsed(self.options).attribute(name)
        if name == "is_floating_point":
            return value.name.startswith(("float", "bfloat", "half", "double"))
        if name == "__version__":
            version = self.notes.versions.get(value.path.partition(".")[0], UNKNOWN)
            return UNKNOWN if isinstance(version, AssumedVersion) else version
        if value.path == "sys" and name == "platform":
            return "linux"
        return External(f"{value.path}.{name}")

    def item(self, run: Any, value: External, key: Any) -> Any:
        """Return what stands at a key of a library's name: a variable of ``os.environ``, a class of a config."""
        if not isinstance(key, str):
            return UNKNOWN if value.name in ("environ", "CONFIG_MAPPING") else value
        if value.name == "CONFIG_MAPPING":
            kind = next((kind for kind, (name, _) in CONFIG_DEFAULTS.items() if name == key), None)
            return External(f"transformers.{kind}Config") if kind is not None else UNKNOWN
        return run.environ.get(key, UNKNOWN) if value.name == "environ" else value

    def imported(self, name: str, where: str) -> None:
        """Note a module that is not here."""
        doubt_import(name, where, self.notes)

    def condition(self, *, decided: bool) -> None:
        """Note the options that decide a condition: they are understood."""
        if decided:
            self.options.decisive.update(self.options.looked_up)
        self.options.looked_up.clear()

    def call(self, call: Call) -> Any:
        """Return the result of a library's function, and note what it does to models, optimizers and settings."""
        if call.path.startswith("diffusers.") and _DIFFUSED.search(call.path):
            self.notes.called.add(DIFFUSION)
        if patch_attention(call, self.notes):
            return None
        if not doubt_patch(call, self.notes):
            doubt_library_change(call, self.notes)
        doubt_groups(call, self.notes)
        if call.receiver is None and "." in call.path:
            self._note_old(call, call.path)
        if not _is_foreign(call):
            self.notes.called.add(call.name)
        if call.path.startswith("@"):
            declared, followed = OPTION_PATHS.get(call.path), MODEL_FUNCTIONS.get(call.path)
            return declared(self.options, call) if declared else followed(call, self.notes) if followed else UNKNOWN
        found = _NO_FUNCTION if call.receiver is not None else self._by_path(call)
        return self._by_name(call) if found is _NO_FUNCTION else found

    def _note_old(self, call: Call, path: str) -> None:
        """Note what today's libraries refuse; unsloth makes TRL's trainers take what they took."""
        library, name = path.partition(".")[0], path.rpartition(".")[2]
        self._has_unsloth = self._has_unsloth or library == "unsloth"
        for row, found in old_names(path):
            self.notes.old_calls.setdefault(row, f"{found} at {call.where}")
        alias = ["TrainingArguments"] if TRAINING_CONFIG.fullmatch(name) and name != "ModelConfig" else []
        names = [] if self._has_unsloth else [(library, name), *(("transformers", each) for each in alias)]
        for row, argument in (each for pair in names for each in old_arguments(*pair, call.kwargs)):
            self.notes.old_calls.setdefault(row, f"{name}({argument}=) at {call.where}")

    def _note_old_options(self, name: str) -> None:
        """Note options that a class of arguments no longer has."""
        given = [option for option in self.options.given if option not in self.options.declared]
        is_trainers = TRAINING_CONFIG.fullmatch(name) is not None and name != "ModelConfig"
        for row, option in old_arguments("transformers", "TrainingArguments", given if is_trainers else ()):
            self.notes.old_calls.setdefault(row, self.options.given[option].origin)

    def _by_path(self, call: Call) -> Any:
        """Follow a function by its dotted name."""
        option, standard = OPTION_PATHS.get(call.path), STANDARD_LIBRARY.get(call.path) or BUILTINS.get(call.path)
        handler = _BY_PATH.get(call.path)
        if option is not None:
            return option(self.options, call)
        if standard is not None:
            return standard(call)
        return handler(self, call) if handler is not None else _NO_FUNCTION

    def _by_name(self, call: Call) -> Any:
        """Follow a function or method by the last part of its name."""
        by_name = _BY_NAME.get(call.name)
        if by_name is not None:
            return by_name(self, call)
        declared = OPTION_FUNCTIONS.get(call.name)
        if declared is not None:
            return declared(self.options, call)
        found = MODEL_FUNCTIONS.get(call.name)
        if found is not None:
            return found(call, self.notes)
        return self._by_pattern(call)

    def _by_pattern(self, call: Call) -> Any:
        """Follow a class that its name tells."""
        name, path = call.name, call.path
        if TRAINING_CONFIG.fullmatch(name) or (path.startswith("trl.") and name.endswith("Config")):
            return make_arguments(call, self.notes)
        if name.endswith("Trainer"):
            if name == "Trainer" and "lightning" in path:
                return make_lightning_trainer(call, self.notes)
            return make_trainer(call, self.notes, path)
        if name in optimizer_class_names():
            return make_optimizer(call, self.notes)
        if is_adapter_config(call):
            return AdapterConfig(call)
        if COLLATORS.fullmatch(name):
            return External(path)
        if is_average(name) and (average := make_average(call, self.notes)) is not None:
            return average
        if name.endswith("Config") and name.removesuffix("Config") in CONFIG_DEFAULTS:
            return config_class(call, self.notes)
        if is_model_class(name):
            return from_class(call, self.notes)
        if path.startswith(("torch.nn.", "nn.")) and name[:1].isupper():
            layer = make_layer(call)
            self.notes.modules += [layer] if isinstance(layer, Container) else []
            return layer
        first = call.value(0, "params", "model_params")
        takes = name[:1].isupper() and is_parameters(first) and ("lr" in call.kwargs or not isinstance(first, list))
        takes = takes and not path.startswith("deepspeed.zero.")  # which gathers them for a while
        return make_optimizer(call, self.notes) if takes else self.unknown(call)

    def unknown(self, call: Call) -> Any:
        """Return the result of a function that is not known; it may return the model that it is given."""
        for name in LENGTH_ARGUMENTS:
            if name in call.kwargs and "generat" not in call.name.lower():
                setting = call.setting(name)
                if setting is not None and setting.value is not None:
                    self.notes.hints.setdefault(name, setting)
        doubt_unknown(call, self.notes)
        given = [*call.args, *call.kwargs.values()]
        models = list(dict.fromkeys(each for value in given for each in models_in(value) if isinstance(each, Model)))
        for value in given:
            self._follow(value, call)
        replaces = any(each in models_in(value) for value in call.run.replaced.get(call.node, ()) for each in models)
        if not models or (call.receiver is not None and not (call.receiver is UNKNOWN and replaces)):
            return UNKNOWN
        name, first = call.name or short_text(getattr(call.node, "func", call.node)), call.path.partition(".")[0]
        is_taken = call.name.islower() and call.run.statement is not call.node
        is_made = not call.name and any(isinstance(value, Model) for value in given)  # FACTORY[name](model)
        changes = replaces or is_taken or is_made or _CHANGES_MODELS.search(name) is not None
        if changes and not _HARMLESS.fullmatch(name) and first not in _LIBRARIES_OF_WRAPPERS:
            self.notes.doubt(
                f"{call.where}: {name}(...) may change the model, but vramtop does not follow it.",
                *MODEL_STATES,
                "activations",
            )
            for model in models:
                model.changed_unseen = True
        if _HARMLESS.fullmatch(name):
            return UNKNOWN
        if len(models) == 1:
            return next((value for value in given if models[0] in models_in(value)), models[0])
        return Container({str(at): value for at, value in enumerate(given) if isinstance(value, Thing)}, call.where)

    def instance_method(self, call: Call) -> Any:
        """Return the result of a method that an object of the script inherits from a library."""
        self.notes.called.add(call.name)
        receiver: Instance = call.receiver
        trainer = receiver.values.get("_trainer")
        if isinstance(trainer, TrainerObject):
            return trainer.method(call)
        optimizer = receiver.values.get("_optimizer")
        if isinstance(optimizer, Thing):
            return optimizer.method(call)
        base = receiver.values.get("_model")
        if isinstance(base, Model) and call.name not in ("parameters", "named_parameters"):
            return base.method(call)
        if call.name == "__init__":
            if _states_model(call):
                receiver.values["_init"] = call
            return None
        return module_method(receiver, call)

    def make_instance(self, kind: ScriptClass, call: Call) -> Any:
        """Return a parser, or a model of a script's class that has the name of transformers'; UNKNOWN for others."""
        if any(path.endswith(("ArgumentParser", "TrlParser")) for path in kind.external_bases()):
            return OPTION_FUNCTIONS["ArgumentParser"](self.options, call)
        found = copy_of_class(kind, call, self.notes)
        if isinstance(found, Model):
            doubt_forward(kind, self.notes)
        return found

    def load(self, call: Call) -> Any:
        """Follow ``from_pretrained``."""
        device_map = call.kwargs.get("device_map")
        self.notes.note_device(device_map.get("") if isinstance(device_map, dict) else device_map, call.where)
        found = from_pretrained(call, self.notes)
        if isinstance(found, Model):
            doubt_forward(call.kind, self.notes)
        return found

    def instance_made(self, found: Instance, call: Call) -> None:
        """Note an object of a script's class that derives from a trainer, an optimizer or a model."""
        self.notes.modules.append(found)
        if is_collator(found.kind) and (_PAIRS.search(found.kind.name) or _names_rejected(found.kind)):
            self._count_pairs(found.kind, call, "puts chosen and rejected sequences into a batch")
        elif is_collator(found.kind) and (where := line_of_several(found.kind)) is not None:
            self.count_several(found.kind, where)
        for path in found.kind.external_bases():
            base = path.rpartition(".")[2]
            if found.kind.find("__init__") is UNKNOWN:
                self._note_old(call, path)
            if base.endswith("Trainer"):
                inner = found.values.pop("_init", None)
                trainer = make_trainer(call if inner is None else inner, self.notes, path)
                found.values["_trainer"] = trainer
                found.values.setdefault("model", trainer.model if trainer.model is not None else UNKNOWN)
                found.values.setdefault("args", trainer.arguments)
                doubt_trainer(found, self.notes)
                self._note_pairs(found.kind, call, of_trl=path.startswith("trl."))
            elif (counted := optimizer_path(found.kind, path)) is not None:
                call.path = counted
                found.values["_optimizer"] = make_optimizer(call, self.notes)
                found.inherited = frozenset(("step", "zero_grad", "add_param_group"))
            elif is_model_class(base) or base.endswith("PreTrainedModel"):
                call.path, call.kind = base, found.kind
                found.values["_model"] = from_class(call, self.notes)

    def _note_pairs(self, kind: ScriptClass, call: Call, *, of_trl: bool) -> None:
        """Note a trainer whose own methods run chosen and rejected sequences together, or compute the loss."""
        for name in PAIRED:
            if isinstance(function := kind.find(name), Function):
                call.run.followed_names.setdefault(name, f"{function.module.name} line {function.node.lineno}")
        own = {name for name in _LOSS_METHODS if isinstance(kind.find(name), Function)}
        if of_trl and own:
            self.notes.own_loss = True
        if own and not of_trl and _names_rejected(kind):
            self._count_pairs(kind, call, "runs chosen and rejected sequences")

    def _count_pairs(self, kind: ScriptClass, call: Call, what: str) -> None:
        place = f"{kind.module.name} line {kind.node.lineno}"
        call.run.followed_names.setdefault(PAIRED[0], place)
        sentence = f"{place}: {kind.name} {what}; two per example are counted."
        self.notes.doubt(sentence, "activations", "logits", key="training.sequences_per_example")

    def _join(self, call: Call) -> Any:
        """Count two sequences where ``torch.cat((chosen, rejected))`` makes one batch of both."""
        parts = getattr(call.expression(0, "tensors"), "elts", ())
        shown = [ast.unparse(each) for each in parts]
        is_pair = len(shown) == 2 and any(all(map(re.search, pair, shown)) for pair in _PAIR_WORDS)
        if is_pair and call.value(1, "dim", "axis", default=0) == 0 and not any(map(_OUTCOMES.search, shown)):
            call.run.followed_names.setdefault(PAIRED[0], call.where)
        return self.unknown(call)

    def count_several(self, maker: ScriptClass | Function, where: str) -> None:
        """Count the sequences of an example that a collator makes, by an option on groups; else a usual number.

        It asks for the number instead where passages are joined, of which there may be dozens beside a query.
        """
        name = maker.name
        key, what = "training.sequences_per_example", f"{name} puts several sequences of each example into a batch"
        given = sequences_by_option({**self.options.given, **dict(self.options.defaults())})
        if given is None and _ANSWERS.search(ast.unparse(maker.node)):
            origin = f"{where}: {what}"
            self.notes.written["script_sequences"] = Setting(value=_USUAL, origin=f"{origin}, usually {_USUAL}")
            sentence = f"{origin}; {_USUAL} are counted, and the range allows for {2 * _USUAL}: only the data say."
            self.notes.doubt(sentence, "activations", "logits", key=key)
            return
        if given is None:
            sentence = f"{where}: their number is not counted: {what}."
            self.notes.doubt(sentence, "activations", "logits", key=key, asks=True)
            return
        origin = f"{where}: {what}, with {given.origin}"
        self.notes.written["script_sequences"] = Setting(value=given.value, origin=origin)
        sentence = f"{origin}: {given.value} of full length are counted, including the query."
        self.notes.doubt(sentence, "activations", "logits", key=key)

    def before_function(self, function: Function, args: list[Any]) -> Any:
        """Return the state of the models that a function is given whose name says that it changes them; else None."""
        return _state(args) if _ADAPTS.search(function.name) else None

    def after_function(self, function: Function, args: list[Any], before: Any, where: str) -> None:
        """Note a function that changes a model by its name, of which nothing was seen."""
        if before and before == _state(args):
            sentence = f"{where}: vramtop does not understand how {function.name}(...) changes the model."
            self.notes.doubt(sentence, *MODEL_STATES, "activations")

    def train_step(self, call: Call) -> Any:
        """Note which models something refers to while the script trains."""
        living = {id(model) for model in reachable_models(call.run, call)}
        if call.name == "backward":
            self.end_step(call)
        if living not in self.notes.living and len(self.notes.living) < _MAX_POINTS:
            self.notes.living.append(living)
        return UNKNOWN

    def step_in_backward(self, call: Call) -> Any:
        """Note a hook on each gradient that steps an optimizer and frees the gradient."""
        value = call.value(0, "hook")
        function = value.function if isinstance(value, Method) else value
        if not isinstance(function, Function):
            sentence = f"{call.where}: vramtop does not follow what the hook does with gradients."
            self.notes.doubt(sentence, "gradients", "optimizer", direction="less")
            return UNKNOWN
        done = ast.unparse(function.node)
        if ".step(" in done and re.search(r"\.zero_grad\(|\.grad = None", done):
            origin = f"{call.where}: {function.name} steps each parameter and frees its gradient"
            self.notes.written["script_in_backward"] = Setting(value=True, origin=origin)
        return UNKNOWN

    def end_step(self, call: Call) -> None:
        """Note the forward passes before a backward pass: all of them keep their activations until then."""
        found: dict[Model, list[tuple[str, bool]]] = {}
        around = call.run.loops
        for model, where, loops in self.notes.passes:
            if loops[: len(around)] == around:
                found.setdefault(model, []).append((where, loops != around))
        for model, places in found.items():
            model.together = max(model.together, places, key=len)
        self.notes.passes.clear()

    def parsed(self, parsed: Parsed, kind: Any, call: Call) -> Any:
        """Return the object that a parser makes of a class: trainers' arguments are noted."""
        names = [kind.name] if isinstance(kind, External) else []
        if isinstance(kind, ScriptClass):
            names = [path.rpartition(".")[2] for path in kind.external_bases()]
        for name in names:
            self.options.take_class(name)
            self._note_old_options(name)
            if TRAINING_CONFIG.fullmatch(name):
                self.notes.called.add(name)
                return ParsedArguments(parsed, Arguments(self.notes, name), self.notes)
        return parsed

    # --- calls by name

    def execute_unknown(self, call: Call) -> Any:
        """Note ``exec`` of what is not known."""
        sentence = f"{call.where}: {short_text(call.node)} may change any setting, but vramtop does not follow it."
        self.notes.doubt(sentence, *_ALL)
        return UNKNOWN

    def _end(self, call: Call) -> Any:
        raise ScriptEndsError

    def _parameters(self, call: Call) -> Any:
        """Return parameters of a model that is not known, or of an object that holds some."""
        found = parameters_of(call.receiver) if call.receiver is not None else None
        return found or UnknownParameters()

    def _loop_method(self, call: Call) -> Any:
        """Note a method of a model that is not known."""
        if call.name == "gradient_checkpointing_enable":
            origin = f"{call.where}: {call.name}()"
            self.notes.hints.setdefault("activation_checkpointing", Setting(value=True, origin=origin))
        return UNKNOWN

    def _update_environment(self, call: Call) -> Any:
        table = call.value(0)
        for key, value in {**(table if isinstance(table, dict) else {}), **call.kwargs}.items():
            self._set_environment(Call(call.run, call.node, "__setitem__", None, [key, value]))

    def _set_environment(self, call: Call) -> Any:
        key, value = call.value(0), call.value(1)
        if call.name == "setdefault" and key in call.run.environ:
            return call.run.environ[key]
        if isinstance(key, str):
            call.run.environ = {**call.run.environ, key: value}
        if key == "CUDA_VISIBLE_DEVICES":
            self.notes.visible_devices = Setting(value=value, origin=f"{call.where}: {key}")
        return value

    def _follow(self, value: Any, call: Call) -> None:
        """Follow a function of the script that a library is given and may call."""
        function = value.function if isinstance(value, Method) else value
        if not isinstance(function, Function) or id(function.node) in call.run.followed:
            return
        self._followed += 1
        if self._followed <= _MAX_FOLLOWED:
            with suppress(ScriptEndsError):  # with arguments that are not known, if it is called at all
                call.run.call(value, Call(call.run, call.node, "", None, scope=call.scope))


_ALL: tuple[Component, ...] = (*MODEL_STATES, "activations", "logits")


def _states_model(call: Call) -> bool:
    """Return True if a call itself states its first argument or the model, and does not pass on what it was given."""
    node = call.node
    first = next(iter(node.args), None) if isinstance(node, ast.Call) else None
    return "model" in call.kwargs if first is None else not isinstance(first, ast.Starred)


def _names_rejected(kind: ScriptClass) -> bool:
    """Return True if a class of the script's names rejected sequences: it trains on preferences."""
    words = (getattr(node, "value", None) or getattr(node, "attr", None) for node in ast.walk(kind.node))
    return any(isinstance(word, str) and "reject" in word.lower() for word in words)


def _state(values: list[Any]) -> list[tuple[Any, ...]]:
    """Return what is known of the models in some values."""
    found = dict.fromkeys(each for value in values for each in models_in(value) if isinstance(each, Model))
    return [
        (model.has_adapters, len(model.rules), dict(model.requires or {}), len(model.replaced), dict(model.settings))
        for model in found
    ]


def _is_foreign(call: Call) -> bool:
    """Return True for a class of another library that has the name of one of TRL's."""
    root, dot, _ = call.path.partition(".")
    return bool(dot) and root not in ("trl", "transformers", "unsloth") and method_of_class(call.name) is not None


_Handler = Callable[[ScriptLibrary, Call], Any]


def _device(call: Call) -> Any:
    value = call.value(0, "type")
    return value if isinstance(value, str) else UNKNOWN


def _apply(function: Callable[[Call], Any]) -> _Handler:
    return lambda _, call: function(call)


def _noting(function: Callable[[Call, Notes], Any]) -> _Handler:
    return lambda library, call: function(call, library.notes)


_BY_PATH: Mapping[str, _Handler] = {
    **dict.fromkeys(("sys.exit", "exit", "quit", "os._exit"), ScriptLibrary._end),
    "eval": ScriptLibrary.execute_unknown,
    "setattr": _noting(assign_attribute),
    "torch.compile": _noting(compile_model),
    "deepspeed.initialize": _noting(initialize_deepspeed),
    "torch.device": _apply(_device),
    **dict.fromkeys(("os.environ.__setitem__", "os.environ.setdefault", "os.putenv"), ScriptLibrary._set_environment),
    "os.environ.update": ScriptLibrary._update_environment,
    "torch.cuda.set_device": _noting(
        lambda call, notes: notes.note_device(call.value(0, "device"), call.where, is_current=True)
    ),
    "compile": _noting(compile_model),
}
_BY_NAME: Mapping[str, _Handler] = {
    **dict.fromkeys(("from_pretrained", "from_config", "for_model"), ScriptLibrary.load),
    **dict.fromkeys(("parameters", "named_parameters"), ScriptLibrary._parameters),
    **dict.fromkeys(("cat", "concat", "concatenate"), ScriptLibrary._join),
    "BitsAndBytesConfig": _apply(QuantizationConfig),
    "get_peft_model": _noting(get_peft_model),
    "set_default_dtype": _noting(set_default_dtype),
    "backward": ScriptLibrary.train_step,
    "get_peft_config": _apply(peft_config),
    "get_quantization_config": _apply(quantization_config),
    **dict.fromkeys(("get_rank", "get_local_rank", "get_process_index"), _apply(lambda _: 0)),
    "register_post_accumulate_grad_hook": ScriptLibrary.step_in_backward,
    "requires_grad_": _noting(freeze_unknown),
    **dict.fromkeys(("SentenceTransformer", "CrossEncoder", "SparseEncoder"), _noting(sentence_model)),
    "gradient_checkpointing_enable": ScriptLibrary._loop_method,
}
