"""Effects of calls into torch, transformers, peft, accelerate and TRL in a script, as far as memory depends on them."""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from ...job.rules.optimizers.by_name import optimizer_class_names
from ..arguments.table import scripts
from ..source.old_calls import old_arguments, old_names
from ..source.settings import Setting
from ..source.versions import AssumedVersion
from ..trl.methods import method_of_class
from .configs import CONFIG_DEFAULTS, LENGTH_ARGUMENTS
from .model_calls import ENCODERS, MODEL_CALLS, config_class, from_class, is_model_class, loads_model
from .models import AdapterConfig, Model, is_adapter_config, models_in
from .notes import Doubt, Notes
from .options import LIBRARIES, TRAINING_CONFIG, Parser, field, run_function
from .sharding import SHARDING_CALLS
from .training import TRAINING_CALLS, is_parameters, make_arguments, make_optimizer, make_trainer
from .values import UNKNOWN, Call, Class, Function, Instance, Name, plain, short_text

DIFFUSION = "a model of diffusers"
"""Stands among the names that are called for one of diffusers' models that can be trained."""
_DIFFUSED = re.compile(r"diffusers\..*(UNet|Transformer\w*Model|ControlNet\w*\.|Prior\w*Model)")
DECIDING_LIBRARIES = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "flash_attn")
"""Libraries whose functions decide how much memory a step takes."""
_TRUSTED = scripts().names["trusted_libraries"]
"""Libraries whose functions do what their names say."""
_NEVER_TRAIN = scripts().names["libraries_without_a_loop"]
"""Libraries without a training loop, beside those that are trusted."""
_HARMLESS = re.compile(rf"(?i).*({'|'.join(scripts().names['harmless'])}).*|is_.*|debug|info|warning|error|critical")
"""Functions on which no memory of a step depends, by their names."""
_TRAINS = re.compile(r"(?i)train|fit|^(run|main|launch)")
"""Functions that may be the training itself, by their names."""
_GENERATES = re.compile(r"(?i)generat|pipeline$|^(pipe|chat|infer|predict)$")
"""Names of functions that generate text, whose length says nothing about that of the training."""
_MAPS = ("map", "with_transform", "set_transform")
"""Methods of data that call a function of the script for each example, which tells how texts are cut."""
_GROUPS = scripts().names["groups"]
"""Functions by which GPUs share more than the data."""
_AVERAGES = re.compile(r"(?i)ema|ema.?(model|v\d|params)?|.*exponentialmovingaverage|averagedmodel|modelema\w*|.*_ema")
"""Classes that keep an average of a model's weights."""
_CUTS_GRAPH = re.compile(r"no_grad|detach|inference_mode|requires_grad|checkpoint")
"""Words in a class's source that suggest it trains only part of the model."""
_RUNNERS = ("Fire", "notebook_launcher", "spawn", "Process", "start_processes", "debug_launcher", "cli")
_PARSERS = ("HfArgumentParser", "TrlParser", "ArgumentParser", "H4ArgumentParser")
_USUAL_TORCH = "2.13.0"
"""The version of torch where none is known; scripts ask whether it is 2."""
_TRUE_ON_A_GPU = ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available")


def call_library(call: Call) -> Any:
    """Return the result of a function that is not the script's, and note what it does."""
    notes, root = call.notes, call.path.partition(".")[0]
    if _DIFFUSED.search(call.path):
        notes.called.add(DIFFUSION)
    if call.name in _GROUPS and root in ("torch", "dist", "deepspeed", "megatron"):
        sentence = f"{call.name}(...) is not read; GPUs may share a model or a sequence by it."
        call.doubt(sentence, key="parallel.context")
    if call.receiver is None and "." in call.path:
        _note_old(call)
    if not ("." in call.path and root not in ("trl", "transformers", "unsloth") and method_of_class(call.name)):
        notes.called.add(call.name)
    handler = (_CALLS.get(call.path) if call.receiver is None else None) or _CALLS.get(f"*.{call.name}")
    return handler(call) if handler is not None else _by_pattern(call) if call.receiver is None else _unknown(call)


def _by_pattern(call: Call) -> Any:
    """Follow a class that its name tells."""
    name, path, first = call.name, call.path, call.value(0, "params", "model_params")
    takes = name[:1].isupper() and is_parameters(first) and ("lr" in call.kwargs or not isinstance(first, list))
    handler: Callable[[Call], Any] = _unknown
    if TRAINING_CONFIG.fullmatch(name) or (path.startswith("trl.") and name.endswith("Config")):
        handler = make_arguments
    elif name.endswith("Trainer"):
        return make_trainer(call, path)
    elif name in optimizer_class_names() or (takes and not path.startswith("deepspeed.zero.")):
        handler = make_optimizer
    elif is_adapter_config(path):
        handler = AdapterConfig
    elif re.fullmatch(r"DataCollator\w*|default_data_collator|default_collate", name):
        return Name(path)
    elif name.endswith("Config") and name.removesuffix("Config") in CONFIG_DEFAULTS:
        handler = config_class
    elif is_model_class(name):
        handler = from_class
    elif name.lstrip("_").startswith("apply_liger_kernel_to_"):
        handler = _liger
    return handler(call)


def _unknown(call: Call) -> Any:
    """Return the result of a function that is not known; it may return the model that it is given."""
    name, given = call.name or short_text(getattr(call.node, "func", call.node)), [*call.args, *call.kwargs.values()]
    root, notes = call.path.partition(".")[0], call.notes
    for each, setting in call.settings(*LENGTH_ARGUMENTS).items() if not _GENERATES.search(name) else ():
        known = notes.hints.setdefault(each, setting)
        if type(known.value) is type(setting.value) is int and known.value != setting.value:
            notes.hints[each] = max(known, setting, key=lambda found: int(found.value))
    if call.receiver is not None and call.receiver is not UNKNOWN:
        return UNKNOWN
    for value in given if name in _MAPS else ():
        if isinstance(value, Function | Instance):
            more, path = call.value(None, "fn_kwargs"), getattr(value, "name", name)
            call.run.call(value, Call(call.run, call.node, path, kwargs=more if isinstance(more, dict) else {}))
    taken = [each for each in given if name not in _MAPS or not isinstance(each, Instance)]
    models = list(dict.fromkeys(each for value in taken for each in models_in(value)))
    if models and _AVERAGES.fullmatch(name):
        return call.doubt(f"{name}(...) keeps an average of the weights, which is not counted.", key="other_models")
    if call.receiver is UNKNOWN and name in _MATTER:
        call.doubt(f"{short_text(call.node)}: of what is not known.")
    is_trusted = (root in _TRUSTED or root in sys.stdlib_module_names) and call.receiver is None
    if not models or is_trusted or _HARMLESS.fullmatch(name):
        return UNKNOWN
    for model in models:
        model.changed_unseen = True
    call.doubt(f"{name}(...) is not known.")
    return next(value for value in given if models[0] in models_in(value))


def _note_old(call: Call) -> None:
    """Note what today's libraries refuse; unsloth makes TRL's trainers take what they took."""
    library, name = call.path.partition(".")[0], call.name
    call.notes.has_unsloth |= library == "unsloth"
    for row, found in old_names(call.path):
        call.notes.old_calls.setdefault(row, f"{found} at {call.where}")
    alias = ["TrainingArguments"] if TRAINING_CONFIG.fullmatch(name) and name != "ModelConfig" else []
    names = [(library, name), *(("transformers", each) for each in alias)]
    for pair in names if not call.notes.has_unsloth else ():
        for row, argument in old_arguments(*pair, call.kwargs):
            call.notes.old_calls.setdefault(row, f"{name}({argument}=) at {call.where}")


def version(library: str, notes: Notes) -> Any:
    """Return a library's version; UNKNOWN: not known."""
    root = library.partition(".")[0]
    found = notes.versions.get(root, _USUAL_TORCH if root == "torch" else UNKNOWN)
    return UNKNOWN if isinstance(found, AssumedVersion) else found


def imported(path: str, where: str, notes: Notes) -> None:
    """Note an imported module that vramtop does not know."""
    root = path.partition(".")[0]
    if root in ("trl", "unsloth"):
        notes.first_trainers = notes.first_trainers or root
    if root not in {*_TRUSTED, *LIBRARIES, *_NEVER_TRAIN, *sys.stdlib_module_names}:
        notes.foreign.setdefault(root, where)


def decorate(function: Function, call: Call) -> Any:
    """Take options of click and typer; note other decorators that give a function its settings."""
    name, options = call.name, call.notes.options
    if name in ("option", "argument"):
        options.add_argument(call)
    elif name == "command":
        function.options = options.of_function(function, call.run)
    elif name == "main" and call.kwargs:
        call.doubt(f"the configuration files of {name}() are not read; its settings are not known.")
    elif name == "find_executable_batch_size":
        return call.doubt(f"{name} searches for the batch size, and is not followed.")
    return function


def make_instance(kind: Class, call: Call) -> Any:
    """Return what a class of the script makes that derives from a library's; UNKNOWN: an object like any other."""
    for path in kind.library_bases():
        base = path.rpartition(".")[2]
        call.path = path
        _note_old(call)
        if base.endswith("Trainer"):
            start = kind.find("__init__")
            if isinstance(start, Function) and start.node.args.vararg is None:  # what it does not take, it makes itself
                names = [each.arg for each in start.node.args.args[1:]]
                given = dict(zip(names, call.args, strict=False))
                call.kwargs, call.args = {"model": UNKNOWN, "args": UNKNOWN, **given, **call.kwargs}, []
            return make_trainer(call, path, kind)
        if base in _PARSERS:
            return Parser(call)
        if TRAINING_CONFIG.fullmatch(base):
            call.notes.called.add(base)
            own = {name: kind.find(name) for name in kind.fields}
            call.kwargs = {**{name: value for name, value in own.items() if value is not UNKNOWN}, **call.kwargs}
            return UNKNOWN if isinstance(kind.find("__init__"), Function) else make_arguments(call)
        if base == "Optimizer":
            sentence = f"the memory of the script's own optimizer {kind.name} is not known."
            call.doubt(sentence, key="training.optimizer")
            call.path = f"own.{kind.name}"  # which is none of torch's, whatever its name
        if base == "Optimizer" or base in optimizer_class_names():
            return make_optimizer(call)
    return UNKNOWN


def class_method(kind: Class, call: Call) -> Any:
    """Return what a class method of the script returns; its body is not followed.

    A class of its own that loads weights is one of the library's with other layers: what is known of it is counted.
    """
    call.doubt(f"{kind.name}.{call.name}(...) is not followed.")
    names = (kind.name, *(path.rpartition(".")[2] for path in kind.library_bases()))
    is_model = any(name.endswith("PreTrainedModel") or is_model_class(name) for name in names[1:])
    owner = next((name for name in names if is_model and is_model_class(name)), None)
    if call.name != "from_pretrained" or owner is None:
        return UNKNOWN
    model = call_library(msgspec.structs.replace(call, path=f"{owner}.{call.name}", receiver=None))
    if isinstance(model, Model):
        model.changed_unseen = True
    return model


def own_method(instance: Instance, call: Call) -> Any:
    """Return what a method of one of the script's objects returns; methods of torch modules are not followed."""
    call.notes.called.add(call.name)
    own = instance.kind.find(call.name)
    if isinstance(own, Function) and not instance.is_module:
        return call.run.call(own, call.after(instance))
    models, is_own = list(models_in(instance)), isinstance(own, Function)
    instance.is_open |= is_own
    for model in models:
        model.changed_unseen |= is_own
    if models and not is_own:
        if instance.is_module:
            doubt_own_layers(models[0], instance.kind, call.notes)
        return models[0].method(call)
    if is_own and (models or _TRAINS.search(call.name)):
        call.notes.trains_elsewhere |= _TRAINS.search(call.name) is not None
        call.doubt(f"{instance.kind.name}.{call.name}(...) is not followed.")
    if is_own or instance.is_module:
        return instance if instance.is_module else UNKNOWN
    call.receiver = UNKNOWN  # what one of its attributes does: a tokenizer
    return call_library(call)


def doubt_own_layers(model: Model, kind: Class, notes: Notes) -> None:
    """Note that a class of the script's holds the model; its own layers take more memory unless it cuts the graph."""
    only_adds = _CUTS_GRAPH.search(ast.unparse(kind.node)) is None
    sentence = f"{model.where}: {kind.name} holds the model; its own layers are not counted."
    notes.doubt(sentence, key="other_models" if only_adds else None)


def assigned(target: Name, value: Any, call: Call) -> None:
    """Note what is assigned to a part of a library."""
    is_code = isinstance(value, Function | Class | Name) or value is UNKNOWN
    if target.path.partition(".")[0] in DECIDING_LIBRARIES and is_code and not _HARMLESS.fullmatch(call.name):
        call.doubt(f"the script replaces {'.'.join(target.path.split('.')[-2:])}; the library's own is assumed.")


def not_followed(nodes: Iterable[ast.AST], why: str, where: str, notes: Notes) -> None:
    """Note a part of the script that is not followed, if memory may depend on it."""
    found = [node for part in nodes for node in ast.walk(part) if _matters(node)]
    called = [_called(node).rpartition(".")[2] for node in found]
    notes.loads_unfollowed = any(name.startswith("from_") or is_model_class(name) for name in called)
    if any(name in ("get_peft_model", "add_adapter") for name in called):
        for model in notes.models:
            model.changed_unseen = True
    lengths = all(getattr(node, "attr", "") in (*LENGTH_ARGUMENTS, "model_max_length") for node in found)
    if found:
        sentence = f"{where}: {short_text(found[0])} is not followed{why}; memory may depend on it."
        if {*called} <= {*ENCODERS}:
            notes.encoders.append(Doubt(sentence=sentence))
        else:  # DataParallel splits batches, and gathers outputs on the first GPU: weights and their like are whole
            splits = {*called} == {"DataParallel"}
            key = "training.micro_batch" if splits else "training.sequence_length" if lengths else None
            notes.doubt(sentence, key=key)


def _not_read(call: Call) -> Any:
    return call.doubt(f"{short_text(call.node)} is not read.")


def _kernels(call: Call) -> Any:
    """Follow what chooses the kernel of attention: without a fused one, the scores are written to memory."""
    if call.value(0) is not True:
        call.doubt(
            f"{short_text(call.node)} is not read; a fused kernel of attention is counted.", key="model.attention"
        )
    return UNKNOWN


def _run(call: Call) -> Any:
    if call.name in ("notebook_launcher", "spawn", "start_processes"):
        number = call.value(2, "nprocs", "num_processes", default=1)
        origin = f"{call.where}: {call.name}(...) starts the processes"
        value = number if isinstance(number, int) else "all GPUs"
        call.notes.written["script_processes"] = Setting(value=value, origin=origin)
    return run_function(call)


def _set_environment(call: Call) -> Any:
    key, value = call.value(0), call.value(1)
    if call.name == "setdefault" and key in call.run.environ:
        return call.run.environ[key]
    if isinstance(key, str):
        call.run.environ[key] = value
    if key == "CUDA_VISIBLE_DEVICES":
        call.notes.visible_devices = Setting(value=value, origin=f"{call.where}: {key}")
    return value


def _count_devices(call: Call) -> Any:
    """Return how many GPUs the environment leaves visible; UNKNOWN where it leaves all."""
    chosen = call.run.environ.get("CUDA_VISIBLE_DEVICES")
    return len(chosen.split(",")) if isinstance(chosen, str) and re.fullmatch(r"\d+(,\d+)*", chosen) else UNKNOWN


def _update_environment(call: Call) -> Any:
    table = call.value(0)
    for key, value in {**(table if isinstance(table, dict) else {}), **call.kwargs}.items():
        _set_environment(Call(call.run, call.node, "__setitem__", None, [key, value]))


def _liger(call: Call) -> None:
    """Follow ``apply_liger_kernel_to_llama()``, whose arguments switch kernels on and off.

    It replaces classes: without ``model=``, a model that is there already keeps its norms and MLPs.
    """
    origin, written = f"{call.where}: {call.name}()", call.notes.written
    late = call.notes.models and call.value(None, "model") is None
    kept = dict.fromkeys(("rms_norm", "layer_norm", "swiglu", "geglu") if late else (), False)
    stated = {name: plain(value) for name, value in call.kwargs.items() if isinstance(plain(value), bool)} | kept
    written.setdefault("use_liger_kernel", Setting(value=True, origin=origin))
    if stated:
        written.setdefault("liger_kernel_config", Setting(value=stated, origin=origin))


def _compile(call: Call) -> Any:
    value, backend = call.value(0, "model", default=UNKNOWN), plain(call.kwargs.get("backend", "inductor"))
    named = backend if isinstance(backend, str) else "of another name"
    held = {each for trainer in call.notes.trainers for each in models_in(trainer)}  # as they are, without a name
    for model in models_in(value) if not isinstance(call.nodes.get(0), ast.Name) or value not in held else ():
        model.put("torch_compile_backend", named, call, "torch.compile(...)")
        model.put("torch_compile_mode", plain(call.kwargs.get("mode")), call, "torch.compile(...)")
    return value


def _device(call: Call) -> Any:
    value = call.value(0, "type")
    return value if isinstance(value, str) else UNKNOWN


def starts_training(node: ast.AST) -> bool:
    """Return True for ``loss.backward()`` and ``trainer.train()``."""
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(function, ast.Attribute):
        return False
    return function.attr == "backward" or (function.attr == "train" and "trainer" in ast.unparse(function.value))


_MATTER, _ATTRIBUTES = scripts().names["decisive_calls"], scripts().names["decisive_attributes"]
_OTHER_FUNCTIONS = re.compile(
    r"(re\.)?compile|outputs?\.requires_grad_|(?!.*checkpoint\.).*\.checkpoint|(?!deepspeed\.).*initialize"
)
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


def _always(value: Any) -> Callable[[Call], Any]:
    return lambda _: value


_OTHER_DEVICES = ("torch_xla", "torch_npu", "torch_xpu", "torch_tpu", "torch_mlu", "torch_hpu", "torch_musa")
_BY_NAME: Mapping[str, Callable[[Call], Any]] = {
    **MODEL_CALLS,
    **TRAINING_CALLS,
    **SHARDING_CALLS,
    **dict.fromkeys(_RUNNERS, _run),
    **dict.fromkeys(_PARSERS, Parser),
    **dict.fromkeys(("field", "Field", "HfArg"), field),
    **dict.fromkeys(_TRUE_ON_A_GPU, _always(True)),
    **{f"is_{name}_available": _always(False) for name in _OTHER_DEVICES},
    "train_on_responses_only": lambda call: call.value(0, "trainer", default=UNKNOWN),
    "get_kbit_device_map": lambda _: {"": 0},  # of TRL: this process's GPU
    **dict.fromkeys(("get_rank", "get_local_rank", "get_process_index"), _always(0)),
    **dict.fromkeys(("get_world_size", "get_num_processes"), lambda call: call.notes.ranks),
    **dict.fromkeys(("add_argument", "parse_args", "parse_known_args"), lambda call: Parser(call).method(call)),
    **dict.fromkeys(("set_default_dtype", "set_default_tensor_type"), _not_read),
    **dict.fromkeys(("enable_flash_sdp", "enable_mem_efficient_sdp", "sdpa_kernel", "sdp_kernel"), _kernels),
}
_CALLS: Mapping[str, Callable[[Call], Any]] = {
    **{f"*.{name}": handler for name, handler in _BY_NAME.items()},
    **SHARDING_CALLS,
    **dict.fromkeys(("exec", "torch.autograd.grad"), _not_read),
    "eval": lambda call: _not_read(call) if call.run.statement is call.node else UNKNOWN,
    **dict.fromkeys(("torch.compile", "compile"), _compile),
    "torch.device": _device,
    **dict.fromkeys(("os.environ.__setitem__", "os.environ.setdefault", "os.putenv"), _set_environment),
    "os.environ.update": _update_environment,
    "torch.cuda.set_device": lambda call: call.notes.note_device(call.value(0, "device"), call.where, is_current=True),
    "torch.cuda.current_device": lambda call: call.notes.current_device,
    "torch.cuda.device_count": _count_devices,
    "torch.cuda.is_available": _always(True),
    **{f"torch.{name}.is_available": _always(False) for name in ("backends.mps", "xpu", "mps", "npu", "hpu")},
    **dict.fromkeys(("typer.run", "app.run", "absl.app.run", "run"), _run),
    **dict.fromkeys(("typer.Option", "typer.Argument", "Option", "Argument"), field),
    **dict.fromkeys(("print", "logging.info", "warnings.warn"), _always(None)),
}
"""Functions by their dotted names, and by the last part of them after ``*``."""
