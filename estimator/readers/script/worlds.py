"""Several readings of one script: where a condition cannot be decided, both answers are followed and compared."""

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...job import UncertaintyDirection
from ..source import MODEL_STATES, Component, Setting, SettingsLayer, as_bool, as_int
from .command_line import Options, setting_of_name
from .library import LENGTH_ARGUMENTS, Doubt, Notes, ScriptLibrary
from .named_constants import NAMES_BY_SETTING, read_named_constants
from .outcome import Outcome, read_outcome
from .python import (
    UNKNOWN,
    BudgetSpentError,
    Call,
    Decisions,
    Function,
    Imports,
    Interpreter,
    KnownFailureError,
    ScriptEndsError,
    ScriptModule,
    Undecided,
)

_MAX_STEPS = 120_000
"""Statements and expressions followed in one reading."""
_MAX_ALL_STEPS = 240_000
"""The same in all readings of a script."""
_MAX_WORLDS = 24

_ALL: tuple[Component, ...] = (*MODEL_STATES, "activations", "logits")
_TRAINED: tuple[Component, ...] = ("gradients", "optimizer", "activations")
_EFFECTS: Mapping[str, tuple[UncertaintyDirection, tuple[Component, ...], str | None]] = {
    **dict.fromkeys(("model_name_or_path", "script_model_config", "task", "model"), ("either", _ALL, None)),
    **dict.fromkeys(("use_peft", "lora_r"), ("less", _TRAINED, "lora.rank")),
    "lora_target_modules": ("either", _TRAINED, "lora.targets"),
    "lora_modules_to_save": ("more", MODEL_STATES, None),
    "script_trainable": ("less", _TRAINED, None),
    "script_other_models": ("either", ("weights",), None),
    **dict.fromkeys(
        ("dtype", "torch_dtype", "bf16", "fp16", "mixed_precision"),
        ("either", (*MODEL_STATES, "activations"), "training.precision"),
    ),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit"), ("less", ("weights",), "lora.quantization")),
    **dict.fromkeys(
        ("activation_checkpointing", "gradient_checkpointing", "activation_offloading"),
        ("less", ("activations",), "training.activation_checkpointing"),
    ),
    **dict.fromkeys(("per_device_train_batch_size",), ("less", ("activations", "logits"), "training.micro_batch")),
    **dict.fromkeys(("max_length", "max_seq_length"), ("less", ("activations", "logits"), "training.sequence_length")),
    **dict.fromkeys(("optim", "optim_args"), ("either", ("optimizer",), "training.optimizer")),
    **dict.fromkeys(("use_fsdp", "fsdp", "deepspeed"), ("less", MODEL_STATES, "parallel.strategy")),
    "attn_implementation": ("either", ("activations",), "model.attention"),
    "use_liger_kernel": ("less", ("logits",), "training.loss"),
    "gradient_accumulation_steps": ("either", ("gradients",), "training.gradient_accumulation"),
    **dict.fromkeys(("torch_compile",), ("either", ("activations",), None)),
}
"""What settings decide, in which direction an estimate that counts the larger answer may be off, and the job's key."""


@dataclass(slots=True)
class _World:
    outcome: Outcome
    decisions: Decisions


@dataclass(frozen=True, kw_only=True)  # not slotted: its lengths are cached
class Script:
    """A script to read, and where it runs."""

    tree: ast.Module
    path: Path
    options: Mapping[str, Setting]
    arguments: Sequence[str]
    environ: Mapping[str, Any]
    find_config: Callable[[str], Mapping[str, Any] | None]
    folders: Sequence[Path]
    """Folders of the modules that it imports; empty: its own."""
    find_file: Callable[[str], Path | None]
    """Returns a file that the script may read, by the name that it uses."""
    overrides: SettingsLayer
    """Values of module-level names that a file which the script executes gives."""
    argument_defaults: Mapping[str, Any]
    """Defaults of TRL's configurations that the script may ask for."""

    @cached_property
    def lengths(self) -> dict[str, ast.Assign | ast.AnnAssign]:
        """The statements that assign to names of lengths, by name."""
        found: dict[str, ast.Assign | ast.AnnAssign] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if isinstance(target, ast.Name) and target.id.lower() in LENGTH_ARGUMENTS:
                    found[target.id] = node
        return found


def read_worlds(script: Script) -> Outcome:
    """Return the reading of a script that takes most memory, with what the others decide differently as doubts."""
    imports = Imports(script.folders or [script.path.parent])
    steps = _MAX_ALL_STEPS
    first, used = _follow(script, Decisions(), imports)
    steps -= used
    worlds = [first]
    queue = [(first, each) for each in first.decisions.asked.values()]
    seen = {frozenset(first.decisions.given.items())}
    while queue and len(worlds) < _MAX_WORLDS and steps > 0:
        parent, asked = queue.pop(0)
        given = {**parent.decisions.given, asked.key: not asked.answer}
        if frozenset(given.items()) in seen:
            continue
        seen.add(frozenset(given.items()))
        world, used = _follow(script, Decisions(given, texts=first.decisions.texts), imports.again())
        steps -= used
        if first.outcome.trains and not world.outcome.trains:
            continue
        worlds.append(world)
        new = [each for key, each in world.decisions.asked.items() if key not in parent.decisions.asked]
        queue += [(world, each) for each in new]
    return _merge(worlds, left=[each for _, each in queue], options=script.options)


def _follow(script: Script, decisions: Decisions, imports: Imports) -> tuple[_World, int]:
    words = []
    for word in script.arguments:
        if word.startswith("-"):
            break
        words.append(word)
    options = Options(script.options, words)
    notes = Notes(find_config=script.find_config, options=script.options, argument_defaults=script.argument_defaults)
    library = ScriptLibrary(notes, options, script.overrides)
    run = Interpreter(
        library, decisions, imports, environ=script.environ, arguments=script.arguments, max_steps=_MAX_STEPS
    )
    run.argv, run.find_file = [str(script.path), *script.arguments], script.find_file
    module = ScriptModule(script.path.name, script.path)
    module.scope.names["__name__"] = "__main__"
    module.scope.names["__file__"] = str(script.path)
    try:
        run.run_module(script.tree, module)
        _follow_rest(run, notes, options)
    except (ScriptEndsError, KnownFailureError):
        pass
    except (BudgetSpentError, RecursionError, MemoryError):
        sentence = f"{script.path.name}: the script takes more steps than are followed; the rest is not counted."
        notes.doubt(sentence, *_ALL)
    named = read_named_constants(module.scope, script.path.name, notes)
    notes.hints = {**_lengths(script, module), **named, **notes.hints}
    notes.hints.update({name: setting for name, setting in options.defaults() if setting.value is not None})
    outcome = read_outcome(notes)
    for name, setting in named.items():  # the names hold what flags of the same name became
        if any(word in script.options for word in NAMES_BY_SETTING.get(name, ())):
            outcome.assigned.setdefault(name, setting)
    return _World(outcome, decisions), _MAX_STEPS - run.steps_left


def _lengths(script: Script, module: ScriptModule) -> dict[str, Setting]:
    """Return numbers that the script assigns to names of lengths, in any case: ``MAX_LENGTH = 2048``."""
    found: dict[str, Setting] = {}
    for name, node in script.lengths.items():
        literal = node.value.value if isinstance(node.value, ast.Constant) else UNKNOWN
        value = module.scope.names.get(name, literal)
        where = f"{script.path.name} line {node.lineno}"
        overridden = module.scope.places.get(name, where) != where or name in module.scope.origins
        known = setting_of_name(module.scope, name, where) if overridden else None
        if known is not None and type(known.value) is int:
            found[name.lower()] = known
        elif type(value) is int:
            found[name.lower()] = Setting(value=value, origin=f"{where}: {name}")
    return found


def _follow_rest(run: Interpreter, notes: Notes, options: Options) -> None:
    """Follow functions that the script defines and that nothing was seen to call, where nothing is trained so far."""
    left = sorted(run.functions, key=lambda function: function.name != "main")
    for function in left:
        if notes.trainers or notes.optimizers or notes.parameters_given:
            return
        if id(function.node) not in run.followed and isinstance(function, Function):
            function.options = function.options or options.of_function(function, run)
            try:
                run.call(function, Call(run, function.node, function.name, None))
            except (ScriptEndsError, KnownFailureError):
                continue


def _merge(worlds: list[_World], *, left: list[Undecided], options: Mapping[str, Setting]) -> Outcome:
    best = max(worlds, key=lambda world: _size(world.outcome))
    outcome = best.outcome
    doubts: dict[str, Doubt] = {}
    counted = _values(outcome)
    for world in worlds:
        other = _values(world.outcome)
        names = [
            name
            for name in _EFFECTS
            if counted.get(name) != other.get(name) and (name not in options or name in outcome.assigned)
        ]
        unknown = [name for name in world.outcome.unresolved if name not in outcome.unresolved and name in _EFFECTS]
        names += [name for name in unknown if name not in names]
        if names and world is not best:
            asked = _difference(best, world)
            for doubt in _doubts(asked, names, counted, other):
                doubts.setdefault(doubt.sentence, doubt)
        outcome.called |= world.outcome.called if world is best else set()
    known = {doubt.sentence for doubt in outcome.doubts}
    for world in worlds:
        outcome.doubts += [doubt for doubt in world.outcome.doubts if doubt.sentence not in known]
        known |= {doubt.sentence for doubt in world.outcome.doubts}
    outcome.doubts += doubts.values()
    if left:
        sentence = (
            f"{left[0].where}: whether {left[0].text} holds is only known when the script runs; what {len(left)} such "
            "conditions decide is not counted."
        )
        outcome.doubts.append(Doubt(sentence=sentence, components=_ALL))
    return outcome


def _values(outcome: Outcome) -> dict[str, Any]:
    """Return the settings of a reading that memory depends on."""
    layers: dict[str, Setting] = {**outcome.accelerate, **outcome.hints, **outcome.written, **outcome.assigned}
    found = {name: setting.value for name, setting in layers.items()}
    if not as_bool(layers.get("use_peft")):
        found = {name: value for name, value in found.items() if not name.startswith("lora_")}
    return {name: value for name, value in found.items() if value not in (None, False, [], {})}


def _size(outcome: Outcome) -> tuple[float, ...]:
    """Return what orders readings by the memory that they take."""
    found = _values(outcome)
    layers: dict[str, Setting] = {**outcome.accelerate, **outcome.hints, **outcome.written, **outcome.assigned}
    is_half = any(str(found.get(name, "")).endswith("16") for name in ("dtype", "torch_dtype"))
    trained = 3 if "use_peft" not in found else 1
    if "script_trainable" in found:
        trained = 2 if trained == 3 else 1
        trained = 0 if found["script_trainable"] == ["!*"] else trained
    batch = as_int(layers.get("per_device_train_batch_size")) or 0
    length = max(as_int(layers.get(name)) or 0 for name in ("max_length", "max_seq_length"))
    quantized = "load_in_4bit" in found or "load_in_8bit" in found
    checkpointing = "activation_checkpointing" in found or "gradient_checkpointing" in found
    sharded = "use_fsdp" in found or "fsdp" in found or "deepspeed" in found
    has_model = "model_name_or_path" in found or "script_model_config" in found
    others = len(found.get("script_other_models", ()))
    return (has_model, trained, not quantized, not is_half, not sharded, not checkpointing, batch, length, others)


def _difference(best: _World, other: _World) -> Undecided:
    """Return the condition whose answer tells two readings apart."""
    for key, asked in best.decisions.asked.items():
        found = other.decisions.asked.get(key)
        if found is not None and found.answer is not asked.answer:
            return asked
    added = [asked for key, asked in other.decisions.asked.items() if key in other.decisions.given]
    return added[0] if added else next(iter({**best.decisions.asked, **other.decisions.asked}.values()))


def _doubts(asked: Undecided, names: list[str], counted: Mapping[str, Any], other: Mapping[str, Any]) -> list[Doubt]:
    """Return a sentence on what a condition decides, and the components that it concerns."""
    shown = [
        f"{_LABELS.get(name, name)} {_shown(counted.get(name))} or {_shown(other.get(name))}" for name in names[:3]
    ]
    sentence = (
        f"{asked.where}: whether {asked.text} holds is only known when the script runs; it decides about "
        f"{', '.join(shown)}. The first is counted."
    )
    found = []
    for name in names:
        direction, components, key = _EFFECTS[name]
        found.append(Doubt(sentence=sentence, direction=direction, components=components, key=key))
    directions = {doubt.direction for doubt in found}
    parts = tuple(dict.fromkeys(component for doubt in found for component in doubt.components))
    keys = {doubt.key for doubt in found}
    merged = Doubt(
        sentence=sentence,
        direction=directions.pop() if len(directions) == 1 else "either",
        components=parts,
        key=keys.pop() if len(keys) == 1 else None,
    )
    return [merged]


_LABELS = {
    "use_peft": "LoRA adapters",
    "lora_r": "their rank",
    "script_trainable": "the parameters that train",
    "script_other_models": "other models",
    "script_model_config": "the model's config",
    "model_name_or_path": "the model",
}


def _shown(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
