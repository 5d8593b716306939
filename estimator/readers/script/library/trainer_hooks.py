"""Methods of the script's own that transformers' trainers call: overridden ones, and those of callbacks."""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...source.evidence import MODEL_STATES, Component
from ..command_line.options import Options
from ..command_line.parsed import Parsed
from ..models.configs import Arguments, ModelConfig, Notes, ParsedArguments
from ..models.model import Model
from ..python.values import UNKNOWN, Call, External, Function, Instance, Method, ScriptClass, short_text
from .collators import is_collator, line_of_several

_OPTIMIZER_METHODS = ("create_optimizer", "create_optimizer_and_scheduler")
_CALLBACK_METHODS = ("on_init_end", "on_train_begin", "on_epoch_begin", "on_step_begin")


def follow_own_optimizer(trainer: Instance, call: Call, notes: Notes) -> None:
    """Follow ``create_optimizer`` of a trainer's class of the script; its optimizer is the one that counts."""
    for name in _OPTIMIZER_METHODS:
        function = trainer.kind.find(name)
        if not isinstance(function, Function):
            continue
        known = len(notes.optimizers)
        call.run.call_function(function, [trainer, UNKNOWN], {})
        if len(notes.optimizers) > known:
            notes.assigned["optim"] = notes.optimizers[-1].setting
        elif not calls_super(function, name):
            sentence = f"{call.run.location(function.node)}: {name} creates an optimizer that vramtop does not follow."
            notes.doubt(sentence, "optimizer", key="training.optimizer")


def follow_callbacks(callbacks: Any, model: Any, call: Call) -> None:
    """Follow the methods of callbacks that freeze parameters before or while the model trains."""
    for callback in callbacks if isinstance(callbacks, list | tuple) else ():
        if not isinstance(callback, Instance):
            continue
        for name in _CALLBACK_METHODS:
            function = callback.kind.find(name)
            if isinstance(function, Function) and "requires_grad" in ast.dump(function.node):
                call.run.call_function(function, [callback, UNKNOWN, UNKNOWN, UNKNOWN], {"model": model})


def calls_super(function: Function, name: str) -> bool:
    """Return True if a method calls the one that it overrides."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "super"
        for node in ast.walk(function.node)
    )


# What a script does in a way that is not followed: named, and never taken for the libraries' usual way.
#
# A part of a step is trusted where it is a library's own, or where it was followed and does what the library's does.


_STEP: tuple[Component, ...] = ("activations", "logits")
_ALL: tuple[Component, ...] = (*MODEL_STATES, *_STEP)
_PATCHED = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed", "flash_attn")
LIBRARIES = (
    *(*_PATCHED, "datasets", "tokenizers", "lightning", "pytorch_lightning", "sentence_transformers", "unsloth"),
    *("evaluate", "wandb", "tqdm", "bitsandbytes", "optimum", "huggingface_hub", "numpy", "pandas", "sklearn", "rich"),
    *("tensorboard", "mlflow", "diffusers", "torchvision", "loguru", "absl", "hydra", "omegaconf", "pydantic"),
    *("liger_kernel", "safetensors", "setfit"),
)
"""Libraries whose functions do what their names say."""
COLLATORS = re.compile(r"DataCollator\w*|default_data_collator|default_collate")
_PLAIN_KEYS = re.compile(
    r"(input_)?ids?|labels?|label_ids|\w*mask|token_type_ids|position_ids|weights?|input_features|input_values|length"
)
"""What a batch of one sequence for each example holds."""
_JOINS = {"cat", "concat", "concatenate", "chain", "from_iterable", "extend", "repeat", "repeat_interleave"}
_OWN_LOSS = {"cross_entropy", "CrossEntropyLoss", "FusedCrossEntropyLoss", "nll_loss", "NLLLoss", "log_softmax"}
_PARTS: Mapping[str, tuple[Component, ...]] = {
    **dict.fromkeys(("compute_loss", "training_step", "get_train_dataloader", "get_batch_samples"), _STEP),
    "_prepare_inputs": _STEP,
    **dict.fromkeys(("_inner_training_loop", "train", "_wrap_model", "create_accelerator_and_postprocess"), _ALL),
}
"""Methods of transformers' ``Trainer`` that memory depends on."""
_WITHOUT_MEMORY = re.compile(
    r"(?i)save|load|log|print|show|init|reset|repr|eval|predict|metric|state_dict|to_dict|dump|rng|seed|token|warn|version"
    r"|generat|progress|push|hub|report|compile|callback|signature|verify|check|mask|sampl|rotary|limit|gather|broadcast"
    r"|hparam|wandb|main_process|scheduler|size|(^|[._])(is|has|get_rank|get_world|allow|count|num|freeze|unfreeze)_"
    r"|(^|[._])(count|summary|watch|close|type|info|debug|error|exception)$"
)
"""In the names of parts in which no training step's memory lies."""
_PATCHES = re.compile(
    r"(?i)(^|_)(monkey_?)?(replace|patch|inject|hijack|swap|override)_|_(patch|hijack)(_|$)"
    r"|^(apply|convert|wrap|enable|use)_\w*(model|attn|attention|kernel|parallel)"
)
_OF_DATA = re.compile(
    r"(?i)data|example|token|chat|template|prompt|text|batch|sample|input|label|feature|message|image|path|str"
)
_LOOKS = re.compile(r"unwrap|autocast|no_sync|attr|^(type|isinstance|compute_loss|_?is_\w+)$")
"""Functions that are given a model and do not run it, or once for the step."""
_HOLDS = re.compile(r"forward|loss|att|^[A-Z]\w*$")
"""What is code, although what is assigned to it is not known."""
_GROUPS = {
    *("new_group", "new_subgroups", "new_subgroups_by_enumeration", "all_to_all", "all_to_all_single"),
    *("initialize_model_parallel", "batch_isend_irecv"),
}
"""Functions by which GPUs share more than the data."""
_DECISIVE: tuple[tuple[Any, str], ...] = (
    (Model, "the model"),
    (ModelConfig, "the config of the model"),
    (Arguments | ParsedArguments | Parsed, "the options"),
)
_LENGTH = re.compile(
    r"(?i)^(?!.*(eval|val_|test|gen|new_tok|min_|prompt|pre_|rope|window|dim|vocab|prefix|name|source|target)).*(length|len|seqlen|block_size)$"
)
_SHORTEST = 16
"""Numbers below are no lengths of sequences."""


def doubt_batches(value: Any, call: Call, notes: Notes, *, name: str) -> None:
    """Note what makes the batches, unless it is a library's or puts one sequence of each example into them."""
    kind = value.kind if isinstance(value, Instance) else None
    found = value.function if isinstance(value, Method) else value
    if kind is not None:
        found = next((each for each in map(kind.find, ("__call__", "torch_call")) if each is not UNKNOWN), None)
        found = External(next(kind.external_bases(), "")) if found is None else found
    if isinstance(found, External):
        is_plain = found.path.partition(".")[0] in LIBRARIES
    else:
        is_plain = found is None or (isinstance(found, Function) and _is_plain(found))
    several = line_of_several(kind or found)
    if several is not None and not (kind is not None and is_collator(kind)):  # of those its name tells when it is made
        call.run.library.count_several(kind or found, several)
    node = call.nodes.get(name)
    is_defined = not isinstance(node, ast.Name) or call.scope is None or call.scope.find(node.id) is not None
    if not is_plain and is_defined:
        shown = kind.name if kind is not None else short_text(node)
        sentence = f"{call.where}: {name}={shown}: vramtop does not follow how many tokens it puts into a batch."
        notes.assume(sentence, *_STEP, key="training.sequences_per_example")


def doubt_trainer(trainer: Instance, notes: Notes) -> None:
    """Note methods of a trainer's class of the script in the place of the library's, unless they do what those do."""
    for name, components in _PARTS.items():
        function = trainer.kind.find(name)
        if isinstance(function, Function) and not _keeps(function, name):
            only_loss = name == "compute_loss" and _passes(function) == 1
            where = f"{function.module.name} line {function.node.lineno}"
            sentence = f"{where}: {trainer.kind.name}.{name} replaces the library's; vramtop does not follow it."
            notes.assume(sentence, *(("logits",) if only_loss else components))


def doubt_forward(kind: ScriptClass | None, notes: Notes) -> None:
    """Note a model's class of the script whose forward pass runs the layers more than once."""
    forward = kind.find("forward") if kind is not None else None
    if isinstance(forward, Function) and kind is not None and _passes(forward) > 1:
        where = f"{forward.module.name} line {forward.node.lineno}"
        sentence = f"{where}: {kind.name}.forward may run the model several times; vramtop does not follow it."
        notes.assume(sentence, *_STEP, key="training.sequences_per_example")


def doubt_arguments(arguments: Any, call: Call, notes: Notes) -> None:
    """Note a trainer whose arguments are not known, as nothing that makes them was followed."""
    if call.unknown_table is not None and "data_collator" not in call.kwargs:
        text = f"{call.name}(**{short_text(call.unknown_table)})"
        notes.assume(f"{call.where}: {text}: vramtop does not follow how batches are made.", *_STEP)
    if arguments is UNKNOWN:
        sentence = (
            f"{call.where}: vramtop does not follow how the arguments of {call.name} are made; flags and defaults are "
            "used."
        )
        notes.assume(sentence, *_ALL)


def doubt_library_change(call: Call, notes: Notes) -> None:
    """Note what a script assigns to a part of a library that memory may depend on."""
    new, (root, _, part) = call.value(0), call.path.partition(".")
    is_code = isinstance(new, Function | ScriptClass | Method)
    is_code = is_code or (isinstance(new, External) and new.path.partition(".")[0] != root)
    is_code = is_code or (new is UNKNOWN and _HOLDS.search(call.name) is not None)
    if isinstance(call.receiver, External) and root in _PATCHED and is_code and not _WITHOUT_MEMORY.search(part):
        what = ".".join(call.path.split(".")[-2:])
        notes.assume(f"{call.where}: the script replaces {what}; the library's own is assumed.", *_STEP)


def doubt_unknown(call: Call, notes: Notes) -> None:
    """Note a function that is not followed and that patches, by its name, or is given what memory depends on."""
    name, root = call.name or short_text(getattr(call.node, "func", call.node)), call.path.partition(".")[0]
    if (call.receiver is None and root in LIBRARIES) or _WITHOUT_MEMORY.search(name) or _OF_DATA.search(name):
        return
    if call.receiver is None and name.islower() and _PATCHES.search(name):
        notes.assume(f"{call.where}: {name}(...) may change library behavior; vramtop does not follow it.", *_STEP)
    for value in (*call.args, *call.kwargs.values()):
        what = next((what for kinds, what in _DECISIVE if isinstance(value, kinds)), None)
        if what is not None and (call.receiver is UNKNOWN or (call.receiver is None and "." in call.path)):
            notes.assume(f"{call.where}: {name}(...) is given {what}; vramtop does not follow it.", *_ALL)


def doubt_import(name: str, where: str, notes: Notes) -> None:
    """Note a module that is not here and that patches, by its name."""
    root = name.partition(".")[0]
    if root not in (*LIBRARIES, "unittest") and _PATCHES.search(name.replace(".", "_")):
        notes.assume(f"{where}: {name} may change library behavior, but was not found.", *_STEP)


def doubt_groups(call: Call, notes: Notes) -> None:
    """Note that the script itself divides something between GPUs."""
    if call.name in _GROUPS and call.path.partition(".")[0] in ("torch", "dist", "deepspeed", "megatron"):
        sentence = (
            f"{call.where}: by {call.name}(...) GPUs may share a model or a sequence; the figure divides only the data."
        )
        notes.assume(sentence, *_ALL, direction="less", key="parallel.context")


def doubt_lengths(options: Options, notes: Notes) -> None:
    """Note that a script has several options for lengths, of which one is counted."""
    known = {name: setting.value for name, setting in options.defaults() if _LENGTH.match(name)}
    known = {name: value for name, value in known.items() if type(value) is int and value >= _SHORTEST}
    if len(set(known.values())) > 1:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(known.items())[:4])
        sentence = f"The script has several lengths ({shown}); vramtop does not know which one a step has."
        notes.assume(sentence, *_STEP, key="training.sequence_length")


def doubt_end(notes: Notes, trees: Iterable[ast.Module], name: str) -> None:
    """Note a script in which nothing was seen to train, although something in its files does."""
    if notes.living or notes.parameters_given or any(each.ran for each in notes.trainers):
        return
    if any(isinstance(node, ast.Call) and _trains(node.func) for tree in trees for node in ast.walk(tree)):
        notes.assume(f"{name}: vramtop did not reach the training itself; settings may be missing.", *_ALL)


def _trains(function: ast.expr) -> bool:
    """Return True for ``loss.backward`` and ``trainer.train``."""
    if not isinstance(function, ast.Attribute):
        return False
    return function.attr == "backward" or (function.attr == "train" and "trainer" in ast.unparse(function.value))


def _is_plain(function: Function) -> bool:
    """Return True if a function makes a batch of one sequence for each example."""
    called = list(_called(function.node))
    pads = any("pad" in each.lower() or each in ("stack", "tensor", "super") for each in called)
    pads = pads or any(map(COLLATORS.fullmatch, called))
    return pads and not any(_joins(function.node)) and all(map(_PLAIN_KEYS.fullmatch, _keys(function.node)))


def _joins(tree: ast.AST) -> Iterator[bool]:
    """Yield True for calls that join sequences, rather than the tokens of each under one key."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            first = node.args[0] if node.args else None
            yield _name(node) in _JOINS and not (isinstance(first, ast.Subscript) and any(_keys(first)))


def _keys(tree: ast.AST) -> Iterator[str]:
    """Yield the texts by which something is looked up, or that stand in a list."""
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Tuple | ast.List):
            parts = node.elts
        elif isinstance(node, ast.Call) and _name(node) in ("get", "pop"):
            parts = node.args[:1]
        yield from (each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str))


def _keeps(function: Function, name: str) -> bool:
    """Return True if a method does what the library's does: the model runs once, and the batches keep their size."""
    words = {getattr(node, "attr", None) or getattr(node, "id", None) for node in ast.walk(function.node)}
    if name == "_prepare_inputs":
        return calls_super(function, name) and not _JOINS & words
    if name == "get_train_dataloader":
        return calls_super(function, name) or any("train_batch_size" in str(word) for word in words)
    passes = _passes(function)
    if calls_super(function, name):
        return passes == 0
    if name == "training_step":
        return passes == 0 and list(_called(function.node)).count("compute_loss") == 1
    return name == "compute_loss" and passes == 1 and not _OWN_LOSS & words and not _JOINS & words


def _passes(function: Function) -> int:
    """Return how often a method runs a model, at least; twice for one that it hands to something else."""
    body = function.node.body
    statements = body if isinstance(body, list) else [body]
    calls = [node for each in statements for node in ast.walk(each) if isinstance(node, ast.Call)]
    runs = sum(_name(node) == "model" or _name(node).endswith(("_model", "forward")) for node in calls)
    handed = [node for node in calls if any(getattr(each, "id", None) == "model" for each in node.args)]
    return runs + 2 * sum(not _LOOKS.search(_name(node)) and _name(node) != function.name for node in handed)


def _called(tree: ast.AST) -> Iterator[str]:
    """Yield the last parts of the names that are called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield _name(node)


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", None) or getattr(call.func, "id", ""))
