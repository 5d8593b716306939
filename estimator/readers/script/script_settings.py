"""Settings in the source of a training script, which is parsed and never run."""

import ast
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ...common.errors import InputError
from ...common.untrusted_files import TooLargeError, read_file
from ..arguments.table import library, scripts
from ..source.settings import UNKNOWN_TABLE, Setting, SettingsLayer
from ..source.versions import OldCall
from ..trl.methods import method_of_class
from .follow import BudgetSpentError, Reader
from .libraries import DIFFUSION, LOSSES, starts_training
from .models import LENGTH_ARGUMENTS, AdapterConfig, Model, ModelConfig, Part, models_in
from .notes import Doubt, Notes
from .options import LIBRARIES, MEMORY_ARGUMENTS, TRAINING_CONFIG, Options, may_parse_elsewhere
from .training import SIZE_ARGUMENTS, Arguments, TrainerObject
from .values import UNKNOWN, Instance, short_text

_MAX_BYTES = 3 * 2**16
"""A script of this size is read within a second, whatever it contains."""
_TRAINERS = ("transformers", "trl", "unsloth", "optimum")
"""Libraries whose trainers, and classes of their arguments, are known by name."""
_SIZES = scripts().aliases["constant"]
"""Names that scripts with a loop of their own keep a setting in; the first that has a number counts."""
_DECISIVE = {
    *(*library("transformers").key, *MEMORY_ARGUMENTS, *LENGTH_ARGUMENTS),
    *(each for names in _SIZES.values() for each in names),
}
"""Options and arguments without whose values the estimate may be about another job."""
_HAVE_DEFAULTS = {*library("transformers").key} - {*SIZE_ARGUMENTS, *LENGTH_ARGUMENTS}
_LENGTH = re.compile(
    r"(?i)^(?!.*(eval|val_|test|vllm|gen|new_tok|min_|prompt|pre_|rope|window|dim|vocab|prefix|name|source|target|answer)).*(length|len|seqlen|block_size)$"
)
_JOINS = ("cat", "concat", "concatenate")
_RESHAPES = (*_JOINS, "stack", "repeat", "repeat_interleave", "expand", "tile", "chunk", "split", "unfold")
_PAIRS = re.compile(r"(?i)(chosen|prefer|winner|positive|_w\b).*(reject|dispref|loser|negative|_l\b)")
_OUTCOMES = re.compile(r"(?i)reward|log_?p|loss|score|logit|margin|acc|value|dim=-?[1-9]")
"""In the names of what a model returns, which is joined after it has run."""
_PADDING_COLLATORS = scripts().names["padding_collators"]
_ONE_LENGTH = ("ConstantLengthDataset", "TextDataset", "group_texts", "group_text")
_OF_ARGUMENTS = scripts().names["of_arguments"]
_OF_LOADING = {"load_in_4bit", "load_in_8bit", "attn_implementation"}
_LENGTHS_OF_TRL = ("max_length", "max_seq_length", "max_prompt_length")
_GENERATES = re.compile(r"(?i)generate(_(text|answer|response|sample)s?)?|generationconfig|(\w*_)?pipeline|pipe")
"""Whole names of calls that generate text, whose length says nothing about that of the training."""
_TOKENIZES = re.compile(r"(?i)^(tok|tokeni[sz]er?)$|^tokeni[sz]e|encode|apply_chat_template|^processor$")
"""What calls a tokenizer, by its name."""
_KEEPS_TOKENIZER = re.compile(r"Trainer$|Collator|^(len|print|resize|save|add|set|type|isinstance)")
"""What is given a tokenizer and cuts nothing with it."""
_SHORTEST = 16
"""Numbers below are no lengths of sequences."""


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
    loads_model: bool = False
    """True if it loads the model itself rather than let the trainer do it."""
    understood: frozenset[str] = frozenset()
    """Options that it was seen to use."""
    unused: frozenset[str] = frozenset()
    """Options that do not decide what their names say."""
    passed_over: frozenset[str] = frozenset()
    """Unused options on the command line that the script gives to nothing that takes them."""
    option_names: frozenset[str] = frozenset()
    """Names that its command line may have, and may abbreviate as argparse allows."""
    read_options: frozenset[str] | None = None
    """All options that it reads; None: not known."""
    unresolved: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Arguments whose values are known only when the script runs, each with a sentence."""
    unknown_trainer: str | None = None
    """A trainer of TRL's that is not known here, as a method's name would be."""
    doubts: tuple[Doubt, ...] = ()
    """What memory depends on and was not understood."""
    visible_devices: Setting | None = None
    """The CUDA_VISIBLE_DEVICES that it sets itself; the value is no text where it is not known."""
    device: Setting | None = None
    """The position among the GPUs that it sees of the one that it uses, if that is not the first: ``cuda:1``."""

    @property
    def makes_images(self) -> bool:
        """True if it trains a model of diffusers."""
        return DIFFUSION in self.called and self.trl_method is None

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
        is_plain = bool(trainers) and trainers <= {"Trainer", "Seq2SeqTrainer"}
        return configs[0] if configs and is_plain else None

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
        versions: installed versions by distribution, where known.
        folders: where the modules lie that it imports, which are not read; empty: in its own folder.
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
        options=Options(options, arguments),
    )
    reader = Reader(
        path.name,
        notes,
        environ=environ,
        argv=[str(path), *arguments],
        is_own=lambda module, level: _is_own(module, level, folders or [path.parent]),
    )
    try:
        reader.read(tree)
    except (BudgetSpentError, RecursionError, MemoryError):
        notes.doubt(f"{path.name}: the script is too long to follow; the rest is not counted.")
    except Exception as error:  # noqa: BLE001 - a script may do anything; what was found so far counts
        kind = type(error).__name__
        notes.doubt(f"{path.name}: vramtop could not follow a part ({kind}); this is a bug in vramtop.")
    return _settings(tree, reader)


def _is_own(module: str, level: int, folders: Sequence[Path]) -> bool:
    """Return True for a module in one of the folders."""
    parts = [part for part in module.split(".") if part]
    if (
        level
        or not parts
        or parts[0] in {*sys.stdlib_module_names, *LIBRARIES}
        or not all(part.isidentifier() for part in parts)
    ):
        return bool(level)
    starts = [folder / parts[0] for folder in folders]
    return any(start.with_suffix(".py").is_file() or (start / "__init__.py").is_file() for start in starts)


class _Layers(msgspec.Struct):
    """Settings of a script that grow while they are read; ``ScriptSettings`` says which they are."""

    written: dict[str, Setting]
    hints: dict[str, Setting]
    assigned: dict[str, Setting]

    def split(self, hints: dict[str, Setting]) -> dict[str, str]:
        """Take the settings out that only the running script knows; return a sentence for each that matters."""
        found: dict[str, str] = {}
        for layer in (hints, self.hints, self.assigned, self.written):  # an option's default is no more than a hint
            unknown = {name: setting.origin for name, setting in layer.items() if setting.value is UNKNOWN}
            for name in unknown:
                del layer[name]
            found |= {name: sentence for name, sentence in unknown.items() if name in (*_DECISIVE, UNKNOWN_TABLE)}
        for name in sorted(found.keys() & _HAVE_DEFAULTS):
            found[name] = f"{found[name].removesuffix('.')}; its default is counted."
        return {name: sentence for name, sentence in found.items() if name not in self.written}


def _settings(tree: ast.Module, reader: Reader) -> ScriptSettings:
    """Return what a reading comes to."""
    notes, options = reader.notes, reader.notes.options
    trained = _find_trained(notes)
    model, has_optimizer = trained.model, bool(notes.trainers or notes.optimizers)
    no_lengths = _doubt_unused_lengths(tree, reader)
    layers = _read_layers(tree, reader, no_lengths)
    _read_optimizer(notes, model, layers)
    unused: set[str] = set()
    if trained.name is not None:
        layers.written["model_name_or_path"] = trained.name
    elif model is not None:
        unused = _read_model(model, notes, layers, certain=trained.certain)
    else:
        _doubt_model(reader)
    passed_over = _decided_by_script(trained, notes, layers)
    given = options.given.get("model")
    if given is not None and model is None and not notes.models and notes.find_config(str(given.value)) is None:
        unused.add("model")  # no library loads one by name, and none has the name: it is the script's
    _read_trainer_adapters(notes, layers)
    if trained.certain and "model_name_or_path" in layers.written:
        layers.assigned["model_name_or_path"] = layers.written["model_name_or_path"]
    if (varying := _varying_lengths(tree, reader)) is not None:
        layers.written["script_varying_lengths"] = varying
    if model is not None:
        _doubt_others(notes, model)
    _doubt_pairs(tree, reader)
    for each in notes.models:
        _doubt_inputs(tree, reader, each)
    if not (notes.trains or notes.given or notes.trains_elsewhere):
        _doubt_not_reached(tree, reader)
    doubts = notes.doubts()
    if any(doubt.asks and doubt.key == "model.id" for doubt in doubts):
        layers.written.pop("model_name_or_path", None)
        layers.assigned.pop("model_name_or_path", None)
    imported = [*_imported(tree)]
    known = {name for root, name in imported if root in _TRAINERS}
    known = {name for name in known if TRAINING_CONFIG.fullmatch(name) or method_of_class(name)}
    trainers = [name for root, name in imported if root == "trl" and name.endswith("Trainer")]
    unknown = next((name for name in trainers if method_of_class(name) is None), None)
    unresolved = layers.split(notes.hints)
    used = options.used | {key for key in options.declared if key not in options.given}
    is_open = options.is_open or bool(notes.own_modules) or not has_optimizer or may_parse_elsewhere(tree)
    return ScriptSettings(
        assigned=layers.assigned,
        written=layers.written,
        hints={key: each for key, each in layers.hints.items() if each.value is not None},
        accelerate={**({} if notes.trainers else notes.own_loop), **notes.accelerate},
        called=frozenset(notes.called | (set() if has_optimizer else known)),
        old_calls=notes.old_calls,
        own_loss=notes.own_loss,
        loads_model=model is not None and trained.name is None,
        understood=frozenset({*used, *(f"no_{each}" for each in used)}),
        unused=frozenset(unused | passed_over | no_lengths),
        passed_over=frozenset(passed_over & options.given.keys()),
        option_names=frozenset(options.names) if options.abbreviates else frozenset(),
        read_options=None if is_open else frozenset({*options.names, *options.declared, *options.used}),
        unresolved={
            key: text for key, text in unresolved.items() if key not in options.given or key in options.assigned
        },
        unknown_trainer=unknown.removesuffix("Trainer").lower() if unknown is not None else None,
        doubts=tuple(doubts),
        visible_devices=notes.visible_devices,
        device=notes.device,
    )


def _read_layers(tree: ast.Module, reader: Reader, no_lengths: set[str]) -> _Layers:
    """Return the settings in options, names and the arguments of trainers, whichever model is trained."""
    notes, options = reader.notes, reader.notes.options
    defaults = {name: each for name, each in options.defaults() if name not in no_lengths}
    later = options.assigned
    given = {
        key: each for key, each in later.items() if key in options.given and options.given[key].value != each.value
    }
    layers = _Layers(
        written=dict(notes.written),
        hints={**_constants(tree, reader), **notes.hints, **defaults, **_longer_cuts(notes, defaults)},
        assigned={
            **notes.assigned,
            **dict(options.made_true()),
            **{key: each for key, each in later.items() if key not in options.declared},
            **given,
        },
    )
    layers.hints |= {key: each for key, each in later.items() if key in options.declared}
    trainers = _one_training(notes)
    used = [each.arguments for each in trainers if each.arguments in notes.arguments] or notes.arguments
    for arguments in (*used, *(each for each in notes.arguments if each.name == "ModelConfig")):
        layers.written = {**arguments.fields, **layers.written}
    return layers


def _one_training(notes: Notes) -> list[TrainerObject]:
    """Return the trainers that run; of several with other arguments the first, and ask for the batch."""
    trainers = [each for each in notes.trainers if each.ran] or notes.trainers
    first, *others = trainers or [None]
    tables = [each.arguments.values for each in trainers if isinstance(each.arguments, Arguments)]
    differ = {name for table in tables for name in _DECISIVE if table.get(name) != tables[0].get(name)}
    if first is None or not (differ or any(each.name != first.name for each in others)):
        return trainers
    sentence = f"{others[0].where}: the script trains again, otherwise; the training at {first.where} is counted."
    notes.doubt(sentence, key="training.micro_batch", asks=True)
    for each in others:
        names = {each.name, getattr(each.arguments, "name", "")} - {first.name, getattr(first.arguments, "name", "")}
        notes.called -= names
    if isinstance(first.arguments, Arguments):
        first.arguments.settings["per_device_train_batch_size"] = Setting(value=UNKNOWN, origin=sentence)
    return [first]


def _read_optimizer(notes: Notes, model: Model | None, layers: _Layers) -> None:
    """Take the optimizer of the trained model."""
    of_model = next((each for each in notes.optimizers if model in {*models_in(each.given)}), None)
    optimizer = of_model or next(iter(notes.optimizers), None)
    if optimizer is None:
        return
    layers.hints.setdefault("optim", optimizer.setting)
    if of_model is not None:  # whatever a flag of that name says
        layers.assigned["optim"] = optimizer.setting
    given = list(_flat(optimizer.given))
    if given and all(isinstance(value, Part) and value.name and "?" not in value.name for value in given):
        sentence = f"{optimizer.where}: {optimizer.name} gets some parameters; its state is counted for all that train."
        notes.doubt(sentence)


# Which model is trained.


class _Trained(msgspec.Struct):
    model: Model | None = None
    name: Setting | None = None
    """The name of a model that a trainer loads itself."""
    certain: bool = False
    """A trainer or an optimizer has the model."""


def _find_trained(notes: Notes) -> _Trained:
    """Return what is trained: what a trainer has, else an optimizer, else what is prepared, else the first model."""
    trainers = sorted(notes.trainers, key=lambda each: not each.ran)
    name = next((trainer.model_name for trainer in trainers if trainer.model_name is not None), None)
    if name is not None:
        return _Trained(name=name, certain=True)
    held = [trainer.model for trainer in trainers if trainer.model is not None]
    for values in (held, [each.given for each in notes.optimizers], notes.given):
        found = list(dict.fromkeys(model for value in values for model in models_in(value)))
        live = [model for model in found if not model.is_frozen] or found
        around = next((value for value in _flat(values) if isinstance(value, Instance) and value.is_module), None)
        if len(live) > 1:
            where = ", ".join(each.where for each in live[1:])
            sentence = f"{where}: another model is also trained; its gradients and optimizer state are not counted."
            notes.doubt(sentence)
        if live and around is not None:
            notes.doubt(f"{live[0].where}: {around.kind.name} holds the model; its own layers are not counted.")
        if live or around is not None:
            return _Trained(model=live[0], certain=True) if live else _Trained()
    if any(value is UNKNOWN for each in notes.optimizers for value in _flat(each.given)):
        return _Trained()
    loose = [each for each in notes.models if not each.is_frozen]
    if len(loose) > 1:
        notes.doubt(
            f"{loose[0].where}: which of {len(loose)} models is trained is not known; this one is counted as trained."
        )
    return _Trained(model=loose[0] if loose else None)


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _doubt_model(reader: Reader) -> None:
    """Note that it is not known how the trained model is made."""
    notes, values = reader.notes, reader.module.names.values()
    own = next((value for value in values if isinstance(value, Instance) and value.is_module), None)
    if own is not None:
        notes.doubt(f"{reader.name}: the trained model {own.kind.name} is the script's own.", key="model.id")
    elif notes.optimizers:
        notes.doubt(f"{notes.optimizers[0].where}: the model that the optimizer trains is not known.", key="model.id")


def _doubt_not_reached(tree: ast.Module, reader: Reader) -> None:
    """Note that no training was found, and the library that may have it."""
    notes = reader.notes
    foreign = next(((root, where) for root, where in notes.foreign.items() if root not in notes.own_modules), None)
    if notes.own_modules or any(map(starts_training, ast.walk(tree))):
        notes.doubt(f"{reader.name}: vramtop did not reach the training itself; settings may be missing.")
    elif foreign is not None and not (notes.models or notes.optimizers or notes.trainers):
        root, where = foreign
        notes.doubt(
            f"{where}: the training may be in {root}, which vramtop does not read; a rehearsal needs it installed "
            f"(pip install {root.replace('_', '-')})."
        )


def _read_trainer_adapters(notes: Notes, layers: _Layers) -> None:
    """Take the adapters that a trainer adds to the model that it loads itself."""
    for trainer in notes.trainers:
        if isinstance(trainer.adapters, AdapterConfig) and not isinstance(trainer.model, Model):
            origin = f"{trainer.where}: {trainer.name}(peft_config=...)"
            adapters = {"use_peft": Setting(value=True, origin=origin), **trainer.adapters.counted()}
            layers.written = {**adapters, **layers.written}


# What is known of the trained model, and of those beside it.


def _read_model(model: Model, notes: Notes, layers: _Layers, *, certain: bool) -> set[str]:
    """Take what is known of the trained model; return the options that do not decide what their names say."""
    config = model.config
    source = model.source or (config.source if config is not None else None)
    if source is not None:
        layers.written["model_name_or_path"] = source
    settings = {**(config.settings if config is not None else {}), **model.settings}
    task = {"task": model.task} if model.task is not None else {}
    layers.written = {**settings, **task, **layers.written}
    layers.assigned.update(task)  # whatever a flag of that name is: mrpc, of GLUE's
    layers.hints = {**model.hints, **layers.hints}
    if model.frozen_at is not None:
        sentence = f"{model.frozen_at}: which parameters train is not read; "
        sentence += "those of the adapters are counted." if model.has_adapters else "all are counted."
        notes.doubt(sentence, key="training.trainable")
    if certain and not model.has_adapters and not model.changed_unseen:  # whatever options for adapters it has
        origin = f"{model.where}: the script attaches no adapters"
        layers.assigned["use_peft"] = Setting(value=False, origin=origin, written=False)
    methods = filter(None, map(method_of_class, notes.called))
    if "use_vllm" in model.hints and all(method.generation == "none" for method in methods):
        notes.doubt(f"{model.where}: fast_inference starts vLLM in this process, which is not counted.")
    if model.on_gpu is False and not notes.trainers and not notes.given:
        notes.doubt(f"{model.where}: the script puts the model on the CPU; it is counted as on a GPU.")
    _read_passes(model, notes)
    if config is not None:
        _read_config(model, config, notes, layers.written)
    is_typed = {"dtype", "torch_dtype"} & {*settings}
    return {"dtype", "torch_dtype"} if certain and model.is_read and not is_typed else set()


def _decided_by_script(trained: _Trained, notes: Notes, layers: _Layers) -> set[str]:
    """Let what the script gives its trainer and its model count before its own flags; return flags it gives neither.

    Both are known as a whole: without ``**table`` that only the running script knows.
    """
    options, model = notes.options, trained.model
    arguments = [trainer.arguments for trainer in notes.trainers if trainer.ran or len(notes.trainers) == 1]
    names: set[str] = set()
    if arguments and all(isinstance(each, Arguments) and each.unknown_table is None for each in arguments):
        names |= _OF_ARGUMENTS
    if trained.certain and model is not None and model.is_read:
        names |= {name for name in _OF_LOADING if name not in model.hints}
    for name in [each for each in layers.written if each in names]:
        layers.assigned.setdefault(name, layers.written[name])
    passed_over = names - layers.written.keys() - layers.assigned.keys()
    own = options.declared.keys() - options.used
    return {name for name in passed_over if name in _OF_LOADING or name in own}


def _read_passes(model: Model, notes: Notes) -> None:
    """Note several forward passes, which may keep their activations at a time, and a loss of the script's own."""
    passes = list(model.passes.values())
    if model.runs_again or len(passes) > 1:
        sentence = f"{passes[-1]}: the model may run more than once before a backward pass; once is counted."
        notes.doubt(sentence, key="training.sequences_per_example")
    over_words = model.task is None or str(model.task.value).endswith("-lm")
    if passes and not model.has_labels and bool(LOSSES & notes.called) and over_words and not notes.trainers:
        sentence = f"{passes[0]}: the script computes the loss itself; the library's loss is counted."
        notes.doubt(sentence, key="training.loss")


def _read_config(model: Model, config: ModelConfig, notes: Notes, written: dict[str, Setting]) -> None:
    """Take the config that the script makes or changes."""
    changed, table = config.changed(), config.table()
    if config.source is not None and set(changed) <= {"num_labels"}:
        written.update({name: setting for name, setting in changed.items() if name not in written})
    elif table is not None:
        origin = "; ".join(setting.origin for setting in changed.values()) or f"{model.where}: {model.label}"
        written["script_model_config"] = Setting(value=table, origin=origin[:300])
    else:
        for setting in changed.values():
            notes.doubt(f"{setting.origin} changes a model whose config was not found; this is not counted.")


def _doubt_others(notes: Notes, trained: Model) -> None:
    """Note models beside the trained one that are not counted, or not as they are loaded."""
    given = [each for trainer in notes.trainers for each in trainer.others]
    by_trainer = any(each.ran for each in notes.trainers)  # a Trainer moves only its own models to the GPU
    for model in notes.models:
        is_left = model.on_gpu is False or (by_trainer and model.on_gpu is None)
        if model in given and model.stored() != trained.stored():
            sentence = f"{model.where}: the weights are counted in the type of the trained model's."
            notes.doubt(sentence, key="other_models")
        elif model is not trained and not is_left and model not in given:
            notes.doubt(f"{model.where}: another model besides the trained one is not counted.", key="other_models")


# Settings that a script keeps in names of its module.


def _constants(tree: ast.Module, reader: Reader) -> dict[str, Setting]:
    """Return numbers that names of lengths are given anywhere, and the sizes of a script with a loop of its own."""
    found: dict[str, Setting] = {}
    notes, module = reader.notes, reader.module
    for setting, aliases in _SIZES.items() if notes.optimizers and not notes.trainers else ():
        name = next((name for name in aliases if type(module.names.get(name)) is int), "")
        value = module.names.get(name)
        found |= {setting: Setting(value=value, origin=f"{reader.name}: {name} = {value}")} if name else {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            name = getattr(node.targets[0] if isinstance(node, ast.Assign) else node.target, "id", "")
            value = module.names.get(name, getattr(node.value, "value", UNKNOWN))
            if name.lower() in LENGTH_ARGUMENTS and type(value) is int:
                found[name.lower()] = Setting(value=value, origin=f"{reader.location(node)}: {name}")
    return found


def _longer_cuts(notes: Notes, defaults: Mapping[str, Setting]) -> dict[str, Setting]:
    """Return where calls cut sequences, if the default of that name is shorter; note that there are several lengths."""
    cuts = {name: each for name, each in notes.hints.items() if name in LENGTH_ARGUMENTS and type(each.value) is int}
    options = {name: each for name, each in defaults.items() if _LENGTH.match(name) and type(each.value) is int}
    known = {name: each.value for name, each in options.items()}
    known |= {f"{name} of a call": each.value for name, each in cuts.items()}
    known = {name: value for name, value in known.items() if value >= _SHORTEST}
    if options and len({*known.values()}) > 1:
        shown = ", ".join(f"{name}={value}" for name, value in sorted(known.items())[:4])
        sentence = f"The script has several lengths ({shown}); vramtop does not know which one a step has."
        notes.doubt(sentence, key="training.sequence_length")
    both = (cuts.keys() & options.keys()) - notes.options.given.keys()
    return {name: cuts[name] for name in both if cuts[name].value > options[name].value}


def _doubt_unused_lengths(tree: ast.Module, reader: Reader) -> set[str]:
    """Note options for the length of sequences that nothing in the script reads; TRL reads its own.

    Return those that only a generation or an unused tokenizer reads: they are no length, and the user is asked for it.
    """
    notes, options = reader.notes, reader.notes.options
    ours = {*LENGTH_ARGUMENTS, "cutoff_len", "model_max_length", "sequence_len"} & options.declared.keys()
    idle = [node for node in ast.walk(tree) if ours and _cuts_nothing(node, tree)]
    inside = {id(each) for node in idle for each in ast.walk(node)}
    read = {name for node in ast.walk(tree) if ours and id(node) not in inside for name in _reads(node)}
    read_idly: set[str] = {name for node in idle for each in ast.walk(node) for name in _reads(each)} & ours - read
    given = (notes.written, notes.hints, options.declared, *(each.values for each in notes.arguments))
    has_other = any(name in LENGTH_ARGUMENTS and name not in read_idly for table in given for name in table)
    for name in sorted(ours - read):
        is_idle = name in read_idly
        place = options.declared[name].origin.partition(": ")[0]
        sentence = f"{place}: nothing in {reader.name} reads {name} to cut sequences; what cuts them is not known."
        if not (is_idle and has_other) and (is_idle or name not in _LENGTHS_OF_TRL):
            notes.doubt(sentence, key="training.sequence_length", asks=is_idle)
    return read_idly


def _reads(node: ast.AST) -> Iterator[str]:
    """Yield the name that a node reads, where it is no attribute of a tokenizer."""
    if isinstance(node, ast.Attribute) and "token" not in ast.unparse(node.value).rpartition(".")[2].lower():
        yield node.attr
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _cuts_nothing(node: ast.AST, tree: ast.Module) -> bool:
    """Return True for a call whose length cuts no sequence of a step: a generation, or an unused tokenizer."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    generates = _GENERATES.fullmatch(called.rpartition(".")[2]) is not None
    return generates or ("Tokenizer" in called and not any(map(_tokenizes, ast.walk(tree))))


def _tokenizes(node: ast.AST) -> bool:
    """Return True for a call of a tokenizer, or of something that is given one and may call it."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func).rpartition(".")[2]
    given = (ast.unparse(each).rpartition(".")[2] for each in (*node.args, *(each.value for each in node.keywords)))
    return _TOKENIZES.search(called) is not None or (
        not _KEEPS_TOKENIZER.search(called) and any("token" in each.lower() for each in given if each.isidentifier())
    )


def _varying_lengths(tree: ast.Module, reader: Reader) -> Setting | None:
    """Return whether lengths vary, by how sequences are padded; None where the script leaves it open.

    They do not where the tokenizer pads to the limit, or sequences are concatenated and cut (``group_texts`` of
    transformers' examples); collators that pad take a batch to its longest sequence.
    """
    found: dict[bool | None, Setting] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call | ast.FunctionDef):
            continue
        function = getattr(node, "func", node)
        called = getattr(function, "attr", getattr(function, "id", getattr(function, "name", "")))
        padding = next((each.value for each in getattr(node, "keywords", ()) if each.arg == "padding"), None)
        value = getattr(padding, "value", None)
        if called in _ONE_LENGTH or value == "max_length":
            varies: bool | None = False
        elif value in (True, "longest") or (padding is None and called in _PADDING_COLLATORS):
            varies = True
        elif padding is not None and value is None:
            varies = None
        else:
            continue
        found.setdefault(varies, Setting(value=varies, origin=f"{reader.location(node)}: {short_text(node)}"))
    return found.get(False) or (found.get(True) if None not in found else None)


def _doubt_pairs(tree: ast.Module, reader: Reader) -> None:
    """Note batches that a script joins of chosen and rejected sequences."""
    for node in ast.walk(tree):
        text = ast.unparse(node) if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _JOINS else ""
        if _PAIRS.search(text) and not _OUTCOMES.search(text):
            sentence = f"{reader.location(node)}: {short_text(node)} joins chosen and rejected sequences."
            reader.notes.doubt(sentence, key="training.sequences_per_example", asks=True)


def _doubt_inputs(tree: ast.Module, reader: Reader, model: Model) -> None:
    """Note what a model is given that the script makes of a loader's batch: joined, repeated or cut."""
    for around in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Module)):
        inside = list(ast.walk(around))
        assigns = [node for node in inside if isinstance(node, ast.Assign)]
        for call in (node for node in inside if id(node) in model.passes):
            given = [part for each in ast.iter_child_nodes(call) for part in ast.walk(each)]
            names = {part.id for part in given if isinstance(part, ast.Name)}
            made = (each for each in assigns if names & {getattr(part, "id", "") for part in each.targets})
            given += [part for each in made for part in ast.walk(each.value)]
            changed = next((part for part in given if getattr(part, "attr", "") in _RESHAPES or _is_part(part)), None)
            if changed is not None:
                shown = f"{reader.location(changed)}: {short_text(changed)}"
                sentence = f"{shown}: the model is not given the loader's batch as it is."
                reader.notes.doubt(sentence, key="training.sequences_per_example")


def _is_part(node: ast.AST) -> bool:
    """Return True for a part of a batch whose bounds are computed: ``batch[start:start + size]``."""
    part = getattr(node, "slice", None)
    bounds = (part.lower, part.upper) if isinstance(part, ast.Slice) else ()
    return any(isinstance(each, ast.Name | ast.BinOp | ast.Attribute) for each in bounds)


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the libraries that names are imported from, with the names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield from (((node.module or "").partition(".")[0], alias.name) for alias in node.names)
