"""Effects of calls into torch, transformers, peft, accelerate and TRL in a script, as far as memory depends on them."""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...job.rules.optimizers.by_name import optimizer_class_names
from ..arguments.table import scripts
from ..source.evidence import Setting
from ..source.versions import AssumedVersion, old_arguments, old_names, transformers_defaults
from ..trl.defaults import argument_defaults, trl_defaults
from ..trl.methods import method_of_class
from .models import (
    CONFIG_DEFAULTS,
    LENGTH_ARGUMENTS,
    AdapterConfig,
    Model,
    ModelConfig,
    QuantizationConfig,
    config_class,
    copy_value,
    from_class,
    from_pretrained,
    get_peft_model,
    is_adapter_config,
    is_model_class,
    loads_model,
    models_in,
    not_followed,
    peft_config,
    prepare_for_kbit,
    quantization_config,
)
from .notes import Notes
from .options import LIBRARIES, MEMORY_ARGUMENTS, Options, Parsed, Parser, field, run_function
from .sharding import SHARDING_FUNCTIONS, initialize_deepspeed
from .training import (
    TRAINING_CONFIG,
    Arguments,
    accumulation,
    is_parameters,
    make_arguments,
    make_loader,
    make_optimizer,
    make_trainer,
    take_options,
)
from .values import (
    UNKNOWN,
    Call,
    Class,
    Function,
    Instance,
    Name,
    Scope,
    Thing,
    plain,
    short_text,
)

if TYPE_CHECKING:
    from .follow import Reader

DIFFUSION = "a model of diffusers"
"""Stands among the names that are called for one of diffusers' models that can be trained."""
_DIFFUSED = re.compile(r"UNet|Transformer\w*Model|ControlNet\w*\.|Prior\w*Model")
_PATCHED = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "flash_attn")
_TRUSTED = scripts().names["trusted_libraries"]
"""Libraries whose functions do what their names say."""
_NEVER_TRAIN = scripts().names["libraries_without_a_loop"]
"""Libraries without a training loop, beside those that are trusted."""
_HARMLESS = re.compile(
    r"(?i).*(policy|evaluat|print|count|summar|log|save|load_state|plot|test|valid|num_|size|generate|pipeline|clip_grad|watch"
    r"|scheduler|collator|seed|show|descri|inspect|type|len|unwrap|metric|mask|rotary|callback|allow).*"
    r"|is_.*|debug|info|warning|error|critical"
)
"""Functions on which no memory of a step depends, by their names."""
_OF_DATA = re.compile(
    r"(?i)data|example|token|chat|template|prompt|text|batch|sample|input|label|feature|message|image|path|str"
)
"""In the names of functions that make data, where they are not given a model."""
_PATCHES = re.compile(r"(?i)(^|_)(monkey|hijack|inject|swap|override|patch(es|ed|ing)?(_|$))")
"""Modules that change what libraries do, by their names."""
_TRAINS = re.compile(r"(?i)train|fit|^(run|main|launch)")
"""Functions that may be the training itself, by their names."""
_MAPS = ("map", "with_transform", "set_transform")
"""Methods of data that call a function of the script for each example, which tells how texts are cut."""
_GROUPS = scripts().names["groups"]
"""Functions by which GPUs share more than the data."""
_AVERAGES = re.compile(r"(?i)ema|ema.?(model|v\d|params)?|.*exponentialmovingaverage|averagedmodel|modelema\w*|.*_ema")
"""Classes that keep an average of a model's weights."""
LOSSES = {"cross_entropy", "CrossEntropyLoss", "FusedCrossEntropyLoss", "nll_loss", "NLLLoss", "log_softmax"}
_RUNNERS = ("Fire", "notebook_launcher", "spawn", "Process", "start_processes", "debug_launcher", "cli")
_STARTS_PROCESSES = ("notebook_launcher", "spawn", "start_processes")
_PARSERS = ("HfArgumentParser", "TrlParser", "ArgumentParser", "H4ArgumentParser")
_TRUE_ON_A_GPU = ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available")
_LIGER = re.compile(r"apply_liger_kernel_to_\w+")


_DECISIVE = (Model, ModelConfig, Arguments, Parsed)
"""Values that a function which is not known may change, and memory with them."""


class Libraries:
    """Answers what libraries' functions return, and notes what they do.

    Args:
        notes: where it is noted.
        options: the script's options.
        find_file: returns a file that the script may read, by the name that it uses.
    """

    def __init__(self, notes: Notes, options: Options, find_file: Callable[[str], Path | None]) -> None:
        self.notes, self._options, self.find_file = notes, options, find_file
        self._has_unsloth = self._loads_unfollowed = False
        self._noted: set[str] = set()
        """Functions that are not known, each noted at its first call."""
        self.reader: Reader

    # What the reader asks

    def call(self, call: Call) -> Any:
        """Return the result of a function that is not the script's, and note what it does."""
        root = call.path.partition(".")[0]
        if call.path.startswith("diffusers.") and _DIFFUSED.search(call.path):
            self.notes.called.add(DIFFUSION)
        if call.name in _GROUPS and root in ("torch", "dist", "deepspeed", "megatron"):
            sentence = f"{call.where}: {call.name}(...) is not read; GPUs may share a model or a sequence by it."
            self.notes.doubt(sentence, key="parallel.context")
        if call.receiver is None and "." in call.path:
            self._note_old(call)
        is_foreign = "." in call.path and root not in ("trl", "transformers", "unsloth") and method_of_class(call.name)
        if not is_foreign:
            self.notes.called.add(call.name)
        handler = (_BY_PATH.get(call.path) if call.receiver is None else None) or _BY_NAME.get(call.name)
        if handler is not None and root not in call.run.own_modules:
            return handler(self, call)
        found = SHARDING_FUNCTIONS.get(call.name)
        if found is not None and root not in call.run.own_modules:
            return found(call, self.notes)
        return self._by_pattern(call, root)

    def _by_pattern(self, call: Call, root: str) -> Any:
        """Follow a class that its name tells."""
        name, path = call.name, call.path
        if root in call.run.own_modules or call.receiver is not None:
            return self._unknown(call)
        if TRAINING_CONFIG.fullmatch(name) or (path.startswith("trl.") and name.endswith("Config")):
            return make_arguments(call, self.notes)
        if name.endswith("Trainer"):
            return make_trainer(call, self.notes, path)
        if name in optimizer_class_names():
            return make_optimizer(call, self.notes)
        if is_adapter_config(path):
            return AdapterConfig(call)
        if re.fullmatch(r"DataCollator\w*|default_data_collator|default_collate", name):
            return Name(path)
        if name.endswith("Config") and name.removesuffix("Config") in CONFIG_DEFAULTS:
            return config_class(call, self.notes)
        if is_model_class(name):
            return from_class(call, self.notes)
        if _LIGER.fullmatch(name):
            return self._liger(call)
        first = call.value(0, "params", "model_params")
        takes = name[:1].isupper() and is_parameters(first) and ("lr" in call.kwargs or not isinstance(first, list))
        return (
            make_optimizer(call, self.notes)
            if takes and not path.startswith("deepspeed.zero.")
            else self._unknown(call)
        )

    def _unknown(self, call: Call) -> Any:
        """Return the result of a function that is not known; it may return the model that it is given."""
        name, root = call.name or short_text(getattr(call.node, "func", call.node)), call.path.partition(".")[0]
        is_own, given = root in call.run.own_modules, [*call.args, *call.kwargs.values()]
        for each in LENGTH_ARGUMENTS if "generat" not in name.lower() else ():
            setting = call.setting(each) if each in call.kwargs else None
            if setting is not None and setting.value is not None:
                self.notes.hints.setdefault(each, setting)
        if call.receiver is not None and call.receiver is not UNKNOWN:
            return UNKNOWN
        for value in given if name in _MAPS else ():
            if isinstance(value, Function):
                call.run.call(value, Call(call.run, call.node, value.name))
        if is_own and is_parameters(call.value(0)):
            return make_optimizer(call, self.notes)
        self._options.is_open |= any(isinstance(value, Parser) for value in given)
        models = list(dict.fromkeys(each for value in given for each in models_in(value)))
        if models and _AVERAGES.fullmatch(name) is not None:
            sentence = f"{call.where}: {name}(...) keeps an average of the weights, which is not counted."
            self.notes.doubt(sentence, key="other_models")
            return UNKNOWN
        if call.receiver is UNKNOWN and name in _MATTER:
            self.notes.doubt(f"{call.where}: {short_text(call.node)}: of what is not known.")
        is_trusted = root in _TRUSTED and not is_own and call.receiver is None
        if is_trusted or _HARMLESS.fullmatch(name) or (not models and _OF_DATA.search(name)):
            return UNKNOWN
        self._doubt_unknown(call, name, models, is_own=is_own)
        taken = call.run.statement is not call.node
        return next((value for value in given if models and models[0] in models_in(value)), UNKNOWN) if taken else None

    def _doubt_unknown(self, call: Call, name: str, models: list[Model], *, is_own: bool) -> None:
        """Note a function that is not known where it is given what decides, or may do anything."""
        given, taken = [*call.args, *call.kwargs.values()], call.run.statement is not call.node
        is_open = "." in call.path or is_own or call.receiver is UNKNOWN
        decides = is_open and any(isinstance(value, _DECISIVE) for value in given)
        acts = not taken and (is_own or (call.receiver is None and call.path.partition(".")[0] in self.notes.foreign))
        if not (decides or acts or (models and (taken or "." in call.path or is_own))) or call.path in self._noted:
            return
        for model in models:
            model.changed_unseen = True
        self._noted.add(call.path)
        where = "in another file, which vramtop does not read" if is_own else "not known"
        self.notes.doubt(f"{call.where}: {name}(...) is {where}.")
        self.notes.trains_elsewhere |= is_own and _TRAINS.search(name) is not None

    def _note_old(self, call: Call) -> None:
        """Note what today's libraries refuse; unsloth makes TRL's trainers take what they took."""
        library, name = call.path.partition(".")[0], call.name
        self._has_unsloth = self._has_unsloth or library == "unsloth"
        for row, found in old_names(call.path):
            self.notes.old_calls.setdefault(row, f"{found} at {call.where}")
        alias = ["TrainingArguments"] if TRAINING_CONFIG.fullmatch(name) and name != "ModelConfig" else []
        names = [] if self._has_unsloth else [(library, name), *(("transformers", each) for each in alias)]
        for row, argument in (each for pair in names for each in old_arguments(*pair, call.kwargs)):
            self.notes.old_calls.setdefault(row, f"{name}({argument}=) at {call.where}")

    def makes_anything(self) -> bool:
        """Return whether something was made that trains."""
        return bool(self.notes.trainers or self.notes.optimizers or self.notes.given)

    def version(self, library: str) -> Any:
        """Return a library's version; UNKNOWN: not known."""
        version = self.notes.versions.get(library.partition(".")[0], UNKNOWN)
        return UNKNOWN if isinstance(version, AssumedVersion) else version

    def imported(self, path: str, where: str) -> None:
        """Note an imported module whose name says that it patches libraries."""
        root = path.partition(".")[0]
        if root not in {*_TRUSTED, *LIBRARIES, *_NEVER_TRAIN, *sys.stdlib_module_names}:
            self.notes.foreign.setdefault(root, where)
            if _PATCHES.search((path.rpartition(".")[0] or path).replace(".", "_")):
                self.notes.doubt(f"{where}: {path} may change what libraries do; it is not read.")

    def decorate(self, function: Function, call: Call) -> Any:
        """Take options of click and typer; note other decorators that give a function its settings."""
        name = call.name.removeprefix("@")
        if name in ("option", "argument"):
            self._options.click_option(function, call)
        elif name == "command" and not function.options:
            function.options = self._options.of_function(function, call.run)
        elif name == "main" and call.kwargs:
            self._options.is_open = True
            self.notes.doubt(
                f"{call.where}: the configuration files of {name}() are not read; its settings are not known."
            )
        elif name == "find_executable_batch_size":
            self.notes.doubt(f"{call.where}: {name} searches for the batch size, and is not followed.")
            return UNKNOWN
        return None

    def make_instance(self, kind: Class, call: Call) -> Any:
        """Return what a class of the script makes that derives from a library's; UNKNOWN: an object like any other."""
        for path in kind.library_bases():
            base = path.rpartition(".")[2]
            call.path = path
            if kind.find("__init__") is UNKNOWN:
                self._note_old(call)
            if base in _PARSERS:
                return self._parser(call)
            if base.endswith("Trainer"):
                return make_trainer(call, self.notes, path, kind)
            if TRAINING_CONFIG.fullmatch(base):
                self.notes.called.add(base)
                return make_arguments(call, self.notes)
            if base in optimizer_class_names():
                return make_optimizer(call, self.notes)
            if base == "Optimizer":
                sentence = f"{call.where}: the memory of the script's own optimizer {kind.name} is not known."
                self.notes.doubt(sentence, key="training.optimizer")
                return make_optimizer(call, self.notes)
            if is_model_class(base):
                call.own_class = kind
                return from_class(call, self.notes)
        return UNKNOWN

    def instance_method(self, instance: Instance, call: Call) -> Any:
        """Return the result of a method of an object of the script's: its own methods are not followed."""
        self.notes.called.add(call.name)
        models, is_own = list(models_in(instance)), isinstance(instance.kind.find(call.name), Function)
        instance.is_open |= is_own
        for model in models:
            model.changed_unseen |= is_own
        if models and not is_own:
            return models[0].method(call)
        if is_own and (models or _TRAINS.search(call.name)):
            self.notes.trains_elsewhere |= _TRAINS.search(call.name) is not None
            self.notes.doubt(f"{call.where}: {instance.kind.name}.{call.name}(...) is not followed.")
        return instance if instance.is_module else UNKNOWN

    def assigned(self, target: Name, value: Any, call: Call) -> None:
        """Note what is assigned to a part of a library."""
        is_code = isinstance(value, Function | Class | Name) or value is UNKNOWN
        if target.path.partition(".")[0] in _PATCHED and is_code and not _HARMLESS.fullmatch(call.name):
            what = ".".join(target.path.split(".")[-2:])
            self.notes.doubt(f"{call.where}: the script replaces {what}; the library's own is assumed.")

    def repeated(self, test: ast.expr, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Note the accumulation in a condition around an optimizer's step."""
        steps = accumulation(test, body, lambda node: self.reader.evaluate(node, scope))
        shown = f"{self.reader.location(test)}: {short_text(test)}"
        if steps:
            self.notes.hints.setdefault("gradient_accumulation_steps", Setting(value=steps, origin=shown))
        elif steps == 0:
            sentence = f"{shown}: how often the optimizer steps is only known when the script runs."
            self.notes.doubt(sentence, key="training.gradient_accumulation")

    def perhaps_trained(self, nodes: Sequence[ast.AST]) -> None:
        """Note that something trains, where either side of a condition calls ``trainer.train``."""
        if any(map(starts_training, (each for node in nodes for each in ast.walk(node)))):
            self.notes.trains = True
            for trainer in self.notes.trainers:
                trainer.ran = True

    def perhaps_replaced(self, value: Thing, where: str) -> None:
        """Ask which model it is, where an assignment that is not followed may load another one."""
        if isinstance(value, Model) and self._loads_unfollowed:
            self.notes.doubt(f"{where}: whether another model is loaded is not known.", key="model.id", asks=True)

    def not_followed(self, nodes: Iterable[ast.AST], why: str, where: str) -> None:
        """Note a part of the script that is not followed, if memory may depend on it."""
        found = [node for part in nodes for node in ast.walk(part) if _matters(node)]
        called = [_called(node).rpartition(".")[2] for node in found]
        self._loads_unfollowed = any(name.startswith("from_") or is_model_class(name) for name in called)
        if found:
            self.notes.doubt(f"{where}: {short_text(found[0])} is not followed{why}; memory may depend on it.")

    def backward(self) -> None:
        """Note a backward pass."""
        self.notes.trains = True
        for model in self.notes.models:
            model.runs_again |= any(loops > len(self.reader.loops) for loops in model.loops)
            model.loops = []

    # Calls by name

    def _load(self, call: Call) -> Any:
        return from_pretrained(call, self.notes)

    def _backward(self, call: Call) -> Any:
        self.backward()
        return UNKNOWN

    def _not_read(self, call: Call) -> Any:
        self.notes.doubt(f"{call.where}: {short_text(call.node)} is not read.")
        return UNKNOWN

    def _run(self, call: Call) -> Any:
        if call.name in _STARTS_PROCESSES:
            number = call.value(2, "nprocs", "num_processes", default=1)
            origin = f"{call.where}: {call.name}(...) starts the processes"
            value = number if isinstance(number, int) else "all GPUs"
            self.notes.written["script_processes"] = Setting(value=value, origin=origin)
        return run_function(self._options, call)

    def _parser(self, call: Call) -> Any:
        self._options.abbreviates &= call.value(None, "allow_abbrev", default=True) is True
        kinds = call.value(0, "dataclass_types", default=[]) if call.name != "ArgumentParser" else []
        kinds = list(kinds) if isinstance(kinds, list | tuple) else [kinds]
        return Parser(self._options, kinds, self._library_class)

    def _library_class(self, kind: Name, call: Call) -> Any:
        """Return the object of a library's class with the options of the command line."""
        name = kind.name
        is_trainers = TRAINING_CONFIG.fullmatch(name) is not None and name != "ModelConfig"
        given = [each for each in self._options.given if each not in self._options.declared]
        for row, option in old_arguments("transformers", "TrainingArguments", given if is_trainers else ()):
            self.notes.old_calls.setdefault(row, self._options.given[option].origin)
        self._options.is_open = True
        self._options.names |= MEMORY_ARGUMENTS
        versions, library = self.notes.versions, transformers_defaults(self.notes.versions)
        if name == "ModelConfig":
            return take_options(
                self._options, name, {**scripts().defaults("model"), **argument_defaults(versions)}, self.notes
            )
        if not is_trainers:
            self._options.abbreviates = False
            return Parsed(self._options)
        sizes = ("per_device_train_batch_size", "gradient_accumulation_steps")
        defaults = {
            **scripts().defaults("training"),
            **{each: library[each].value for each in sizes if each in library},
        }
        method = method_of_class(name)
        if method is not None:
            own = trl_defaults(method.name, versions)
            defaults.update({each: setting.value for each, setting in own.items()})
            defaults.update(argument_defaults(versions))
            defaults["bf16"] = defaults.get("bf16_unless_fp16", False)
        return take_options(self._options, name, defaults, self.notes)

    def _set_environment(self, call: Call) -> Any:
        key, value = call.value(0), call.value(1)
        if call.name == "setdefault" and key in call.run.environ:
            return call.run.environ[key]
        if isinstance(key, str):
            call.run.environ[key] = value
        if key == "CUDA_VISIBLE_DEVICES":
            self.notes.visible_devices = Setting(value=value, origin=f"{call.where}: {key}")
        return value

    def _update_environment(self, call: Call) -> Any:
        table = call.value(0)
        for key, value in {**(table if isinstance(table, dict) else {}), **call.kwargs}.items():
            self._set_environment(Call(call.run, call.node, "__setitem__", None, [key, value]))

    def _liger(self, call: Call) -> Any:
        """Follow ``apply_liger_kernel_to_llama()``, whose arguments switch kernels on and off."""
        origin = f"{call.where}: {call.name}()"
        stated = {name: plain(value) for name, value in call.kwargs.items() if isinstance(plain(value), bool)}
        self.notes.written.setdefault("use_liger_kernel", Setting(value=True, origin=origin))
        if stated:
            self.notes.written.setdefault("liger_kernel_config", Setting(value=stated, origin=origin))
        return None

    def _compile(self, call: Call) -> Any:
        value = call.value(0, "model", default=UNKNOWN)
        for model in models_in(value):
            model.put("torch_compile", True, call.where, "torch.compile(...)")
        if isinstance(value, Instance):
            self.notes.hints.setdefault(
                "torch_compile", Setting(value=True, origin=f"{call.where}: torch.compile(...)")
            )
        return value

    def _checkpoint_layers(self, call: Call) -> Any:
        """Follow ``apply_activation_checkpointing(model)``."""
        value = call.value(0, "model")
        if "context_fn" in call.kwargs or "check_fn" in call.kwargs:
            sentence = f"{call.where}: {call.name}(...) keeps some activations by its policy; none of them are counted."
            self.notes.doubt(sentence, key="training.activation_checkpointing")
        for model in models_in(value):
            model.put("activation_checkpointing", True, call.where, f"{call.name}(...)")
        return value if call.name == "checkpoint_wrapper" else None

    def _set_device(self, call: Call) -> Any:
        self.notes.note_device(call.value(0, "device"), call.where, is_current=True)

    def _device(self, call: Call) -> Any:
        value = call.value(0, "type")
        return value if isinstance(value, str) else UNKNOWN


def starts_training(node: ast.AST) -> bool:
    """Return True for ``loss.backward()`` and ``trainer.train()``."""
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(function, ast.Attribute):
        return False
    return function.attr == "backward" or (function.attr == "train" and "trainer" in ast.unparse(function.value))


_MATTER, _ATTRIBUTES = scripts().names["decisive_calls"], scripts().names["decisive_attributes"]
_OTHER_FUNCTIONS = re.compile(r"(re\.)?compile|(?!.*checkpoint\.).*\.checkpoint|(?!deepspeed\.).*initialize")
"""Functions that share a name with a decisive call but do not change memory."""


def _called(node: ast.AST) -> str:
    """Return the dotted name of what a call calls; empty for anything else."""
    function = node.func if isinstance(node, ast.Call) else None
    return ast.unparse(function) if isinstance(function, ast.Attribute | ast.Name) else ""


def _matters(node: ast.AST) -> bool:
    """Return True for a call or an assignment on which memory may depend."""
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Store) and node.attr in _ATTRIBUTES
    path = _called(node)
    owner, _, name = path.rpartition(".")
    if name in ("from_pretrained", "from_config"):
        return loads_model(owner.rpartition(".")[2])
    is_class = name[:1].isupper() and name not in ("ModelConfig", "Trainer")
    return (
        (name in _MATTER and not _OTHER_FUNCTIONS.fullmatch(path))
        or (name == "deepcopy" and "model" in ast.unparse(node))
        or TRAINING_CONFIG.fullmatch(name) is not None
        or (name.endswith("Trainer") and is_class)
        or (name in optimizer_class_names() and (owner != "" or len(name) > 4))
        or is_adapter_config(name)
        or (is_class and is_model_class(name))
    )


_Handler = Callable[[Libraries, Call], Any]


def _always(value: Any) -> _Handler:
    return lambda _, __: value


def _noting(function: Callable[[Call, Notes], Any]) -> _Handler:
    return lambda self, call: function(call, self.notes)


_OTHER_MODULES = ("backends.mps", "xpu", "mps", "npu", "hpu")
_OTHER_DEVICES = ("torch_xla", "torch_npu", "torch_xpu", "torch_tpu", "torch_mlu", "torch_hpu", "torch_musa")
_BY_PATH: Mapping[str, _Handler] = {
    **dict.fromkeys(("eval", "exec", "setattr"), Libraries._not_read),
    **dict.fromkeys(("torch.compile", "compile"), Libraries._compile),
    "deepspeed.initialize": _noting(initialize_deepspeed),
    "torch.device": Libraries._device,
    **dict.fromkeys(("os.environ.__setitem__", "os.environ.setdefault", "os.putenv"), Libraries._set_environment),
    "os.environ.update": Libraries._update_environment,
    "torch.cuda.set_device": Libraries._set_device,
    "torch.cuda.is_available": _always(True),
    **{f"torch.{name}.is_available": _always(False) for name in _OTHER_MODULES},
    **dict.fromkeys(("typer.run", "app.run", "absl.app.run", "run"), Libraries._run),
    **dict.fromkeys(("typer.Option", "typer.Argument", "Option", "Argument"), lambda _, call: field(call)),
    **dict.fromkeys(("print", "logging.info", "warnings.warn"), _always(None)),
    "copy.copy": _noting(copy_value),
}
_BY_NAME: Mapping[str, _Handler] = {
    **dict.fromkeys(("from_pretrained", "from_config", "for_model"), Libraries._load),
    **dict.fromkeys(_RUNNERS, Libraries._run),
    **dict.fromkeys(_PARSERS, Libraries._parser),
    **dict.fromkeys(("field", "Field"), lambda _, call: field(call)),
    **dict.fromkeys(_TRUE_ON_A_GPU, _always(True)),
    **{f"is_{name}_available": _always(False) for name in _OTHER_DEVICES},
    **dict.fromkeys(("get_rank", "get_local_rank", "get_process_index"), _always(0)),
    **dict.fromkeys(("get_world_size", "get_num_processes"), lambda self, _: self.notes.ranks),
    **dict.fromkeys(
        ("add_argument", "parse_args", "parse_known_args"), lambda self, call: self._parser(call).method(call)
    ),
    "BitsAndBytesConfig": lambda _, call: QuantizationConfig(call),
    "get_peft_model": _noting(get_peft_model),
    "set_default_dtype": Libraries._not_read,
    "backward": Libraries._backward,
    "get_peft_config": _noting(peft_config),
    "get_quantization_config": _noting(quantization_config),
    **dict.fromkeys(("SentenceTransformer", "CrossEncoder", "SparseEncoder"), _noting(not_followed)),
    **dict.fromkeys(("apply_activation_checkpointing", "checkpoint_wrapper"), Libraries._checkpoint_layers),
    **dict.fromkeys(("prepare_model_for_kbit_training", "prepare_model_for_int8_training"), _noting(prepare_for_kbit)),
    **dict.fromkeys(("deepcopy", "create_reference_model"), _noting(copy_value)),
    "DataLoader": _noting(make_loader),
}
"""Functions and methods by the last part of their names."""
