"""Settings in the source of a training script, which is parsed and never run."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ...common.errors import InputError
from ...common.untrusted_files import TooLargeError, read_file
from ..source.evidence import MODEL_STATES, Component, Setting, SettingsLayer, as_bool, as_int
from ..source.versions import OldCall
from ..trl.methods import method_of_class
from .command_line.options import Options, setting_of_name
from .command_line.other_parsers import may_parse_elsewhere
from .library.script_library import DIFFUSION, PAIRED, ScriptLibrary
from .library.trainer_hooks import doubt_end, doubt_lengths
from .models.configs import LENGTH_ARGUMENTS, TRAINING_CONFIG, Doubt, Notes
from .outcome import Outcome, read_outcome
from .python.evaluation import BudgetSpentError, KnownFailureError
from .python.imports import MAX_BYTES, Imports, parse
from .python.interpreter import Interpreter, ScriptEndsError
from .python.values import UNKNOWN, Call, Decisions, Function, Scope, ScriptModule, Undecided

# Tells from a script's tokenizer and collator whether its batches differ in length from step to step.
#
# Sequences are of one length where the tokenizer pads them to the limit, or where they are concatenated and cut
# (``group_texts`` of transformers' examples); collators that pad take a batch to its longest sequence (transformers'
# ``data/data_collator.py``).


_PADDING_COLLATORS = (
    *("DataCollatorWithPadding", "DataCollatorForSeq2Seq", "DataCollatorForTokenClassification"),
    *("DataCollatorForLanguageModeling", "DataCollatorForMultipleChoice", "pad_sequence"),
)
_ONE_LENGTH = ("ConstantLengthDataset", "TextDataset")
_GROUPING = ("group_texts", "group_text")
_TO_LONGEST: tuple[object, ...] = (True, "longest")
_TO_LIMIT = "max_length"


def varying_lengths(tree: ast.Module, name: str) -> Setting | None:
    """Return whether lengths vary, with the origin; None where the script leaves it open.

    Args:
        tree: the script.
        name: the script's, for the origin.
    """
    found = list(_evidence(tree))
    fixed = [each for each in found if each[0] is False]
    either = any(each[0] is None for each in found)
    if fixed:
        _, line, text = fixed[0]
        return Setting(value=False, origin=f"{name}:{line}: {text}")
    if either or not found:
        return None
    _, line, text = found[0]
    return Setting(value=True, origin=f"{name}:{line}: {text}")


def _evidence(tree: ast.Module) -> Iterator[tuple[bool | None, int, str]]:
    """Yield what speaks for lengths that vary (True), that do not (False), or for either (None)."""
    assigned = {value for value, _ in _assigned_paddings(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in _GROUPING:
            yield False, node.lineno, f"{node.name} makes sequences of one length"
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in _ONE_LENGTH:
            yield False, node.lineno, f"{called}(...) makes sequences of one length"
        for keyword in node.keywords:
            if keyword.arg != "padding":
                continue
            if isinstance(keyword.value, ast.Name):
                one = next(iter(assigned)) if len(assigned) == 1 else None
                yield _varies(one), node.lineno, f"padding={keyword.value.id}"
            elif isinstance(keyword.value, ast.Constant) and _varies(keyword.value.value) is not None:
                yield _varies(keyword.value.value), node.lineno, f"padding={keyword.value.value!r}"
        if called in _PADDING_COLLATORS and not any(keyword.arg == "padding" for keyword in node.keywords):
            yield True, node.lineno, f"{called}(...) pads to the longest sequence"


def _assigned_paddings(tree: ast.Module) -> Iterator[tuple[object, int]]:
    """Yield the values that the script gives to variables of that name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        if any(isinstance(target, ast.Name) and target.id == "padding" for target in node.targets):
            yield (node.value.value if isinstance(node.value, ast.Constant) else None), node.lineno


def _varies(padding: object) -> bool | None:
    if padding == _TO_LIMIT:
        return False
    return True if padding in _TO_LONGEST else None


# Settings of a training loop of its own that a script keeps in names of its module: ``batch_size = 12``.


NAMES_BY_SETTING = {
    "per_device_train_batch_size": (
        *(
            "per_device_train_batch_size",
            "micro_batch_size",
            "device_batch_size",
            "per_device_batch_size",
            "batch_size",
        ),
    ),
    "gradient_accumulation_steps": (
        *("gradient_accumulation_steps", "grad_accum_steps", "accumulation_steps", "gradient_accumulation"),
        *("grad_accumulation_steps", "accum_steps"),
    ),
}
"""Names that scripts keep a setting in, by transformers' name; the first that has a number counts."""
_SHORT = {"B": "per_device_train_batch_size", "T": "max_length"}
"""Names of the sizes of a batch that some loops use, both together."""


def read_named_constants(scope: Scope, script: str, notes: Notes) -> dict[str, Setting]:
    """Return the settings that names of a module have at the end, for a script with a loop of its own.

    Args:
        scope: the module's.
        script: its name.
        notes: the reading; nothing is read for scripts with a trainer.
    """
    if notes.trainers or not notes.optimizers:
        return {}
    found: dict[str, Setting] = {}
    for setting, names in NAMES_BY_SETTING.items():
        known = (setting_of_name(scope, name, script) for name in names)
        first = next((each for each in known if each is not None and type(each.value) is int), None)
        if first is not None:
            found[setting] = first
    short = {name: setting_of_name(scope, name, script) for name in _SHORT}
    if all(each is not None and type(each.value) is int for each in short.values()):
        for name, each in short.items():
            if each is not None:
                found.setdefault(_SHORT[name], each)
    return found


# One reading of a script: its statements followed once, with given answers where conditions cannot be decided.


_MAX_STEPS = 120_000
"""Statements and expressions followed in one reading."""
_MAX_ERRORS = 4
"""Errors before the training that are passed over, one after another."""
_FLASH_PATCH = re.compile(r"(?i)(replace|patch|apply)\w*flash_?attn")
"""Functions that put FlashAttention into the place of a model's attention."""
_ALL: tuple[Component, ...] = (*MODEL_STATES, "activations", "logits")


@dataclass(frozen=True, kw_only=True)  # not slotted: its lengths are cached
class Script:
    """A script to read, and where it runs."""

    tree: ast.Module
    path: Path
    options: Mapping[str, Setting]
    arguments: Sequence[str]
    environ: Mapping[str, Any]
    find_config: Callable[[str], Mapping[str, Any] | None]
    versions: Mapping[str, str]
    folders: Sequence[Path]
    """Folders of the modules that it imports."""
    find_file: Callable[[str], Path | None]
    """Returns a file that the script may read, by the name that it uses."""

    @property
    def ranks(self) -> Any:
        """The number of processes that run it, where a launcher's variables say so."""
        number = str(self.environ.get("WORLD_SIZE", ""))
        return int(number) if number.isdigit() else UNKNOWN

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What following a script once comes to."""

    outcome: Outcome
    module: ScriptModule
    """The script with the values of its names."""
    steps: int
    """Statements and expressions that were followed."""


def follow(script: Script, decisions: Decisions, imports: Imports) -> Reading:
    """Follow a script once.

    Args:
        script: the script.
        decisions: answers for conditions that cannot be decided; takes note of those that were asked.
        imports: the modules beside it.
    """
    options = Options(script.options, script.arguments)
    notes = Notes(find_config=script.find_config, versions=script.versions, ranks=script.ranks)
    library = ScriptLibrary(notes, options)
    run = Interpreter(
        library, decisions, imports, environ=script.environ, arguments=script.arguments, max_steps=_MAX_STEPS
    )
    opened: set[str] = set()
    run.argv = [str(script.path), *script.arguments]
    run.find_file = lambda name: _found(script, name, opened)
    module = ScriptModule(script.path.name, script.path)
    module.scope.names["__name__"] = "__main__"
    module.scope.names["__file__"] = str(script.path)
    followed = False
    try:
        run.run_module(script.tree, module)
        _follow_rest(run, module, notes, options)
        followed = True
    except KnownFailureError:
        pass
    except ScriptEndsError as end:
        is_first = not decisions.given  # others may have taken an answer that ends in the error
        if is_first and str(end) and not notes.living and len(decisions.passed) < _MAX_ERRORS:
            decisions.passed.add(str(end))
            return follow(script, decisions, imports.again())
    except (BudgetSpentError, RecursionError, MemoryError):
        sentence = f"{script.path.name}: the script is too long to follow; the rest is not counted."
        notes.doubt(sentence, *_ALL)
    except Exception as error:  # noqa: BLE001 - a script may do anything; what was found so far counts
        sentence = (
            f"{script.path.name}: vramtop could not follow a part ({type(error).__name__}); this is a bug in vramtop."
        )
        notes.doubt(sentence, *_ALL)
    doubt_end(notes, [script.tree, *imports.trees()], script.path.name)
    doubt_lengths(options, notes)
    for place in sorted(decisions.passed):
        sentence = f"{place}: as far as vramtop followed the script, it fails before training; the error is ignored."
        notes.doubt(sentence, *_ALL)
    named = read_named_constants(module.scope, script.path.name, notes)
    defaults = {name: setting for name, setting in options.defaults() if setting.value is not None}
    longer = _longer_cuts(script, notes, defaults)
    notes.hints = {**_lengths(script, module), **named, **notes.hints, **defaults, **longer}
    outcome = read_outcome(notes)
    _count_pairs(run, outcome)
    _find_attention(script, run, outcome)
    for name, setting in named.items():  # the names hold what flags of the same name became
        if any(word in script.options for word in NAMES_BY_SETTING.get(name, ())):
            outcome.assigned.setdefault(name, setting)
    _note_options(script, options, opened, outcome)
    may_be_read = not followed or not outcome.has_optimizer or options.is_open
    if not may_be_read and not may_parse_elsewhere([script.tree, *imports.trees()], imports.names()):
        outcome.read_options = {*options.names, *options.declared, *options.sought}
    return Reading(outcome=outcome, module=module, steps=_MAX_STEPS - run.steps_left)


def _note_options(script: Script, options: Options, opened: set[str], outcome: Outcome) -> None:
    """Note the options that the script was seen to use, those that it assigns, and the names of all."""
    origins = {setting.origin for setting in (*outcome.written.values(), *outcome.accelerate.values())}
    used = {
        name for name, given in script.options.items() if any(each.startswith(f"{given.origin} (") for each in origins)
    }
    outcome.understood = {f"no_{name}" for name in options.decisive}
    for name, setting in options.assigned.items():
        given = options.find(name) if name in script.options else None
        if given is not None and given.value != setting.value:
            outcome.assigned.setdefault(name, setting)
    used |= {name for name, given in script.options.items() if str(given.value) in opened}
    outcome.understood |= {*options.decisive, *used, *(name for name in options.declared if name not in script.options)}
    outcome.option_names = set() if options.has_unknown_names else options.names


def _found(script: Script, name: str, opened: set[str]) -> Path | None:
    path = script.find_file(name)
    if path is not None:
        opened.add(name)
    return path


def _find_attention(script: Script, run: Interpreter, outcome: Outcome) -> None:
    """Find attention that the script patches, or that its own model has, where nothing says which it is."""
    name, own = "attn_implementation", outcome.attention
    patch = next((each for each in (*run.followed_names, *outcome.called) if _FLASH_PATCH.search(each)), None)
    if patch is not None:
        origin = f"{run.followed_names.get(patch, script.path.name)}: {patch}()"
        outcome.hints.setdefault(name, Setting(value="flash_attention_2", origin=origin))
    if own is None or any(name in each for each in (script.options, outcome.assigned, outcome.written, outcome.hints)):
        return
    if own.name is not None:
        outcome.hints[name] = Setting(value=own.name, origin=f"{own.where}: attention of the script's own model")
    doubt = Doubt(sentence=own.sentence, direction=own.direction, components=("activations",), key="model.attention")
    outcome.doubts.append(doubt)


def _count_pairs(run: Interpreter, outcome: Outcome) -> None:
    """Count two sequences for each example where chosen and rejected ones run together."""
    where = next((run.followed_names[name] for name in PAIRED if name in run.followed_names), None)
    if where is not None and outcome.trains:
        text = "a chosen and a rejected sequence run together"
        outcome.written.setdefault("script_sequences", Setting(value=2, origin=f"{where}: {text}"))


def _longer_cuts(script: Script, notes: Notes, defaults: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return lengths at which sequences are cut, where an option's default of that name is shorter: it is another's."""
    found: dict[str, Setting] = {}
    for name in LENGTH_ARGUMENTS:
        cut, default = notes.hints.get(name), defaults.get(name)
        if cut is None or default is None or name in script.options:
            continue
        if isinstance(cut.value, int) and isinstance(default.value, int) and cut.value > default.value:
            found[name] = cut
            sentence = f"{default.origin} is {default.value}, and {cut.origin} is {cut.value}, which is counted."
            notes.doubt(sentence, "activations", "logits", key="training.sequence_length")
    return found


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


def _follow_rest(run: Interpreter, module: ScriptModule, notes: Notes, options: Options) -> None:
    """Follow functions that nothing was seen to call, where nothing is trained so far: the script's own first."""
    left = sorted(run.functions, key=lambda function: (function.module is not module, function.name != "main"))
    for function in left:
        if notes.trainers or notes.optimizers or notes.parameters_given:
            return
        if id(function.node) not in run.followed and isinstance(function, Function):
            function.options = function.options or options.of_function(function, run)
            try:
                run.call(function, Call(run, function.node, function.name, None))
            except (ScriptEndsError, KnownFailureError):
                continue


# Finds a variable of a script's own training loop that holds the model's outputs through the backward pass.


_OUTPUTS = ("loss", "logits")
"""Attributes of what transformers' models return."""


def kept_outputs(tree: ast.Module, name: str) -> Setting | None:
    """Return True with its origin if some loop keeps the outputs: ``out = model(...); out.loss.backward()``.

    A variable that is deleted before the backward pass keeps nothing, nor does one of a function that returns the loss.

    Args:
        tree: the script.
        name: the script's, for the origin.
    """
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)):
            for variable, line in _kept_in(list(_own_nodes(scope))):
                origin = f"{name}:{line}: {variable} holds the model's outputs until the next ones replace it"
                return Setting(value=True, origin=origin)
    return None


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield child
            yield from _own_nodes(child)


def _kept_in(nodes: list[ast.AST]) -> Iterator[tuple[str, int]]:
    """Yield variables with the lines in which they get their outputs."""
    backward = [
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"
    ]
    deleted = [
        (target.id, node.lineno)
        for node in nodes
        if isinstance(node, ast.Delete)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    read = [
        (node.value.id, node.lineno)
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr in _OUTPUTS and isinstance(node.value, ast.Name)
    ]
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        for target in node.targets:
            ends = [line for line in backward if line > node.lineno]
            if not isinstance(target, ast.Name) or not ends:
                continue
            used = any(name == target.id and node.lineno <= line <= min(ends) for name, line in read)
            freed = any(name == target.id and node.lineno < line <= min(ends) for name, line in deleted)
            if used and not freed:
                yield target.id, node.lineno


# Several readings of one script: where a condition cannot be decided, both answers are followed and compared.


_MAX_ALL_STEPS = 200_000
"""Statements and expressions followed in all readings of a script."""
_MAX_WORLDS = 16

_WORLDS_ALL: tuple[Component, ...] = (*MODEL_STATES, "activations", "logits")


@dataclass(slots=True)
class _World:
    outcome: Outcome
    decisions: Decisions
    condition: Undecided | None = None
    """The condition that has another answer than in the reading from which it came; None: the first reading."""


def _read(script: Script, decisions: Decisions, imports: Imports) -> tuple[_World, int]:
    reading = follow(script, decisions, imports)
    return _World(reading.outcome, decisions), reading.steps


def read_worlds(script: Script) -> tuple[Outcome, list[tuple[str, Outcome]]]:
    """Return the reading of a script that takes most memory, and the others that differ, each with what decides."""
    imports = Imports(script.folders)
    steps = _MAX_ALL_STEPS
    first, used = _read(script, Decisions(), imports)
    steps -= used
    worlds = [first]
    queue = [(first, each) for each in first.decisions.asked.values()]
    seen = {frozenset(first.decisions.given.items())}
    queue.sort(key=lambda item: -item[1].matters)
    while queue and len(worlds) < _MAX_WORLDS and steps > 0:
        parent, asked = queue.pop(0)
        given = {**parent.decisions.given, asked.key: not asked.answer}
        if frozenset(given.items()) in seen:
            continue
        seen.add(frozenset(given.items()))
        world, used = _read(
            script, Decisions(given, texts=first.decisions.texts, passed=first.decisions.passed), imports.again()
        )
        steps -= used
        if first.outcome.trains and not world.outcome.trains:
            continue
        world.condition = asked
        worlds.append(world)
        new = [each for key, each in world.decisions.asked.items() if key not in parent.decisions.asked]
        queue += [(world, each) for each in new if each.matters]
    left = list({each.key: each for _, each in queue if each.matters}.values())
    return _merge(worlds, left=left)


def _merge(worlds: list[_World], *, left: list[Undecided]) -> tuple[Outcome, list[tuple[str, Outcome]]]:
    """Return the reading that takes most memory, and the others that differ from it, each with what decides."""
    best = max(worlds, key=lambda world: _size(world.outcome))
    outcome, others = best.outcome, []
    counted = _values(outcome), set(outcome.unresolved)
    known = {doubt.sentence for doubt in outcome.doubts}
    for world in worlds:
        condition = world.condition or best.condition
        if condition is not None and (_values(world.outcome), set(world.outcome.unresolved)) != counted:
            why = f"{condition.where}: whether {condition.text} is only known when the script runs"
            others.append((why, world.outcome))
        outcome.doubts += [doubt for doubt in world.outcome.doubts if doubt.sentence not in known]
        known |= {doubt.sentence for doubt in world.outcome.doubts}
        outcome.option_names |= world.outcome.option_names
        read, more = outcome.read_options, world.outcome.read_options
        outcome.read_options = None if read is None or more is None else read | more
    if left:
        sentence = (
            f"{left[0].where}: whether {left[0].text} is only known when the script runs; settings under {len(left)} "
            "such conditions are not counted."
        )
        outcome.doubts.append(Doubt(sentence=sentence, components=_WORLDS_ALL))
    return outcome, others


def _values(outcome: Outcome) -> dict[str, Any]:
    """Return the settings of a reading that memory depends on."""
    layers: dict[str, Setting] = {**outcome.accelerate, **outcome.hints, **outcome.written, **outcome.assigned}
    found = {name: setting.value for name, setting in layers.items()}
    if as_bool(layers.get("use_lora")):
        found.setdefault("use_peft", True)
    if not found.get("use_peft"):
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
    batch = as_int(layers.get("per_device_train_batch_size")) or 1
    length = max(as_int(layers.get(name)) or 1 for name in ("max_length", "max_seq_length"))
    quantized = "load_in_4bit" in found or "load_in_8bit" in found
    kept = 0.2 if "activation_checkpointing" in found or "gradient_checkpointing" in found else 1.0
    sharded = not {"use_fsdp", "use_deepspeed", "fsdp", "deepspeed"}.isdisjoint(found)
    whole = "fsdp_auto_wrap_policy" in found and found["fsdp_auto_wrap_policy"] != "blocks"
    copied = found.get("fsdp_sharding_strategy") == "NO_SHARD"
    offloaded = "fsdp_offload_params" in found or "offload_optimizer_device" in found
    has_model = "model_name_or_path" in found or "script_model_config" in found
    others = len(found.get("script_other_models", ()))
    states = (not quantized, not is_half, not sharded, copied, not offloaded, whole)
    return (has_model, trained, *states, kept * batch * length, others)


_TRAINERS = ("transformers", "trl", "unsloth", "optimum")
"""Libraries whose trainers, and classes of their arguments, are known by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSettings:
    """Settings in a script's source, by the names of transformers' and accelerate's arguments."""

    assigned: SettingsLayer = field(default_factory=dict)
    """What the script sets whatever its command line says."""
    written: SettingsLayer = field(default_factory=dict)
    """Arguments of the calls that configure the job."""
    hints: SettingsLayer = field(default_factory=dict)
    """Weaker: defaults of its options, batch size of a DataLoader, length of a tokenizer or constant, optimizer."""
    accelerate: SettingsLayer = field(default_factory=dict)
    """Arguments of ``Accelerator(...)``; sharding and mixed precision of the script's own training loop."""
    called: frozenset[str] = frozenset()
    """Last parts of the names that it calls."""
    old_calls: Mapping[OldCall, str] = field(default_factory=dict)
    """What today's libraries refuse, and where it stands."""
    own_loss: bool = False
    """It computes the loss in place of TRL's trainer."""
    loads_model: bool = False
    """True if it loads the model itself rather than let the trainer do it."""
    understood: frozenset[str] = frozenset()
    """Options that it was seen to use."""
    unused: frozenset[str] = frozenset()
    """Options that do not decide what their names say."""
    option_names: frozenset[str] = frozenset()
    """Names that its command line may have, and may abbreviate as argparse allows."""
    read_options: frozenset[str] | None = None
    """All options that it reads; None: not known."""
    unresolved: Mapping[str, str] = field(default_factory=dict)
    """Arguments whose values are known only when the script runs, each with a sentence."""
    unknown_trainer: str | None = None
    """A trainer of TRL's that is not known here, as a method's name would be."""
    doubts: tuple[Doubt, ...] = ()
    """What memory depends on and was not understood."""
    visible_devices: Setting | None = None
    """The CUDA_VISIBLE_DEVICES that it sets itself; the value is no text where it is not known."""
    device: Setting | None = None
    """The position among the GPUs that it sees of the one that it uses, if that is not the first: ``cuda:1``."""
    others: "tuple[tuple[str, ScriptSettings], ...]" = ()
    """Other possible settings, each with the condition that decides (a sentence without a full stop)."""

    @property
    def makes_images(self) -> bool:
        """True if it trains a model of diffusers."""
        return DIFFUSION in self.called and self.trl_method is None

    @property
    def trl_method(self) -> str | None:
        """``sft``, ``dpo``, ... where the script uses one of TRL's trainers."""
        methods = (method_of_class(name) for name in sorted(self.called))
        return next((method.name for method in methods if method is not None), self.unknown_trainer)

    @property
    def uses_plain_arguments(self) -> bool:
        """True if its only configuration is transformers' own TrainingArguments, perhaps with a trainer of TRL."""
        configs = [name for name in self.called if TRAINING_CONFIG.fullmatch(name) and name != "ModelConfig"]
        return bool(configs) and all(name.endswith("TrainingArguments") for name in configs)

    @property
    def trains_with_trainer(self) -> bool:
        """True if it uses a Trainer, TrainingArguments or a class derived from them."""
        return any(TRAINING_CONFIG.fullmatch(name) or name.endswith("Trainer") for name in self.called)

    @property
    def has_own_loop(self) -> bool:
        """True if it was read, and uses no Trainer."""
        return bool(self.called) and not self.trains_with_trainer


def read_script(
    path: Path,
    *,
    options: Mapping[str, Setting],
    environ: Mapping[str, Any],
    arguments: Sequence[str] = (),
    find_config: Callable[[str], Mapping[str, Any] | None] | None = None,
    versions: Mapping[str, str] | None = None,
    folders: Sequence[Path] = (),
    find_file: Callable[[str], Path | None] | None = None,
    text: str | None = None,
) -> ScriptSettings:
    """Return the settings in a script's source.

    Args:
        path: the script.
        options: flags on its command line.
        environ: its environment; a value may be unknown.
        arguments: the words of its command line.
        find_config: returns a model's config by the model's name; None if it is not here.
        versions: installed versions by distribution, where known.
        folders: where the modules lie that it imports; empty: in its own folder.
        find_file: returns a file that it may read, by the name that it uses; None if there is none.
        text: its source, where that is not what the file holds: the cells of a notebook.

    Raises:
        InputError: it cannot be read, or is not Python that this interpreter can parse.
    """
    script = open_script(
        path,
        text=text,
        options=options,
        arguments=arguments,
        environ=environ,
        find_config=find_config,
        versions=versions or {},
        folders=folders,
        find_file=find_file,
    )
    try:
        outcome, others = read_worlds(script)
        settings = partial(_settings, tree=script.tree, options=options, name=path.name)
        return replace(settings(outcome), others=tuple((why, settings(other)) for why, other in others))
    except (RecursionError, MemoryError):
        raise InputError(f"{path}: not readable Python: nested too deeply") from None


def open_script(
    path: Path,
    *,
    text: str | None = None,
    options: Mapping[str, Setting] | None = None,
    arguments: Sequence[str] = (),
    environ: Mapping[str, Any] | None = None,
    find_config: Callable[[str], Mapping[str, Any] | None] | None = None,
    versions: Mapping[str, str] | None = None,
    folders: Sequence[Path] = (),
    find_file: Callable[[str], Path | None] | None = None,
) -> Script:
    """Return a parsed script, ready to be followed; the arguments are those of ``read_script``.

    Raises:
        InputError: it cannot be read, or is not Python that this interpreter can parse.
    """
    try:
        tree = parse(read_file(path, MAX_BYTES) if text is None else text, path)
    except TooLargeError:
        raise InputError(f"{path}: too large to be a script") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path}: not readable Python: {error}") from None
    except (RecursionError, MemoryError):  # the parser raises MemoryError for deep nesting
        raise InputError(f"{path}: not readable Python: nested too deeply") from None
    return Script(
        tree=tree,
        path=path,
        options=options or {},
        arguments=arguments,
        environ=environ or {},
        find_config=_remembering(find_config),
        versions=versions or {},
        folders=folders or [path.parent],
        find_file=find_file or (lambda _: None),
    )


def _remembering(find: Callable[[str], Mapping[str, Any] | None] | None) -> Callable[[str], Mapping[str, Any] | None]:
    """Return the function with a memory: every reading of the script asks for the same models."""
    known: dict[str, Mapping[str, Any] | None] = {}

    def found(name: str) -> Mapping[str, Any] | None:
        if name not in known:
            known[name] = find(name) if find is not None else None
        return known[name]

    return found


def _settings(found: Outcome, tree: ast.Module, options: Mapping[str, Setting], name: str) -> ScriptSettings:
    imported = set(_imported(tree))
    names = {each for each in imported if TRAINING_CONFIG.fullmatch(each) or method_of_class(each)}
    names = set() if found.has_optimizer else names
    seen = {
        "script_keeps_outputs": kept_outputs(tree, name) if found.has_optimizer else None,
        "script_varying_lengths": varying_lengths(tree, name),
    }
    return ScriptSettings(
        assigned=found.assigned,
        written={**found.written, **{key: setting for key, setting in seen.items() if setting is not None}},
        hints=found.hints,
        accelerate=found.accelerate,
        loads_model=found.loads_model,
        unresolved={each: text for each, text in found.unresolved.items() if each not in options},
        called=frozenset(found.called | names),
        old_calls=found.old_calls,
        own_loss=found.own_loss,
        unknown_trainer=_unknown_trainer(tree),
        understood=frozenset(found.understood),
        unused=frozenset(found.unused),
        option_names=frozenset(found.option_names),
        read_options=None if found.read_options is None else frozenset(found.read_options),
        doubts=tuple(found.doubts),
        visible_devices=found.visible_devices,
        device=found.device,
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the names that are imported from the libraries whose trainers are known here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in _TRAINERS:
            yield from (alias.name for alias in node.names)


def _unknown_trainer(tree: ast.Module) -> str | None:
    """Return the name of a trainer that is imported from TRL and not known here, without ``Trainer``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "trl":
            for alias in node.names:
                if alias.name.endswith("Trainer") and method_of_class(alias.name) is None:
                    return alias.name.removesuffix("Trainer").lower()
    return None
