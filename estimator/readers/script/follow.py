"""One reading of a script: its statements followed once, with given answers where conditions cannot be decided."""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..source import MODEL_STATES, Component, Setting
from .command_line import Options, setting_of_name
from .library import PAIRED, ScriptLibrary, doubt_end, doubt_lengths
from .models import LENGTH_ARGUMENTS, Doubt, Notes
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
)

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
    notes = Notes(find_config=script.find_config, versions=script.versions)
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
    try:
        run.run_module(script.tree, module)
        _follow_rest(run, module, notes, options)
    except KnownFailureError:
        pass
    except ScriptEndsError as end:
        is_first = not decisions.given  # others may have taken an answer that ends in the error
        if is_first and str(end) and not notes.living and len(decisions.passed) < _MAX_ERRORS:
            decisions.passed.add(str(end))
            return follow(script, decisions, imports.again())
    except (BudgetSpentError, RecursionError, MemoryError):
        sentence = f"{script.path.name}: the script takes more steps than are followed; the rest is not counted."
        notes.doubt(sentence, *_ALL)
    except Exception as error:  # noqa: BLE001 - a script may do anything; what was found so far counts
        sentence = f"{script.path.name}: a part could not be followed (an error of vramtop's, {type(error).__name__})."
        notes.doubt(sentence, *_ALL)
    doubt_end(notes, [script.tree, *imports.trees()], script.path.name)
    doubt_lengths(options, notes)
    for place in sorted(decisions.passed):
        sentence = (
            f"{place}: the script ends in an error before it trains, as far as it was followed; it is passed over."
        )
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
    return Reading(outcome=outcome, module=module, steps=_MAX_STEPS - run.steps_left)


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
