"""The result of one reading of a script: the trained model, other models, and the settings of the job."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...common.errors import VramtopError
from ...job.rules.frameworks import DTYPE_NAMES
from ...model.read_architecture import count_parameters, read_architecture
from ..source.evidence import MODEL_STATES, Component, Setting
from ..source.versions import OldCall
from .library.sharding import settle_sharding
from .models.configs import Doubt, Notes, OwnAttention
from .models.layers import Container, Layer
from .models.model import Model, ParameterOwner, Shape, elements, models_in
from .python.values import Instance

# Models that a script holds beside the one it trains: teachers, references, rewards, averages.


_ROLES = (
    ("ema", re.compile(r"(?i)(^|_)(ema|averaged|swa|shadow|momentum|target)($|_)")),
    ("teacher", re.compile(r"(?i)teacher|distill|large_model|expert_model")),
    ("reference", re.compile(r"(?i)(^|_)(ref|reference|old|sft|frozen|initial|base_policy)($|_)")),
    ("reward", re.compile(r"(?i)reward|(^|_)rm($|_)|judge|scorer")),
    ("critic", re.compile(r"(?i)critic|value_(model|net|function)")),
)


def describe_others(notes: Notes, trained: Model | None, doubts: list[Doubt]) -> Setting | None:
    """Return the job file's ``other_models``; None if there are none.

    Args:
        notes: the reading.
        trained: the trained model.
        doubts: takes what is not understood about them.
    """
    entries: list[dict[str, Any]] = []
    places: list[str] = []
    for model in notes.models:
        if (
            model is trained
            or model.on_gpu is False
            or _is_left_on_host(model, notes)
            or not _is_alive(model, trained, notes)
        ):
            continue
        if trained is None and model.role is None and _role(model) == "other":
            continue
        entry = _entry(model, trained)
        if entry is None:
            sentence = f"{model.where}: another model besides the trained one is unknown and not counted."
            doubts.append(Doubt(sentence=sentence, direction="more", components=("weights",)))
            continue
        entries.append(entry)
        places.append(f"{model.where}: {model.label}")
        if model.on_gpu is None and trained is not None and trained.on_gpu:
            sentence = f"{model.where}: this model may not be on the GPU, but is counted there."
            doubts.append(Doubt(sentence=sentence, direction="less", components=("weights",)))
    for trainer in notes.trainers:
        for role, setting in trainer.others:
            task = {"task": "sequence-classification"} if role == "reward" else {}
            entries.append({"role": role, "id": setting.value, **task, "dtype": "auto"})
            places.append(setting.origin)
    return Setting(value=entries, origin="; ".join(places)) if entries else None


def _is_alive(model: Model, trained: Model | None, notes: Notes) -> bool:
    living = notes.living_beside(trained)
    return living is None or id(model) in living or model.role in ("reference", "teacher", "reward")


def _is_left_on_host(model: Model, notes: Notes) -> bool:
    """Return True for a model that nothing moves to the GPU: a Trainer moves only its own, and those it is given."""
    if model.on_gpu is not None or model.role is not None or not any(each.ran for each in notes.trainers):
        return False
    return not any(model in models_in(module) for module in notes.modules)


def _role(model: Model) -> str:
    if model.role is not None:
        return model.role
    names = sorted(model.names)
    return next((role for role, words in _ROLES if any(words.search(name) for name in names)), "other")


def _entry(model: Model, trained: Model | None) -> dict[str, Any] | None:
    """Return a model's entry; None if it is not known which model it is."""
    role = _role(model)
    entry: dict[str, Any] = {"role": role}
    name = model.name or (model.config.source if model.config is not None else None)
    changed = model.config.changed() if model.config is not None else {}
    is_same = model.copy_of is not None and model.copy_of is trained
    is_same = is_same or (trained is not None and _same(model, trained))
    if not is_same:
        table = model.config.table() if model.config is not None else None
        if name is not None:
            entry["id"] = name.value
        if (changed or name is None) and table is not None:
            entry["config"] = table
        if name is None and table is None:
            return None
    if model.task is not None and (trained is None or trained.task is None or model.task.value != trained.task.value):
        entry["task"] = model.task.value
    dtype = model.settings.get("dtype") or model.settings.get("torch_dtype")
    word = DTYPE_NAMES.get(str(dtype.value).rpartition(".")[2]) if dtype is not None else None
    if word is not None:
        entry["dtype"] = word
    elif model.copy_of is None and model.name is not None:
        entry["dtype"] = "auto"
    if "load_in_4bit" in model.settings and model.settings["load_in_4bit"].value is True:
        double = model.settings.get("bnb_4bit_use_double_quant")
        entry["quantization"] = "nf4-double" if double is not None and double.value is True else "nf4"
    elif "load_in_8bit" in model.settings and model.settings["load_in_8bit"].value is True:
        entry["quantization"] = "int8"
    if model.sharded:
        entry["sharded"] = True
    if role == "ema" or not model.runs:
        entry["forward"] = False
    return entry


def _same(model: Model, other: Model) -> bool:
    if model.name is None or other.name is None or model.name.value != other.name.value:
        return False
    tables = [each.config.table() if each.config is not None else None for each in (model, other)]
    tasks = [each.task.value if each.task is not None else None for each in (model, other)]
    return tables[0] == tables[1] and tasks[0] == tasks[1]


# Models that a script builds of torch's layers: the config of a decoder with the same parameters.
#
# A module is read by its layers: embeddings, a list of blocks with attention and MLP, a head. The config that comes
# of it is counted again, so that what it does not account for is known.


_MAX_DEPTH = 12
_MAX_TENSORS = 20_000
_HEADS = ("n_head", "num_heads", "n_heads", "num_attention_heads", "nhead", "num_head", "heads")
_VOCABULARY = ("vocab_size", "padded_vocab_size", "n_vocab", "vocabulary_size")
_POSITIONS = re.compile(r"(?i)(^|[._])(wpe|pos\w*|\w*pos_?emb\w*)([._]|$)")
_DROPOUT = ("dropout", "dropout_rate", "resid_pdrop", "drop_rate")
_LENGTHS = (
    "block_size",
    "max_seq_len",
    "sequence_len",
    "context_length",
    "max_len",
    "seq_len",
    "ctx_len",
    "n_positions",
)
_BLOCK = re.compile(r"(.*?)\.(\d+)\.(.+)")
_ATTENTION = re.compile(r"(?i)(^|[._])(\w*attn\w*|\w*attention\w*|sa|mha|qkv|wq|wk|wv|wo)([._]|$)")
_MLP = re.compile(r"(?i)(^|[._])(\w*mlp\w*|ffn?|ffwd|feed_?forward\w*)([._]|$)")
_OWN_MODELS_SMALL = 0.005
"""Share of the parameters below which a difference is no matter."""


@dataclass(slots=True)
class OwnModel:
    """What is known of a model of the script's own."""

    module: Instance
    shapes: dict[str, Shape] | None
    """Every parameter by name, shared ones once; None: unknown."""
    dtypes: set[str | None] = field(default_factory=set)
    trained: int = 0
    """Parameters that train."""

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(map(elements, (self.shapes or {}).values()))


def find_own_model(owners: list[ParameterOwner], notes: Notes) -> OwnModel | None:
    """Return the module that holds all the layers that are trained; the largest of several."""
    if not all(isinstance(owner, Layer) for owner in owners):
        return None
    wanted = set(map(id, owners))
    found: list[tuple[int, Instance]] = []
    for module in notes.modules:
        if isinstance(module, Instance) and any(path.endswith("Module") for path in module.kind.external_bases()):
            inside = {id(each) for _, each in _layers(module, "", 0)}
            if inside and wanted <= inside:
                found.append((len(inside), module))
    if not found:
        return None
    module = max(found, key=lambda each: each[0])[1]
    own = OwnModel(module, {})
    seen: set[int] = set()
    for name, layer in _layers(module, "", 0):
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        shapes = layer.shapes()
        if shapes is None or own.shapes is None or len(own.shapes) + len(shapes) > _MAX_TENSORS:
            own.shapes = None
            break
        if shapes:
            own.dtypes.add(layer.dtype)
        for part, shape in shapes.items():
            own.shapes[f"{name}.{part}".strip(".")] = shape
            own.trained += elements(shape) if layer.requires is None or layer.requires.get(part, True) else 0
    return own


def config_of(own: OwnModel) -> tuple[dict[str, Any], float] | None:
    """Return the config of a decoder like the model, and the share of parameters by which it differs; None: unlike."""
    sizes = _sizes(own) if own.shapes else None
    if sizes is None:
        return None
    try:
        counted = count_parameters(read_architecture(sizes)).parameters
    except (VramtopError, ArithmeticError, TypeError, ValueError):
        return None
    return sizes, (counted - own.size) / max(1, own.size)


def is_small(share: float) -> bool:
    """Return True for a difference that is no matter."""
    return abs(share) < _OWN_MODELS_SMALL


def _layers(value: Any, name: str, depth: int) -> Iterator[tuple[str, Layer]]:
    """Yield the layers inside a module with their names."""
    if isinstance(value, Layer):
        yield name, value
    elif depth < _MAX_DEPTH and isinstance(value, Instance | Container):
        items = value.values if isinstance(value, Instance) else value.items
        for key, item in items.items():
            if isinstance(item, Layer | Container | Instance):
                yield from _layers(item, f"{name}.{key}".strip("."), depth + 1)


def _sizes(own: OwnModel) -> dict[str, Any] | None:
    shapes = own.shapes or {}
    blocks: dict[str, dict[str, dict[str, Shape]]] = {}
    around: dict[str, Shape] = {}
    for name, shape in shapes.items():
        found = _BLOCK.fullmatch(name)
        if found is None:
            around[name] = shape
        else:
            blocks.setdefault(found[1], {}).setdefault(found[2], {})[found[3]] = shape
    if not blocks:
        return None
    repeated = max(blocks.values(), key=len)
    usual = Counter(tuple(sorted(block.items())) for block in repeated.values()).most_common(1)[0][0]
    block = dict(usual)
    matrices = {name: shape for name, shape in around.items() if len(shape) >= 2}
    tables = [(name, shape[-2:]) for name, shape in matrices.items() if shape[-1] == _hidden(block)]
    if not tables:
        return None
    learned = [each for each in tables if _POSITIONS.search(each[0])]
    others = [each for each in tables if each not in learned]
    if not others:
        return None
    wanted = _number(own.module, _VOCABULARY)
    vocabulary = next((shape[0] for _, shape in others if shape[0] == wanted), max(shape[0] for _, shape in others))
    hidden = others[0][1][1]
    same = [name for name, shape in others if shape[0] == vocabulary]
    positions = max((shape[0] for _, shape in learned), default=0)
    inside = _block_sizes(block, hidden)
    if inside is None:
        return None
    heads = _number(own.module, _HEADS) or max(1, inside["queries"] // 64)
    dropout = _number(own.module, _DROPOUT, kind=float)
    return {
        "model_type": _kind(gated=inside["gated"], positions=positions),
        "hidden_size": hidden,
        "intermediate_size": inside["mlp"],
        "num_hidden_layers": len(repeated),
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, inside["keys"] * heads // inside["queries"]),
        "head_dim": inside["queries"] // heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions or _number(own.module, _LENGTHS) or 2**20,
        "tie_word_embeddings": len(same) < 2,
        "attention_bias": inside["biases"],
        "mlp_bias": inside["biases"],
        **({"dropout": dropout, "attention_dropout": dropout} if dropout is not None else {}),
    }


def _kind(*, gated: bool, positions: int) -> str:
    if gated:
        return "llama"
    return "plain-gpt" if positions else "plain-gpt-rotary"


def _hidden(block: Mapping[str, Shape]) -> int:
    """Return the size that most matrices of a block have in common."""
    counts = Counter(size for shape in block.values() if len(shape) == 2 for size in set(shape))
    return counts.most_common(1)[0][0] if counts else 0


def _block_sizes(block: Mapping[str, Shape], hidden: int) -> dict[str, Any] | None:
    """Return the sizes of a block; None if it has no attention or MLP that is understood."""
    attention = [shape for name, shape in block.items() if len(shape) == 2 and _ATTENTION.search(name)]
    mlp = [
        shape for name, shape in block.items() if len(shape) == 2 and _MLP.search(name) and not _ATTENTION.search(name)
    ]
    if not attention or not mlp:
        return None
    queries = next((inside for outside, inside in reversed(attention) if outside == hidden), hidden)
    projected = sum(outside for outside, inside in attention if inside == hidden)
    projected -= hidden if queries == hidden else 0  # the output projection
    keys = (projected - queries) // 2
    down = next((inside for outside, inside in reversed(mlp) if outside == hidden), 0)
    up = sum(outside for outside, inside in mlp if inside == hidden) - (hidden if down == hidden else 0)
    if keys < 1 or down < 1 or up not in (down, 2 * down):
        return None
    biases = any(len(shape) == 1 and name.endswith("bias") and _MLP.search(name) for name, shape in block.items())
    return {"queries": queries, "keys": keys, "mlp": down, "gated": up == 2 * down, "biases": biases}


def _number(module: Instance, names: tuple[str, ...], kind: type[int] | type[float] = int) -> Any:
    """Return a number that an object inside a module, such as its config, has by one of these names; None without."""
    seen: set[int] = set()
    queue: list[Any] = [module]
    while queue and len(seen) < 400:
        value = queue.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        items = value.values if isinstance(value, Instance) else value.items if isinstance(value, Container) else {}
        for name in names:
            found = items.get(name)
            if type(found) is kind and found >= 0 and (found or kind is float):
                return found
        queue += [item for item in items.values() if isinstance(item, Instance | Container)]
    return None


# The job file's patterns for which parameters train, from the parameters of a model one by one.


_NUMBER = re.compile(r"\.\d+(?=\.)")


def trainable_patterns(requires: Mapping[str, bool]) -> list[str]:
    """Return ``training.trainable`` for a model: a few names or patterns, ``!`` for what is frozen; empty: all train.

    Args:
        requires: whether each parameter trains, by its name.
    """
    if all(requires.values()):
        return []
    if not any(requires.values()):
        return ["!*"]
    trained, frozen = (_names(requires, wanted) for wanted in (True, False))
    if len(trained) <= len(frozen):
        return trained
    return [f"!{name}" for name in frozen]


def _names(requires: Mapping[str, bool], wanted: bool) -> list[str]:
    """Return names of modules, parameters and patterns that cover exactly the parameters with one answer."""
    modules: dict[str, bool] = {}
    for name, value in requires.items():
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            prefix = ".".join(parts[:length])
            modules[prefix] = modules.get(prefix, True) and value is wanted
    whole = [name for name in modules if modules[name] and not _has_whole_parent(name, modules)]
    by_pattern: dict[str, list[str]] = {}
    for name in whole:
        by_pattern.setdefault(_NUMBER.sub(".*", f".{name}.")[1:-1], []).append(name)
    found: list[str] = []
    for pattern, names in by_pattern.items():
        is_exact = "*" in pattern and len(names) > 1 and _covers_only(pattern, requires, wanted)
        found += [pattern if requires.get(names[0]) is not None else f"{pattern}.*"] if is_exact else names
    return found


def _has_whole_parent(name: str, modules: Mapping[str, bool]) -> bool:
    parent = name.rpartition(".")[0]
    return bool(parent) and modules[parent]


def _covers_only(pattern: str, requires: Mapping[str, bool], wanted: bool) -> bool:
    expression = re.compile(r"\d+".join(map(re.escape, pattern.split("*"))) + r"(\..*)?")
    return all(value is wanted for name, value in requires.items() if expression.fullmatch(name))


# Finds the model that a script trains: the one of a trainer, else an optimizer, else the first that is loaded.


@dataclass(slots=True)
class Trained:
    """What the script trains."""

    model: Model | None = None
    name: Setting | None = None
    """The name of a model that a trainer loads itself."""
    owners: list[ParameterOwner] = field(default_factory=list)
    own: OwnModel | None = None
    """A model that the script builds of layers."""
    unknown: str | None = None
    """A sentence, where it is a model that is not known."""
    certain: bool = False
    """A trainer or an optimizer has the model."""


def find_trained(notes: Notes) -> Trained:
    """Return what is trained: what a trainer has, else an optimizer, else what is prepared, else the first model."""
    for trainer in sorted(notes.trainers, key=lambda each: not each.ran):
        if trainer.model_name is not None:
            return Trained(name=trainer.model_name, certain=True)
        owners = list(dict.fromkeys(models_in(trainer.model)))
        if owners:
            return _choose(owners, notes, certain=True)
        if trainer.unknown_model is not None and not _loose_models(notes):
            break
    owners = list(dict.fromkeys(owner for optimizer in notes.optimizers for owner in optimizer.trains()))
    if owners:
        return _choose(owners, notes, certain=True)
    if any(optimizer.trains_unknown() for optimizer in notes.optimizers):
        where = notes.optimizers[0].where
        return Trained(
            unknown=f"{where}: the model that the optimizer trains is created in a way that vramtop does not follow."
        )
    given = [owner for value in notes.parameters_given for owner in models_in(value)]
    candidates = [model for model in given if isinstance(model, Model) and not _is_frozen(model) and not model.role]
    if candidates:
        return _choose(list(dict.fromkeys(candidates)), notes, certain=True)
    if notes.parameters_given and not given and not notes.models:
        return Trained(unknown="The model that is trained is created in a way that vramtop does not follow.")
    loose = _loose_models(notes)
    own = find_own_model([], notes) if notes.optimizers and not notes.models else None
    if own is not None:
        return Trained(own=own)
    if notes.optimizers and notes.models and not loose:
        where = notes.optimizers[0].where
        return Trained(
            unknown=f"{where}: the model that the optimizer trains is created in a way that vramtop does not follow."
        )
    return _choose(list(loose[:1]), notes, certain=False)


def _loose_models(notes: Notes) -> list[Model]:
    """Return the models that may be the trained one, where nothing says which is."""
    named = [model for model in notes.models if model.role is None and model.copy_of is None and not _is_frozen(model)]
    return named or [model for model in notes.models if model.role is None and model.has_adapters]


def _is_frozen(model: ParameterOwner) -> bool:
    if isinstance(model, Model) and model.has_adapters:
        return not model.adapters_train
    if model.requires is not None:
        return not any(model.requires.values())
    return bool(model.rules) and model.rules[-1] == ("*", False)


def _choose(owners: list[ParameterOwner], notes: Notes, *, certain: bool) -> Trained:
    models = [owner for owner in owners if isinstance(owner, Model)]
    live = [model for model in models if not _is_frozen(model)]
    model = next(iter(live or models), None)
    if len(live) > 1:
        others = ", ".join(each.where for each in live[1:])
        notes.doubt(
            f"{others}: another model is also trained; its gradients and optimizer state are not counted.",
            *MODEL_STATES,
            direction="more",
        )
    if model is None and owners:
        model = _beside(owners, notes)
    own = find_own_model(owners, notes) if model is None else None
    if own is not None:
        return Trained(owners=owners, own=own, certain=certain)
    if model is None and owners:
        sentence = (
            f"{owners[0].where}: the trained model consists of the script's own layers, which vramtop does not read."
        )
        return Trained(owners=owners, unknown=sentence)
    return Trained(model=model, owners=owners, certain=certain)


def _beside(owners: list[ParameterOwner], notes: Notes) -> Model | None:
    """Return the model that a module of the script holds together with layers."""
    for module in notes.modules:
        inside = list(models_in(module))
        model = next((each for each in inside if isinstance(each, Model)), None)
        if model is not None and any(owner in inside for owner in owners):
            return model
    for model in notes.models:
        if any(owner in models_in(list(model.replaced.values())) for owner in owners):
            return model if isinstance(model, Model) else None
    return None


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
    unused: set[str] = field(default_factory=set)
    """Options that do not decide what their names say, as what does was followed."""
    option_names: set[str] = field(default_factory=set)
    """Names that its command line may have, and may abbreviate."""
    read_options: set[str] | None = None
    """All options that the script reads; None: not known."""
    unresolved: dict[str, str] = field(default_factory=dict)
    attention: OwnAttention | None = None
    """That of the model's own class, where nothing else is said of it."""
    doubts: list[Doubt] = field(default_factory=list)
    visible_devices: Setting | None = None
    device: Setting | None = None


def read_outcome(notes: Notes) -> Outcome:
    """Return what a reading comes to."""
    trained = find_trained(notes)
    settle_sharding(notes, trained.model)
    found = Outcome(called=set(notes.called), own_loss=notes.own_loss, assigned=dict(notes.assigned))
    found.hints = {name: setting for name, setting in notes.hints.items() if setting.value is not None}
    found.unresolved, found.old_calls = dict(notes.unresolved), notes.old_calls
    found.doubts = notes.all_doubts()
    found.visible_devices, found.device = notes.visible_devices, notes.device
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
        sentence = f"{name.origin} names the model; vramtop did not find how the script builds it."
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
        sentence = f"{name}: the script builds a model{size} that vramtop does not read; give model.config or model.id."
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
        sentence = (
            f"{origin}: as far as vramtop followed the script, all of them are frozen; all are counted as trained."
        )
        found.doubts.append(
            Doubt(sentence=sentence, direction="less", components=("gradients", "optimizer", "activations"))
        )
    elif own.trained < own.size:
        found.written["script_trainable_parameters"] = Setting(value=own.trained, origin=origin)
    dtypes = own.dtypes - {None}
    if len(own.dtypes) > 1:
        sentence = f"{name}: only part of the model is converted to {', '.join(map(str, dtypes))}; fp32 is assumed."
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
    if trained.certain and model.is_read and not {"dtype", "torch_dtype"} & {*settings, *model.unresolved}:
        found.unused = {"dtype", "torch_dtype"}  # whatever options have these names
    _read_frozen(trained, notes, found)
    _read_passes(model, found)
    _read_config(model, found)
    over_words = model.task is None or str(model.task.value).endswith("-lm")
    own_loss = model.passes and not any(model.passes.values()) and bool(_LOSSES & notes.called)
    if own_loss and over_words and not notes.trainers:
        where = next(iter(model.passes))
        sentence = (
            f"{where}: the script computes the loss itself; the library's loss is counted, with its copies of the "
            "logits."
        )
        found.doubts.append(Doubt(sentence=sentence, components=("logits",), key="training.loss"))


def _read_passes(model: Model, found: Outcome) -> None:
    """Count a sequence for each forward pass before a backward pass; one in a loop of its own may run any time."""
    where, count = next(iter(model.together), ("", False))[0], len(model.together)
    repeated = next((place for place, loops in model.together if loops), None)
    if repeated is not None:
        sentence = (
            f"{repeated}: vramtop does not follow how often the model runs before a backward pass; {count} counted."
        )
    elif count > 1:
        sentence = f"{where}: the model runs {count} times before a backward pass; a full batch is counted for each."
    else:
        return
    origin = f"{where}: the model runs {count} times before a backward pass"
    if count > 1:
        found.written.setdefault("script_sequences", Setting(value=count, origin=origin))
    key = "training.sequences_per_example"
    found.doubts.append(Doubt(sentence=sentence, components=("activations", "logits"), key=key))


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
            sentence = f"{setting.origin} changes a model whose config was not found; this is not counted."
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
        sentence = (
            f"{model.where}: as far as vramtop followed the script, all parameters are frozen; some may be trained."
        )
        found.doubts.append(
            Doubt(sentence=sentence, direction="more", components=("gradients", "optimizer", "activations"))
        )
    if patterns:
        origin = f"{model.where}: {len(patterns)} freezing rules of the script" if len(patterns) > 1 else model.where
        found.written["script_trainable"] = Setting(value=patterns, origin=f"the script freezes parameters ({origin})")
    if model.has_adapters and not model.adapters_train:
        sentence = f"{model.where}: the script loads the adapters frozen, but they are counted as trained."
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
            sentence = f"{where}: copies of the model's parameters may be kept; they are not counted."
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
            sentence = f"{owner.where}: one of the script's own layers is also trained and is not counted."
            found.doubts.append(Doubt(sentence=sentence, direction="more", components=MODEL_STATES))
            return
        extra += size or 0
    if extra and not model.has_adapters and model.requires is not None and not any(model.requires.values()):
        origin = f"{trained.owners[0].where}: layers of the script's own; the model itself is frozen"
        found.written["script_trainable_parameters"] = Setting(value=extra, origin=origin)
    elif extra > _SMALL * total:
        sentence = f"The script trains {extra:,} additional parameters in its own layers; they are not counted."
        found.doubts.append(Doubt(sentence=sentence, direction="more", components=MODEL_STATES))
