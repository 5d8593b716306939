"""The result of one reading of a script: the trained model, other models, and the settings of the job."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..source import MODEL_STATES, Component, OldCall, Setting
from .library import settle_sharding
from .models import Doubt, Model, Notes, OwnAttention, elements, models_in
from .other_models import describe_others
from .own_models import OwnModel, config_of, is_small
from .patterns import trainable_patterns
from .trained import Trained, find_trained

_ALL: tuple[Component, ...] = (*MODEL_STATES, "activations", "logits")
_LOSSES = {"cross_entropy", "CrossEntropyLoss", "FusedCrossEntropyLoss", "nll_loss", "NLLLoss", "log_softmax"}
_SMALL = 0.01
"""Share of the parameters below which a difference is no matter."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Settings in a script, by the names of transformers' and accelerate's arguments."""

    assigned: dict[str, Setting] = field(default_factory=dict)
    """What the script sets whatever the command line says."""
    written: dict[str, Setting] = field(default_factory=dict)
    hints: dict[str, Setting] = field(default_factory=dict)
    accelerate: dict[str, Setting] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    old_calls: Mapping[OldCall, str] = field(default_factory=dict)
    """What today's libraries refuse, and where it stands."""
    own_loss: bool = False
    """The script computes the loss in place of TRL's trainer."""
    loads_model: bool = False
    trains: bool = False
    """There is something to train: a trainer, an optimizer, or a model at least."""
    has_optimizer: bool = False
    """The script makes an optimizer or a trainer."""
    understood: set[str] = field(default_factory=set)
    """Options that the script was seen to use."""
    option_names: set[str] = field(default_factory=set)
    """Names that its command line may have, and may abbreviate."""
    unresolved: dict[str, str] = field(default_factory=dict)
    attention: OwnAttention | None = None
    """That of the model's own class, where nothing else is said of it."""
    doubts: list[Doubt] = field(default_factory=list)


def read_outcome(notes: Notes) -> Outcome:
    """Return what a reading comes to."""
    trained = find_trained(notes)
    settle_sharding(notes, trained.model)
    found = Outcome(called=set(notes.called), own_loss=notes.own_loss, assigned=dict(notes.assigned))
    found.hints = {name: setting for name, setting in notes.hints.items() if setting.value is not None}
    found.unresolved, found.old_calls = dict(notes.unresolved), notes.old_calls
    found.doubts = notes.all_doubts()
    found.trains = bool(notes.trainers or notes.optimizers or notes.models)
    found.has_optimizer = bool(notes.trainers or notes.optimizers)
    _read_arguments(notes, found)
    found.written = {**notes.written, **found.written}
    found.accelerate = {**({} if notes.trainers else notes.own_loop), **notes.accelerate}
    optimizer = next((each for each in notes.optimizers if trained.model in each.trains()), None)
    optimizer = optimizer or next(iter(notes.optimizers), None)
    if optimizer is not None:
        found.hints.setdefault("optim", optimizer.setting)
        if trained.certain and trained.model in optimizer.trains():  # whatever a flag of that name says
            found.assigned["optim"] = optimizer.setting
    if trained.name is not None:
        found.written["model_name_or_path"] = trained.name
        _read_adapters(trained.name, notes, found)
    if trained.unknown is not None:
        found.doubts.append(Doubt(sentence=trained.unknown, components=_ALL))
    if trained.own is not None:
        _read_own_model(trained.own, found)
    if trained.model is not None:
        _read_model(trained, notes, found)
        seen = trained.certain and not trained.model.changed_unseen
        if seen and not trained.model.has_adapters:  # whatever options for adapters it has
            origin = f"{trained.model.where}: the script attaches no adapters"
            found.assigned["use_peft"] = Setting(value=False, origin=origin, written=False)
    elif trained.name is None and trained.unknown is None and notes.names_found:
        name = notes.names_found[min(notes.names_found)]
        found.written["model_name_or_path"] = name
        sentence = f"{name.origin} names the model; what the script makes the model itself of was not found."
        found.doubts.append(Doubt(sentence=sentence, components=_ALL, key="model.id"))
    if trained.certain and "model_name_or_path" in found.written:
        found.assigned["model_name_or_path"] = found.written["model_name_or_path"]
    found.loads_model = trained.model is not None and trained.name is None
    others = describe_others(notes, trained.model, found.doubts)
    if others is not None:
        found.written["script_other_models"] = others
    return found


def _read_arguments(notes: Notes, found: Outcome) -> None:
    """Take the arguments of the trainer that runs; of all where none is known to have them."""
    trainers = [each for each in notes.trainers if each.ran] or notes.trainers
    used = [each.arguments for each in trainers if each.arguments in notes.arguments]
    for arguments in used or notes.arguments:
        for name, setting in arguments.fields.items():
            found.written.setdefault(name, setting)
        for name, sentence in arguments.unresolved.items():
            found.unresolved.setdefault(name, sentence)
    for arguments in notes.arguments:
        if arguments not in used and arguments.name == "ModelConfig":
            found.written = {**arguments.fields, **found.written}
    found.unresolved = {name: text for name, text in found.unresolved.items() if name not in found.written}


def _read_own_model(own: OwnModel, found: Outcome) -> None:
    """Take the config of a decoder like the model that the script builds, and how they differ."""
    name = own.module.kind.name
    read = config_of(own)
    if read is None:
        size = f" of {own.size:,} parameters" if own.shapes else ""
        sentence = f"{name}: the script builds a model{size} that is not read; give model.config, or model.id."
        found.doubts.append(Doubt(sentence=sentence, components=_ALL))
        return
    config, difference = read
    origin = f"{name}, which the script builds with {own.size:,} parameters"
    found.written["script_model_config"] = Setting(value=config, origin=origin)
    if not is_small(difference):
        counted = round(own.size * (1 + difference))
        sentence = f"{origin}, is counted as a decoder of {counted:,}."
        found.doubts.append(Doubt(sentence=sentence, direction="either", components=_ALL))
    if own.trained == 0:
        sentence = f"{origin}: all of them are frozen as far as the script was followed; all are counted as trained."
        found.doubts.append(
            Doubt(sentence=sentence, direction="less", components=("gradients", "optimizer", "activations"))
        )
    elif own.trained < own.size:
        found.written["script_trainable_parameters"] = Setting(value=own.trained, origin=origin)
    dtypes = own.dtypes - {None}
    if len(own.dtypes) > 1:
        sentence = f"{name}: only a part of the model is converted to {', '.join(map(str, dtypes))}; fp32 is counted."
        found.doubts.append(
            Doubt(sentence=sentence, direction="less", components=MODEL_STATES, key="training.precision")
        )
        dtypes = set()
    dtype = next(iter(dtypes), "float32")
    found.assigned.setdefault("dtype", Setting(value=dtype, origin=f"{name}, which the script builds", written=False))


def _read_model(trained: Trained, notes: Notes, found: Outcome) -> None:
    """Take what is known of the trained model."""
    model = trained.model
    if model is None:
        return
    if model.name is not None:
        found.written["model_name_or_path"] = model.name
    elif model.config is not None and model.config.source is not None:
        found.written["model_name_or_path"] = model.config.source
    elif model.config is None and 1 in notes.names_found:
        found.written["model_name_or_path"] = notes.names_found[1]
    settings = {**(model.config.settings if model.config is not None else {}), **model.settings}
    if model.task is not None:
        settings["task"] = model.task
    for name, setting in settings.items():
        found.written.setdefault(name, setting)
    for name, setting in model.hints.items():
        found.hints.setdefault(name, setting)
    found.attention = model.attention
    for name, sentence in model.unresolved.items():
        if name not in found.written or name in model.unresolved:
            found.unresolved.setdefault(name, sentence)
    _read_frozen(trained, notes, found)
    _read_config(model, found)
    over_words = model.task is None or str(model.task.value).endswith("-lm")
    own_loss = model.passes and not any(model.passes.values()) and bool(_LOSSES & notes.called)
    if own_loss and over_words and not notes.trainers:
        where = next(iter(model.passes))
        sentence = f"{where}: the script computes the loss itself; the library's is counted, with its copies of logits."
        found.doubts.append(Doubt(sentence=sentence, components=("logits",), key="training.loss"))


def _read_adapters(name: Setting, notes: Notes, found: Outcome) -> None:
    """Take the adapters that a trainer adds to the model that it loads itself."""
    for trainer in notes.trainers:
        if trainer.model_name is name and trainer.adapters is not None:
            on = Setting(value=True, origin=f"{trainer.where}: {trainer.name}(peft_config=...)")
            found.written.setdefault("use_peft", on)
            for key, setting in trainer.adapters.settings.items():
                found.written.setdefault(key, setting)
            for key, sentence in trainer.adapters.unresolved.items():
                found.unresolved.setdefault(key, sentence)


def _read_config(model: Model, found: Outcome) -> None:
    """Take the config that the script makes or changes."""
    config = model.config
    if config is None:
        return
    changed = config.changed()
    if config.source is not None and set(changed) <= {"num_labels"}:
        for name, setting in changed.items():
            found.written.setdefault(name, setting)
        return
    table = config.table()
    origin = "; ".join(setting.origin for setting in changed.values()) or f"{model.where}: {model.label}"
    if table is not None:
        found.written["script_model_config"] = Setting(value=table, origin=origin[:300])
    else:
        for setting in changed.values():
            sentence = f"{setting.origin} changes a model whose config is not here, and is not counted."
            found.doubts.append(Doubt(sentence=sentence, components=_ALL))


def _read_frozen(trained: Trained, notes: Notes, found: Outcome) -> None:
    """Take which parameters of the trained model train."""
    model = trained.model
    if model is None:
        return
    for sentence in model.uncertain[:8]:
        doubt = Doubt(sentence=sentence, direction="less", components=("gradients", "optimizer", "activations"))
        found.doubts.append(doubt)
    patterns: list[str] = []
    if model.requires is not None:
        patterns = trainable_patterns(model.requires)
        if model.has_adapters and not model.own_adapters:
            patterns = [] if patterns == ["!*"] else patterns or ["*"]
    elif model.own_adapters:
        patterns = ["!*"]
    elif model.rules and not (model.has_adapters and all(not value for _, value in model.rules)):
        patterns = [name if value else f"!{name}" for name, value in model.rules]
    if patterns == ["!*"] and not model.has_adapters and all(owner is model for owner in trained.owners):
        sentence = f"{model.where}: all parameters are frozen as far as the script was followed; some may train."
        found.doubts.append(
            Doubt(sentence=sentence, direction="more", components=("gradients", "optimizer", "activations"))
        )
    if patterns:
        origin = f"{model.where}: {len(patterns)} freezing rules of the script" if len(patterns) > 1 else model.where
        found.written["script_trainable"] = Setting(value=patterns, origin=f"the script freezes parameters ({origin})")
    if model.has_adapters and not model.adapters_train:
        sentence = f"{model.where}: the adapters are frozen as the script loads them, and are counted as trained."
        found.doubts.append(Doubt(sentence=sentence, direction="less", components=("gradients", "optimizer")))
    beside = found.written.pop("script_adapter_parameters", None)
    if beside is not None and (shapes := model.shapes()) is not None:
        heads = sum(elements(shape) for name, shape in shapes.items() if model.requires is None or model.requires[name])
        found.written["script_trainable_parameters"] = beside.with_value(beside.value + heads)
    _note_copies(model, found)
    _compare_with_optimizers(model, notes, found)
    _count_layers(trained, model, found)


def _note_copies(model: Model, found: Outcome) -> None:
    """Note copies that the script makes of most parameters, such as an average of its own."""
    shapes = model.shapes() or {}
    for where, names in model.cloned.items():
        if None in names or len(names) > len(shapes) / 2:
            sentence = f"{where}: copies of the model's parameters may be kept, and are not counted."
            found.doubts.append(Doubt(sentence=sentence, direction="more", components=("weights",)))


def _compare_with_optimizers(model: Model, notes: Notes, found: Outcome) -> None:
    """Note parameters that get gradients and no optimizer state, because no optimizer is given them."""
    given: set[str] = set()
    shapes = model.shapes()
    optimizers = [each for each in notes.optimizers if model in each.trains()]
    if shapes is None or not optimizers or model.has_adapters:
        return
    for optimizer in optimizers:
        names = optimizer.trains()[model]
        if names is None or optimizer.has_unknown():
            return
        given |= names
    training = {name for name in shapes if model.requires is None or model.requires.get(name, True)}
    without = training - given
    share = sum(elements(shapes[name]) for name in without) / max(1, sum(map(elements, shapes.values())))
    if share > _SMALL:
        sentence = (
            f"{optimizers[0].where}: {optimizers[0].name} gets {len(training & given)} of {len(training)} parameters "
            "that require gradients; optimizer state is counted for all of them."
        )
        found.doubts.append(Doubt(sentence=sentence, direction="less", components=("optimizer",)))


def _count_layers(trained: Trained, model: Model, found: Outcome) -> None:
    """Note layers of the script's own that are trained beside the model, where they are not small."""
    shapes = model.shapes()
    total = sum(map(elements, shapes.values())) if shapes else 2 * 10**9
    extra = 0
    replaced = list(models_in(list(model.replaced.values())))
    for owner in trained.owners:
        if owner in replaced:
            continue
        size = getattr(owner, "size", None) if not isinstance(owner, Model) else 0
        own = owner.shapes() if not isinstance(owner, Model) else {}
        if size is None and own is None:
            sentence = f"{owner.where}: a layer of the script's own is trained besides and is not counted."
            found.doubts.append(Doubt(sentence=sentence, direction="more", components=MODEL_STATES))
            return
        extra += size or 0
    if extra and not model.has_adapters and model.requires is not None and not any(model.requires.values()):
        origin = f"{trained.owners[0].where}: layers of the script's own; the model itself is frozen"
        found.written["script_trainable_parameters"] = Setting(value=extra, origin=origin)
    elif extra > _SMALL * total:
        sentence = f"The script trains {extra:,} parameters in layers of its own besides; they are not counted."
        found.doubts.append(Doubt(sentence=sentence, direction="more", components=MODEL_STATES))
