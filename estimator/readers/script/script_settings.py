"""Settings in the source of a training script, which is parsed and never run."""

import ast
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import msgspec

from ...common.errors import InputError
from ...common.untrusted_files import TooLargeError, read_file
from ..arguments.table import library
from ..source.old_calls import OldCall
from ..source.settings import UNKNOWN_TABLE, Setting, SettingsLayer
from ..trl.methods import method_of_class
from .configs import LENGTH_ARGUMENTS
from .follow import BudgetSpentError, Reader, names_in
from .libraries import DECIDING_LIBRARIES
from .models import BODY_NAMES, Model, Part, models_in
from .named_settings import (
    SIZES,
    add_cut,
    add_cut_of_targets,
    imported_names,
    lengths_of_generation,
    longer_cuts,
    named_settings,
)
from .notes import Doubt, Notes
from .options import LIBRARIES, MEMORY_ARGUMENTS, TRAINING_CONFIG, Options
from .trained_model import (
    BATCHES,
    PLAIN_TRAINERS,
    decided_by_script,
    doubt_model,
    doubt_not_reached,
    find_trained,
    flat,
    infer_no_preparation,
    read_model,
    read_named_model,
    read_others,
    read_trainer_adapters,
    read_unsloth,
)
from .training import SIZE_ARGUMENTS, Arguments, TrainerObject
from .values import UNKNOWN

_MAX_BYTES = 3 * 2**16
"""A script of this size is read within a second, whatever it contains."""
_MAX_ENTRIES = 10_000
"""Files that are looked at to tell a folder of modules from one of data."""
_TRAINS = {"backward", "manual_backward", "fit", "train_batch"}
"""Methods of which a training loop calls one."""
_OTHER_FRAMEWORKS = ("jax", "tensorflow", "keras", "paddle", "mxnet")
_MODEL_FLAG = re.compile(r"(?i)(\w*(config|args|cfg)\.)?(base_?)?model([._](name|id|path|name_or_path))*")
_TRAINERS = ("transformers", "trl", "unsloth", "optimum")
"""Libraries whose trainers, and classes of their arguments, are known by name."""


class ScriptSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings in a script's source, by the names of transformers' and accelerate's arguments."""

    assigned: SettingsLayer = msgspec.field(default_factory=dict)
    """What the script sets whatever its command line says."""
    written: SettingsLayer = msgspec.field(default_factory=dict)
    """Arguments of the calls that configure the job."""
    hints: SettingsLayer = msgspec.field(default_factory=dict)
    """Weaker: defaults of its options, batch size of a DataLoader, length of a tokenizer or constant, optimizer."""
    accelerate: SettingsLayer = msgspec.field(default_factory=dict)
    """Arguments of ``Accelerator(...)``; sharding and mixed precision of the script's own training loop."""
    called: frozenset[str] = frozenset()
    """Last parts of the names that it calls."""
    old_calls: Mapping[OldCall, str] = msgspec.field(default_factory=dict)
    """What today's libraries refuse, and where it stands."""
    own_loss: bool = False
    """It computes the loss in place of TRL's trainer."""
    own_loop: bool = False
    """It trains without a trainer of a library."""
    loads_model: bool = False
    """True if it loads the model itself rather than let the trainer do it."""
    understood: frozenset[str] = frozenset()
    """Options that it was seen to use."""
    unused: frozenset[str] = frozenset()
    """Options that do not decide what their names say."""
    options_file: str | None = None
    """The file that its parser takes the options from."""
    unresolved: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Arguments whose values are known only when the script runs, each with a sentence."""
    framework: str | None = None
    """What it trains with in place of torch; None: it does not."""
    unknown_trainer: str | None = None
    """A trainer of TRL's that is not known here, as a method's name would be."""
    doubts: tuple[Doubt, ...] = ()
    """What memory depends on and was not understood."""
    visible_devices: Setting | None = None
    """The CUDA_VISIBLE_DEVICES that it sets itself; the value is no text where it is not known."""
    device: Setting | None = None
    """The position among the GPUs that it sees of the one that it uses, if that is not the first: ``cuda:1``."""

    @property
    def trl_method(self) -> str | None:
        """``sft``, ``dpo``, ... where the script uses one of TRL's trainers."""
        if self.mixed_config is not None:
            return self.unknown_trainer
        methods = (method_of_class(name) for name in sorted(self.called))
        return next((method.name for method in methods if method is not None), self.unknown_trainer)

    @property
    def mixed_config(self) -> str | None:
        """The arguments of TRL's that transformers' own Trainer is given; None: there are none."""
        configs = [name for name in sorted(self.called) if name.endswith("Config") and method_of_class(name)]
        trainers = {name for name in self.called if name.endswith("Trainer")}
        return configs[0] if configs and trainers and trainers <= PLAIN_TRAINERS else None

    @property
    def uses_plain_arguments(self) -> bool:
        """True if its only configuration is transformers' own TrainingArguments, perhaps with a trainer of TRL."""
        configs = [name for name in self.called if TRAINING_CONFIG.fullmatch(name) and name != "ModelConfig"]
        return bool(configs) and all(name.endswith("TrainingArguments") for name in configs)

    @property
    def trains_with_trainer(self) -> bool:
        """True if it uses a Trainer, TrainingArguments or a class derived from them."""
        return any(TRAINING_CONFIG.fullmatch(name) or name.endswith("Trainer") for name in self.called)


def open_script(path: Path, *, text: str | None = None) -> ast.Module:
    """Return a script's syntax tree.

    Args:
        path: the script.
        text: its source, where that is not what the file holds: the cells of a notebook.

    Raises:
        InputError: it cannot be read, or is not Python that this interpreter can parse.
    """
    try:
        with warnings.catch_warnings():  # the script's own
            warnings.simplefilter("ignore")
            return ast.parse(read_file(path, _MAX_BYTES) if text is None else text, filename=str(path))
    except TooLargeError:
        raise InputError(f"{path}: too large to be a script") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path}: not readable Python: {error}") from None
    except (RecursionError, MemoryError):  # the parser raises MemoryError for deep nesting
        raise InputError(f"{path}: not readable Python: nested too deeply") from None


def read_script(
    path: Path,
    *,
    options: Mapping[str, Setting],
    environ: Mapping[str, Any],
    arguments: Sequence[str] = (),
    find_config: Callable[[str], Mapping[str, Any] | None] | None = None,
    read_table: Callable[[Any], Any] = lambda _: UNKNOWN,
    versions: Mapping[str, str] | None = None,
    folders: Sequence[Path] = (),
    text: str | None = None,
) -> ScriptSettings:
    """Return the settings in a script's source.

    Args:
        path: the script.
        options: flags on its command line.
        environ: its environment; a value may be unknown.
        arguments: the words of its command line.
        find_config: returns a model's config by the model's name; None if it is not here.
        read_table: returns the settings in a file that the script opens.
        versions: installed versions by distribution, where known.
        folders: where the modules lie that it imports, and which are followed; empty: in its own folder.
        text: its source, where that is not what the file holds: the cells of a notebook.

    Raises:
        InputError: it cannot be read, or is not Python that this interpreter can parse.
    """
    tree = open_script(path, text=text)
    number = str(environ.get("WORLD_SIZE", ""))
    notes = Notes(
        find_config=cache(find_config or (lambda _: None)),
        versions=versions or {},
        ranks=int(number) if number.isdigit() else UNKNOWN,
        options=Options(options),
    )
    reader = Reader(
        path.name,
        notes,
        environ=environ,
        argv=[str(path), *arguments],
        find_module=partial(_find_module, folders or [path.parent]),
        open_file=_open_module,
        read_table=read_table,
    )
    try:
        reader.read(tree)
    except (BudgetSpentError, RecursionError, MemoryError):
        notes.doubt(f"{path.name}: the script is too long to follow; the rest is not counted.")
    except Exception as error:  # noqa: BLE001 - a script may do anything; what was found so far counts
        kind = type(error).__name__
        notes.doubt(f"{path.name}: vramtop could not follow a part ({kind}); this is a bug in vramtop.")
    libraries = {root for root, _ in imported_names(tree)}
    for folder, name in product(folders or [path.parent], sorted(libraries.intersection(DECIDING_LIBRARIES))):
        for place in (name, f"src/{name}", f"{name}/src/{name}"):
            if (folder / place / "__init__.py").is_file():
                notes.doubt(f"{place} beside {path.name} may be a changed copy of {name}; it is not read.")
    return _settings(reader, libraries)


def _find_module(folders: Sequence[Path], module: str, level: int, importer: str) -> Path | None:
    """Return the file of a module that lies beside a script; for a folder without one, that which it would have."""
    parts = [part for part in module.split(".") if part]
    if not level and parts[0] in {*sys.stdlib_module_names, *LIBRARIES}:
        return None
    for folder in folders if not level else Path(importer).parents[level - 1 : level]:
        path = folder.joinpath(*parts)
        file, package = path.with_name(f"{path.name}.py"), path / "__init__.py"
        found = file if file.is_file() and not package.is_file() else package
        is_of_data = (level > 0 or len(parts) > 1) and path.is_dir()  # which a package keeps its files in
        is_there = found is file or is_of_data
        is_there |= any(each.suffix == ".py" for each in islice(path.glob("*"), _MAX_ENTRIES))
        if is_there and found.resolve().is_relative_to(folder.resolve()):
            return found
    return None


def _open_module(path: Path) -> ast.Module | None:
    """Return a module's syntax tree, an empty one for a folder without a file; None: it cannot be read."""
    try:
        return open_script(path) if path.is_file() else ast.Module([], [])
    except InputError:
        return None


def _settings(reader: Reader, libraries: Set[str]) -> ScriptSettings:
    """Return what a script sets.

    Args:
        reader: has followed the script.
        libraries: top-level packages that the script itself imports.
    """
    tree, notes, options = reader.tree, reader.notes, reader.notes.options
    trained = find_trained(notes)
    model, has_optimizer = trained.model, bool(notes.trainers or notes.optimizers)
    for doubt in notes.encoders:
        key, asks = ("other_models", False) if trained.certain else (doubt.key, doubt.asks)
        notes.doubt(doubt.sentence, key=key, asks=asks)
    no_lengths = lengths_of_generation(tree)
    add_cut(tree, reader)
    add_cut_of_targets(tree, reader)
    calls = notes.hints
    _add_options(tree, reader, no_lengths)
    _read_optimizer(tree, notes, model)
    unused: set[str] = set()
    if trained.name is not None:
        unused = read_named_model(trained.name, notes, tree)
    elif model is not None:
        unused = read_model(model, notes, certain=trained.certain)
    else:
        doubt_model(reader)
    unused |= decided_by_script(trained, notes)
    given = options.find("model", uses=False)
    if given is not None and model is None and not notes.models and notes.find_config(str(given.value)) is None:
        unused.add("model")  # no library loads one by name, and none has the name: it is the script's
    _doubt_unseen_model(notes)
    read_trainer_adapters(notes)
    if trained.certain and "model_name_or_path" in notes.written:
        notes.assigned["model_name_or_path"] = notes.written["model_name_or_path"]
    read_unsloth(notes)
    if model is not None:
        read_others(notes, model)
    if not (notes.trains or notes.given or notes.trains_elsewhere):
        doubt_not_reached(tree, reader)
    doubts = notes.doubts()
    if any(doubt.asks and doubt.key == "model.id" for doubt in doubts):
        notes.written.pop("model_name_or_path", None)
        notes.assigned.pop("model_name_or_path", None)
    imported = [*imported_names(tree)]
    others = () if has_optimizer or "torch" in libraries else (each for each in _OTHER_FRAMEWORKS if each in libraries)
    if trained.certain:
        infer_no_preparation(tree, model, notes)
    known = {name for root, name in imported if root in _TRAINERS}
    known = {name for name in known if TRAINING_CONFIG.fullmatch(name) or method_of_class(name)}
    trainers = [name for root, name in imported if root == "trl" and name.endswith("Trainer")]
    unknown = next((name for name in trainers if method_of_class(name) is None), None)
    unresolved = _take_unresolved(notes, calls)
    used = options.used | {key for key in options.declared if key not in options.given}
    computed = {*options.assigned, "target_modules"}  # whatever the flag of that name says
    return ScriptSettings(
        assigned=notes.assigned,
        written=notes.written,
        hints={key: each for key, each in notes.hints.items() if each.value is not None},
        accelerate={**({} if notes.trainers else notes.own_loop), **notes.accelerate},
        called=frozenset(notes.called | (set() if has_optimizer else known)),
        old_calls=notes.old_calls,
        own_loss=notes.own_loss,
        own_loop=not notes.trainers and bool(notes.trains or notes.given or notes.optimizers),
        loads_model=model is not None and trained.name is None,
        understood=frozenset({*used, *(f"no_{each}" for each in used)}),
        unused=frozenset(unused | no_lengths),
        options_file=options.file,
        unresolved={key: text for key, text in unresolved.items() if key not in options.given.keys() - computed},
        framework=next(iter(others), None),
        unknown_trainer=unknown.removesuffix("Trainer").lower() if unknown is not None else None,
        doubts=tuple(doubts),
        visible_devices=notes.visible_devices,
        device=notes.device,
    )


def _doubt_unseen_model(notes: Notes) -> None:
    """Ask for the model where a flag that nothing was seen to read names another one than the script."""
    found = notes.written.get("model_name_or_path")
    if found is None:
        return
    for name, flag in notes.options.given.items():
        if _MODEL_FLAG.fullmatch(name) and flag.origin.startswith("--") and notes.options.is_unseen(flag, found.value):
            sentence = f"what {flag.origin} does is not known, and another model was read ({found.origin})."
            notes.doubt(sentence, key="model.id", asks=True)


def _add_options(tree: ast.Module, reader: Reader, no_lengths: set[str]) -> None:
    """Add the settings in command-line options, named numbers and trainer arguments, which hold for any model."""
    notes, options = reader.notes, reader.notes.options
    defaults = {name: each for name, each in options.defaults() if name not in no_lengths}
    if notes.hints.get(BATCHES[0]) is not None and not notes.trainers:  # a loader's
        read = {name for node in ast.walk(tree) for name in names_in(node)}
        defaults = {name: each for name, each in defaults.items() if name not in BATCHES or name in read}
    later, given = options.assigned, options.given
    cuts = longer_cuts(notes, defaults, no_lengths)
    replaced = {key: each for key, each in later.items() if key in options.declared}
    notes.hints = {**named_settings(tree, reader), **notes.hints, **defaults, **cuts, **replaced}
    decided = {
        key: each
        for key, each in later.items()
        if key not in options.declared or (key in given and given[key].value != each.value)
    }
    notes.assigned = {**notes.assigned, **dict(options.made_true()), **decided}
    trainers = _one_training(notes)
    used = [each.arguments for each in trainers if each.arguments in notes.arguments] or notes.arguments
    for arguments in (*used, *(each for each in notes.arguments if each.name == "ModelConfig")):
        notes.written = {**arguments.fields, **notes.written}


def _one_training(notes: Notes) -> list[TrainerObject]:
    """Return the trainers that run; of several with other arguments the first, and ask for the batch."""
    trainers = [each for each in notes.trainers if each.ran] or notes.trainers
    if len({(each.name, id(each.arguments)) for each in trainers}) < 2:
        return trainers
    first, *others = trainers
    sentence = f"{others[0].where}: the script trains again, otherwise; the training at {first.where} is counted."
    notes.doubt(sentence, key="training.micro_batch", asks=True)
    for each in others:
        names = {each.name, getattr(each.arguments, "name", "")} - {first.name, getattr(first.arguments, "name", "")}
        notes.called -= names
    if isinstance(first.arguments, Arguments):
        first.arguments.settings["per_device_train_batch_size"] = Setting(value=UNKNOWN, origin=sentence)
    return [first]


def _read_optimizer(tree: ast.Module, notes: Notes, model: Model | None) -> None:
    """Record the trained model's optimizer; doubt a training loop without a backward pass."""
    of_model = next((each for each in notes.optimizers if model in {*models_in(each.given)}), None)
    optimizer = of_model or next(iter(notes.optimizers), None)
    if optimizer is None:
        return
    if not notes.trainers and _TRAINS.isdisjoint(name for node in ast.walk(tree) for name in names_in(node)):
        notes.doubt(f"{optimizer.where}: no backward pass was found for {optimizer.name}; one is counted.")
    notes.hints.setdefault("optim", optimizer.setting)
    if of_model is not None:  # whatever a flag of that name says
        notes.assigned["optim"] = optimizer.setting
    groups = [each.get("params") if isinstance(each, dict) else each for each in flat(optimizer.given)]
    given = list(flat(groups))
    if given and all(isinstance(value, Part) and value.name not in ("", "?", *BODY_NAMES) for value in given):
        sentence = f"{optimizer.where}: {optimizer.name} gets some parameters; its state is counted for all that train."
        notes.doubt(sentence, key="training.optimizer")


_DECISIVE = {
    *(*library("transformers").key, *MEMORY_ARGUMENTS, *LENGTH_ARGUMENTS, UNKNOWN_TABLE),
    *(each for names in SIZES.values() for each in names),
}
"""Options and arguments that make a job what it is: if one is unknown, the estimate may be of another job."""
_HAVE_DEFAULTS = {*library("transformers").key} - {*SIZE_ARGUMENTS, *LENGTH_ARGUMENTS}


def _take_unresolved(notes: Notes, calls: Mapping[str, Setting]) -> dict[str, str]:
    """Take the settings out of the notes that are not known; return a sentence for each that matters.

    Args:
        notes: the findings, with the defaults of the script's options among the hints.
        calls: the hints without these: an option's default is no more than a hint.
    """
    found: dict[str, str] = {}
    for layer in (calls, notes.hints, notes.assigned, notes.written):
        unknown = {name: setting.origin for name, setting in layer.items() if setting.value is UNKNOWN}
        found |= {name: sentence for name, sentence in unknown.items() if name in _DECISIVE}
    notes.hints, notes.assigned, notes.written = map(_without_unknown, (notes.hints, notes.assigned, notes.written))
    for name in sorted(found.keys() & _HAVE_DEFAULTS):
        found[name] = f"{found[name].removesuffix('.')}; its default is counted."
    return {name: sentence for name, sentence in found.items() if name not in notes.written}


def _without_unknown(layer: Mapping[str, Setting]) -> dict[str, Setting]:
    return {name: setting for name, setting in layer.items() if setting.value is not UNKNOWN}
