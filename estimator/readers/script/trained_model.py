"""The model that a script trains, what is known of it, and those beside it."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ...job.rules.strategies import DTYPE_NAMES
from ...model.find_config import find_built_in
from ..arguments.table import library, scripts
from ..source.settings import Setting
from ..source.versions import is_at_least
from ..trl.methods import method_of_class
from .configs import ModelConfig
from .follow import Reader
from .libraries import doubt_own_layers, starts_training
from .models import AdapterConfig, Model, QuantizationConfig, models_in
from .notes import Notes
from .training import Arguments
from .values import UNKNOWN, Instance

_OF_ARGUMENTS = scripts().names["of_arguments"]
BATCHES = library("transformers").aliases["batch"]
"""Names that scripts have for a batch, that of TrainingArguments first."""
_DTYPES = ("dtype", "torch_dtype")
PLAIN_TRAINERS = frozenset({"Trainer", "Seq2SeqTrainer"})
"""transformers' own."""
_EARLY = ("activation_checkpointing",)
"""Settings of a config that a model takes when it is made, and no more later."""
_OF_LOADING = {"load_in_4bit", "load_in_8bit", "attn_implementation"}
_OF_SHARDING = {"fsdp", "fsdp_config", "deepspeed"}


class _Trained(msgspec.Struct):
    model: Model | None = None
    name: Setting | None = None
    """The name of a model that a trainer loads itself."""
    certain: bool = False
    """A trainer or an optimizer has the model."""


def find_trained(notes: Notes) -> _Trained:
    """Return what is trained: what a trainer has, else an optimizer, else what is prepared, else the first model."""
    trainers = sorted(notes.trainers, key=lambda each: not each.ran)
    name = next((trainer.model_name for trainer in trainers if trainer.model_name is not None), None)
    if name is not None:
        return _Trained(name=name, certain=True)
    held = [trainer.model for trainer in trainers if trainer.model is not None]
    for values in (held, [each.given for each in notes.optimizers], notes.given):
        found = list(dict.fromkeys(model for value in values for model in models_in(value)))
        live = [model for model in found if not model.is_frozen] or found
        around = next((value for value in flat(values) if isinstance(value, Instance) and value.is_module), None)
        if len(live) > 1:
            where = ", ".join(each.where for each in live[1:])
            sentence = f"{where}: another model is also trained; its gradients and optimizer state are not counted."
            notes.doubt(sentence)
        if live and around is not None:
            doubt_own_layers(live[0], around.kind, notes)
        if live or around is not None:
            return _Trained(model=live[0], certain=True) if live else _Trained()
    if any(value is UNKNOWN for each in notes.optimizers for value in flat(each.given)):
        return _Trained()
    loose = [each for each in notes.models if not each.is_frozen]
    if len(loose) > 1:
        notes.doubt(
            f"{loose[0].where}: which of {len(loose)} models is trained is not known; this one is counted as trained."
        )
    return _Trained(model=loose[0] if loose else None)


def flat(values: Any) -> Iterator[Any]:
    """Yield the values of lists and tuples at any depth."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from flat(value)
        else:
            yield value


def doubt_model(reader: Reader) -> None:
    """Note that it is not known how the trained model is made."""
    notes, values = reader.notes, reader.module.names.values()
    own = next((value for value in values if isinstance(value, Instance) and value.is_module), None)
    if own is not None:
        notes.doubt(f"{reader.name}: the trained model {own.kind.name} is the script's own.", key="model.id")
    elif notes.optimizers:
        notes.doubt(f"{notes.optimizers[0].where}: the model that the optimizer trains is not known.", key="model.id")


def doubt_not_reached(tree: ast.Module, reader: Reader) -> None:
    """Note that no training was found, and the library that may have it."""
    notes = reader.notes
    foreign = next(iter(notes.foreign.items()), None)
    if any(map(starts_training, ast.walk(tree))):
        notes.doubt(f"{reader.name}: vramtop did not reach the training itself; settings may be missing.")
    elif foreign is not None and not (notes.models or notes.optimizers or notes.trainers):
        root, where = foreign
        notes.doubt(
            f"{where}: the training may be in {root}, which vramtop does not read; a rehearsal needs it installed "
            f"(pip install {root.replace('_', '-')})."
        )


def read_trainer_adapters(notes: Notes) -> None:
    """Take the adapters that a trainer adds to the model that it loads itself, and the format that it loads it in."""
    for trainer in notes.trainers:
        if isinstance(trainer.quantization, QuantizationConfig) and not isinstance(trainer.model, Model):
            notes.written = {**trainer.quantization.counted(), **notes.written}
        if isinstance(trainer.adapters, AdapterConfig) and not isinstance(trainer.model, Model):
            origin = f"{trainer.where}: {trainer.name}(peft_config=...)"
            adapters = {"use_peft": Setting(value=True, origin=origin), **trainer.adapters.counted()}
            notes.written = {**adapters, **notes.written}
        elif trainer.adapters is None and isinstance(trainer.model, str | None) and method_of_class(trainer.name):
            origin = f"{trainer.where}: {trainer.name}(...) is given no adapters"
            notes.assigned["use_peft"] = Setting(value=False, origin=origin)


def read_model(model: Model, notes: Notes, *, certain: bool) -> set[str]:
    """Take what is known of the trained model; return the options that do not decide what their names say."""
    config = model.config
    source = model.source or (config.source if config is not None else None)
    if source is not None:
        notes.written["model_name_or_path"] = source
    later = {name: each for name, each in (config.settings if config is not None else {}).items() if name not in _EARLY}
    settings = {**later, **model.settings}
    task = {"task": model.task} if model.task is not None else {}
    notes.written = {**settings, **task, **notes.written}
    notes.assigned.update(task)  # whatever a flag of that name is: mrpc, of GLUE's
    notes.hints = {**model.hints, **notes.hints}
    if model.frozen_at is not None:
        sentence = f"{model.frozen_at}: which parameters train is not read; "
        sentence += "those of the adapters are counted." if model.has_adapters else "all are counted."
        notes.doubt(sentence, key="training.trainable")
    if (call := model.adapters_from) is not None:
        call.doubt(f"{call.name}(...) loads adapters; vramtop does not read their rank and layers.", key="lora.rank")
    if certain and not model.has_adapters and not model.changed_unseen:  # whatever options for adapters it has
        origin = f"{model.where}: the script attaches no adapters"
        notes.assigned["use_peft"] = Setting(value=False, origin=origin, written=False)
    methods = filter(None, map(method_of_class, notes.called))
    if "use_vllm" in model.hints and all(method.generation == "none" for method in methods):
        notes.doubt(f"{model.where}: fast_inference starts vLLM in this process, which is not counted.")
    if model.on_gpu is False and not notes.trainers and not notes.given:
        notes.doubt(f"{model.where}: the script puts the model on the CPU; it is counted as on a GPU.")
    if config is not None:
        _read_config(model, config, notes)
    typed = settings.get("dtype") or settings.get("torch_dtype")
    if not certain or not model.is_read:
        return set()
    if typed is not None and typed.value is not UNKNOWN:  # whatever a flag of that name says
        notes.assigned |= dict.fromkeys(_DTYPES, typed)
    return set() if typed is not None else {*_DTYPES}


def infer_no_preparation(tree: ast.Module, model: Model | None, notes: Notes) -> None:
    """Note that nothing casts what is not quantized to fp32: the script does not, and only TRL's trainers do."""
    names = (getattr(node, "name", getattr(node, "id", getattr(node, "attr", ""))) for node in ast.walk(tree))
    if any(str(name).startswith("prepare_model_for") for name in names):
        return
    is_plain = bool(notes.trainers) and {trainer.name for trainer in notes.trainers} <= PLAIN_TRAINERS
    if is_plain and model is not None and model.has_adapters and not model.changed_unseen:
        origin = f"{model.where}: the script does not call prepare_model_for_kbit_training"
        notes.hints.setdefault("kbit_preparation", Setting.default(False, origin))


def read_unsloth(notes: Notes) -> None:
    """Take the defaults of the configurations that unsloth puts in the place of TRL's, where it is imported first."""
    if notes.has_unsloth:
        notes.written["script_unsloth"] = Setting.default(True, "the script trains with unsloth")
    methods = [method for each in notes.arguments if (method := method_of_class(each.name)) is not None]
    if notes.first_trainers != "unsloth" or not methods:
        return
    if is_at_least("trl", (0, 15), notes.versions):
        notes.hints = {**library("unsloth").defaults("config"), **notes.hints}
    cuts = methods[0].generation == "none" and methods[0].name != "sft"
    if cuts and "max_length" not in notes.written and "max_seq_length" in notes.hints:
        sentence = "until 2025.5, unsloth leaves the trainer TRL's own max_length; that of the model is counted."
        notes.doubt(f"{notes.hints['max_seq_length'].origin}: {sentence}", key="training.sequence_length")


def decided_by_script(trained: _Trained, notes: Notes) -> set[str]:
    """Let what the script gives its trainer and its model count before its own flags.

    Both are known as a whole: without ``**table`` that only the running script knows. Return the flags that it gives
    neither.
    """
    options, model = notes.options, trained.model
    arguments = [trainer.arguments for trainer in notes.trainers if trainer.ran or len(notes.trainers) == 1]
    names: set[str] = set()
    if arguments and all(isinstance(each, Arguments) and each.unknown_table is None for each in arguments):
        names |= _OF_ARGUMENTS
    if trained.certain and model is not None and model.is_read:
        names |= {name for name in _OF_LOADING if name not in model.hints}
    by_trl = bool(arguments) and all(isinstance(each, Arguments) and method_of_class(each.name) for each in arguments)
    lengths = ("max_length", "max_seq_length") if by_trl else ()
    for name in [each for each in notes.written if each in names or each in lengths]:
        notes.assigned.setdefault(name, notes.written[name])
    declared: set[str] = {*options.declared}
    own = (declared - options.used) | (declared & {*BATCHES[1:]})
    unused: set[str] = (_OF_LOADING | _OF_SHARDING | own) & (names - notes.written.keys() - notes.assigned.keys())
    return unused


def read_named_model(name: Setting, notes: Notes, tree: ast.Module) -> set[str]:
    """Take the model that a trainer of TRL's loads by its name; return the options that it never gets.

    It loads it by ``model_init_kwargs`` alone.
    """
    notes.written["model_name_or_path"] = name
    read = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {*_DTYPES, "attn_implementation"} - read


def _read_config(model: Model, config: ModelConfig, notes: Notes) -> None:
    """Take the config that the script makes or changes."""
    changed, table = config.changed(), config.table()
    if config.source is not None and set(changed) <= {"num_labels"}:
        notes.written = {**changed, **notes.written}
    elif table is not None:
        origin = "; ".join(setting.origin for setting in changed.values()) or f"{model.where}: {model.label}"
        notes.written["script_model_config"] = Setting(value=table, origin=origin[:300])
    else:
        for setting in changed.values():
            notes.doubt(f"{setting.origin} changes a model whose config was not found; this is not counted.")


def read_others(notes: Notes, trained: Model) -> None:
    """Note models beside the trained one that are not counted, or not as they are loaded."""
    given = [each for trainer in notes.trainers for each in trainer.others]
    by_trainer = any(each.ran for each in notes.trainers)  # a Trainer moves only its own models to the GPU
    quantized: list[str] = []
    held: list[Setting] = []
    for model in notes.models:
        is_left = model.on_gpu is False or (by_trainer and model.on_gpu is None)
        if model in given and model.stored() != trained.stored():
            sentence = f"{model.where}: the weights are counted in the type of the trained model's."
            notes.doubt(sentence, key="other_models")
        elif model in given and model.source is not None:
            if any(model.stored().get(name) is True for name in ("load_in_4bit", "load_in_8bit")):
                quantized.append(model.source.value)
        elif model is not trained and not is_left and model not in given:
            if model.is_later:
                notes.doubt(f"{model.where}: a model loaded after the training is not counted.", key="other_models")
                continue
            config = notes.find_config(str(model.source.value)) if model.on_gpu and model.source is not None else None
            if config is not None:
                held.append(_held(model, config))
                continue
            notes.doubt(f"{model.where}: another model besides the trained one is not counted.", key="other_models")
    if held:
        origin = "; ".join(each.origin for each in held)
        notes.written["script_other_models"] = Setting(value=[each.value for each in held], origin=origin)
    if quantized:
        notes.written["script_quantizes"] = Setting(value=quantized, origin="models that the script quantizes")


def _held(model: Model, config: Mapping[str, Any]) -> Setting:
    """Return a model that the script puts on the GPU beside the trained one, as an entry of ``other_models``."""
    stored, name = model.stored(), str(model.source.value) if model.source is not None else ""
    which = {"id": name} if find_built_in(name) else {"config": dict(config)}
    bits = {"load_in_4bit": "nf4", "load_in_8bit": "int8"}
    quantization = next((word for name, word in bits.items() if stored.get(name) is True), "none")
    dtype = DTYPE_NAMES.get(str(stored.get("dtype", stored.get("torch_dtype"))))
    entry = {**which, "quantization": quantization, **({"dtype": dtype} if dtype else {})}
    return Setting(value=entry, origin=f"{model.where}: {model.label}, on the GPU beside the trained one")
