"""Models that a script holds beside the one it trains: teachers, references, rewards, averages."""

import re
from typing import Any

from ...job.rules import DTYPE_NAMES
from ..source import Setting
from .models import Doubt, Model, Notes, models_in

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
            sentence = f"{model.where}: another model beside the trained one is not known, and is not counted."
            doubts.append(Doubt(sentence=sentence, direction="more", components=("weights",)))
            continue
        entries.append(entry)
        places.append(f"{model.where}: {model.label}")
        if model.on_gpu is None and trained is not None and trained.on_gpu:
            sentence = f"{model.where}: whether this model is on the GPU is not known; it is counted."
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
