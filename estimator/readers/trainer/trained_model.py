"""The trained model, from transformers' and TRL's arguments, and the defaults that follow from its config."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from ...common.errors import InputError, VramtopError
from ...job.rules.library_defaults import usual
from ...job.settings import ModelSpec, Task
from ..arguments.table import library
from ..source.data_files import read_table
from ..source.evidence import Finding, FindingCollector
from ..source.settings import Setting, as_int, as_word
from ..source.versions import AssumedVersion
from .trainer_inputs import TrainerInputs

MODEL_NAMES = (
    *("model_name_or_path", "config_name", "model_name", "model_id", "model_path", "base_model", "model", "pretrain"),
)
_TASKS = get_args(Task)
_DYNAMIC = "-unsloth-bnb-4bit"


def read_model(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record ``name`` and ``model.*``. A folder becomes its full path."""
    find = inputs.settings.find
    if (name := find("run_name")) is not None:
        findings.record("name", str(name.value), name.origin)
    model = find(*MODEL_NAMES)
    if model is not None and isinstance(model.value, str):
        folder = inputs.filesystem.resolve(model.value)
        if (base := base_of_adapters(folder)) is not None:
            origin = f"base_model_name_or_path in the adapter_config.json of {model.origin}"
            findings.record("model.id", base, origin)
            if not inputs.settings.is_true("use_peft"):
                findings.mark_uncertain(
                    "training.trainable", f"{model.origin}: whether its adapters train is not known."
                )
        is_file = folder.suffix == ".json" and os.access(folder, os.F_OK)
        is_folder = (
            is_file or os.access(folder / "config.json", os.F_OK) or model.value.startswith(("/", "./", "../", "~"))
        )
        findings.record_from(model, "model.id", str(folder) if is_folder else model.value)
        if model.value.lower().endswith(_DYNAMIC):
            sentence = f"{model.origin}: Unsloth's {_DYNAMIC[1:]} copies keep some layers in 16 bits; 4 are counted."
            findings.doubt(sentence, "more", "weights", unless="lora.quantization")
    _read_task(inputs, findings)
    _read_num_labels(inputs, findings)
    _read_attention(find("attn_implementation", "attention_implementation"), inputs.versions, findings)


def base_of_adapters(folder: Path) -> str | None:
    """Return the base model of a folder that holds adapters and no model."""
    file = folder / "adapter_config.json"
    if not os.access(file, os.R_OK) or os.access(folder / "config.json", os.F_OK):
        return None
    try:
        name = read_table(file).get("base_model_name_or_path")
    except InputError:
        return None
    return name if isinstance(name, str) else None


def _read_task(inputs: TrainerInputs, findings: FindingCollector) -> None:
    task = inputs.settings.find("task")
    peft_task, tasks = inputs.settings.find("lora_task_type", "task_type"), library("transformers").words["task"]
    if task is not None and task.value in _TASKS:
        findings.record_from(task, "model.task", task.value)
    elif peft_task is not None and (known := tasks.get(as_word(peft_task) or "")):
        findings.record_from(peft_task, "model.task", known)
    elif inputs.trl is not None and inputs.trl.task is not None:
        origin = f"the model that TRL's {inputs.trl.name} trains"
        findings.infer("model.task", inputs.trl.task, origin)


def _read_num_labels(inputs: TrainerInputs, findings: FindingCollector) -> None:
    setting, task = inputs.settings.find("num_labels"), findings.get("model.task")
    if task is None or task.value not in ("sequence-classification", "token-classification"):
        return
    if setting is not None and (number := as_int(setting)) is not None and number > 0:
        findings.record_from(setting, "model.num_labels", number)
    elif inputs.trl is not None and inputs.trl.num_labels is not None:
        origin = f"the head that TRL's {inputs.trl.name} gives the model"
        findings.infer("model.num_labels", inputs.trl.num_labels, origin)


def _read_attention(setting: Setting | None, versions: Mapping[str, str], findings: FindingCollector) -> None:
    name = str(setting.value).partition("@")[0] if setting is not None else ""
    if setting is not None and name in (known := library("transformers").words["attention"]):
        findings.record_from(setting, "model.attention", known[name])
        return
    if setting is not None:
        sentence = f"{setting.origin}: vramtop does not know attention {setting.value!r}; the default is assumed."
        findings.mark_uncertain("model.attention", sentence)
    default = usual("transformers", "model.attention", versions)
    origin = "transformers' default"
    if default != usual("transformers", "model.attention", {}):
        versions_known = ", ".join(f"{name} {versions[name]}" for name in ("transformers", "torch") if name in versions)
        origin = f"default of transformers with {versions_known}"
    findings.infer("model.attention", default, origin)
    version = versions.get("transformers")
    older = usual("transformers", "model.attention", {"transformers": "4.0"})
    if isinstance(version, AssumedVersion) and default != older:
        sentence = f"transformers {version} is assumed ({version.why}); much older versions use {older} attention."
        findings.mark_uncertain("model.attention", sentence, direction="more")


def known_config(
    model: Finding | Setting | None, environ: Mapping[str, str], *, folders: bool = True
) -> Mapping[str, Any] | None:
    """Return the model's config; None if it cannot be found here.

    Args:
        model: its name or folder.
        environ: the environment that names the caches to search.
        folders: whether a relative name may be a folder of ours.
    """
    if model is None:
        return None
    from ...model.find_config import resolve_model  # here: 20 ms that recognising a running program does not need

    name = str(model.value)
    try:
        return resolve_model(ModelSpec(id=name), environ=environ, folders=folders or name.startswith("/")).config
    except (VramtopError, OSError):  # a model that cannot be estimated is reported elsewhere
        return None


def given_config(findings: FindingCollector, environ: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the config of the model that the user gives in place of the one that is read; None if it is not found."""
    config = findings.get("model.config")
    if config is not None and isinstance(config.value, Mapping):
        return config.value
    return known_config(findings.get("model.id"), environ)


def hidden_size(config: Mapping[str, Any] | None) -> int | None:
    """Return the hidden size as DeepSpeed's integration finds it; None if the config is unknown or has none."""
    for table in (config or {}, (config or {}).get("text_config") or {}):
        names = ("hidden_size", "n_embd", "d_model", "dim")  # transformers' attribute maps know them as hidden_size
        for value in (*(table.get(name) for name in names), max(table.get("hidden_sizes") or [0])):
            if isinstance(value, int) and value > 0:
                return value
    return None


def stored_dtype(config: Mapping[str, Any] | None) -> Setting | None:
    """Return the dtype that ``dtype="auto"`` loads; None if the config is unknown."""
    if config is None:
        return None
    from ...model.checkpoint import stored_dtype as dtype_of_config  # here, as above

    dtype = dtype_of_config(config)
    if dtype is None:  # such configs are older than the field, and their checkpoints are in fp32
        return Setting.default("fp32", "the model's config names no dtype, so fp32")
    return Setting.default(dtype, f"the model's config says {dtype}")


def default_targets(config: Mapping[str, Any] | None) -> Setting | None:
    """Return the layers that peft adapts by default; None if peft requires them to be named."""
    if config is None:
        return Setting.default(["q_proj", "v_proj"], "peft's default for most decoder models")
    kind = str(config.get("model_type"))
    targets = library("peft").default["target_modules"].get(kind)
    return Setting.default(targets.split(), f"peft's default for {kind}") if targets else None
