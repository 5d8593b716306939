"""Settings in the source of a training script, which is parsed and never run."""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...common import InputError, TooLargeError, read_file
from ..source import OldCall, Setting, SettingsLayer
from ..trl import method_of_class
from .batch_lengths import varying_lengths
from .follow import Script
from .kept_outputs import kept_outputs
from .library import DIFFUSION
from .models import TRAINING_CONFIG, Doubt
from .outcome import Outcome
from .python import MAX_BYTES, parse
from .worlds import read_worlds

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
    option_names: frozenset[str] = frozenset()
    """Names that its command line may have, and may abbreviate as argparse allows."""
    unresolved: Mapping[str, str] = field(default_factory=dict)
    """Arguments whose values are known only when the script runs, each with a sentence."""
    unknown_trainer: str | None = None
    """A trainer of TRL's that is not known here, as a method's name would be."""
    doubts: tuple[Doubt, ...] = ()
    """What memory depends on and was not understood."""

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
        return _settings(read_worlds(script), script.tree, options, path.name)
    except (RecursionError, MemoryError):
        raise InputError(f"{path}: is not Python that can be read here: nested too deeply") from None


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
        raise InputError(f"{path}: is not Python that can be read here: {error}") from None
    except (RecursionError, MemoryError):  # the parser raises MemoryError for deep nesting
        raise InputError(f"{path}: is not Python that can be read here: nested too deeply") from None
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
        option_names=frozenset(found.option_names),
        doubts=tuple(found.doubts),
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
