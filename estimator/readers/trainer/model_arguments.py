"""Reads the model (``name``, ``model.*``) from transformers' and TRL's arguments."""

import os
from collections.abc import Mapping
from typing import get_args

from ...common import InputError
from ...job import Task
from ...job.rules import usual
from ..source import (
    AssumedVersion,
    FilesystemView,
    FindingCollector,
    LayeredSettings,
    Setting,
    as_int,
    as_word,
    layer_from_table,
    table_of_setting,
)
from .trainer_inputs import TrainerInputs

_MODEL_NAMES = ("model_name_or_path", "config_name", "model_name", "model_id", "model_path", "base_model", "model")
_ATTENTION = {
    **{name: name for name in ("sdpa", "eager", "flash_attention_2", "flash_attention_3")},
    "kernels-community/flash-attn": "flash_attention_2",
    "kernels-community/flash-attn2": "flash_attention_2",
    "kernels-community/flash-attn3": "flash_attention_3",
    "kernels-community/vllm-flash-attn3": "flash_attention_3",
}
_TASK_BY_PEFT_TYPE = {
    "seq_cls": "sequence-classification",
    "token_cls": "token-classification",
    "seq_2_seq_lm": "seq2seq-lm",
    "question_ans": "question-answering",
}
_TASKS = get_args(Task)
_TASKS_WITH_LABELS = ("sequence-classification", "token-classification")


def model_init_layer(
    settings: LayeredSettings, filesystem: FilesystemView, findings: FindingCollector
) -> dict[str, Setting]:
    """Return the settings in TRL's ``model_init_kwargs`` (dtype, attention)."""
    given = settings.find("model_init_kwargs")
    if given is None:
        return {}
    try:
        table, source = table_of_setting(given.value, filesystem)
    except InputError as error:
        findings.mark_uncertain("training.precision", f"model_init_kwargs is not counted: {error.message}")
        return {}
    return layer_from_table(table, source=source or given.origin)


def read_model(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record ``name`` and ``model.*``. A folder becomes its full path."""
    find = inputs.settings.find
    if (name := find("run_name")) is not None:
        findings.record("name", str(name.value), name.origin)
    model = find(*_MODEL_NAMES)
    if model is not None and isinstance(model.value, str):
        folder = inputs.filesystem.resolve(model.value)
        is_file = folder.suffix == ".json" and os.access(folder, os.F_OK)
        is_folder = (
            is_file or os.access(folder / "config.json", os.F_OK) or model.value.startswith(("/", "./", "../", "~"))
        )
        findings.record_from(model, "model.id", str(folder) if is_folder else model.value)
    _read_task(inputs, findings)
    _read_num_labels(inputs, findings)
    _read_attention(find("attn_implementation", "attention_implementation"), inputs.versions, findings)


def _read_task(inputs: TrainerInputs, findings: FindingCollector) -> None:
    task = inputs.settings.find("task")
    peft_task = inputs.settings.find("lora_task_type", "task_type")
    if task is not None and task.value in _TASKS:
        findings.record_from(task, "model.task", task.value)
    elif peft_task is not None and as_word(peft_task) in _TASK_BY_PEFT_TYPE:
        findings.record_from(peft_task, "model.task", _TASK_BY_PEFT_TYPE[as_word(peft_task) or ""])
    elif inputs.trl is not None and inputs.trl.task is not None:
        origin = f"the model that TRL's {inputs.trl.name} trains"
        findings.record("model.task", inputs.trl.task, origin, written=False)


def _read_num_labels(inputs: TrainerInputs, findings: FindingCollector) -> None:
    setting, task = inputs.settings.find("num_labels"), findings.get("model.task")
    if task is None or task.value not in _TASKS_WITH_LABELS:
        return
    if setting is not None and (number := as_int(setting)) is not None and number > 0:
        findings.record_from(setting, "model.num_labels", number)
    elif inputs.trl is not None and inputs.trl.num_labels is not None:
        origin = f"the head that TRL's {inputs.trl.name} gives the model"
        findings.record("model.num_labels", inputs.trl.num_labels, origin, written=False)


def _read_attention(setting: Setting | None, versions: Mapping[str, str], findings: FindingCollector) -> None:
    name = str(setting.value).partition("@")[0] if setting is not None else ""
    if setting is not None and name in _ATTENTION:
        findings.record_from(setting, "model.attention", _ATTENTION[name])
        return
    if setting is not None:
        sentence = f"{setting.origin}: attention {setting.value!r} is not known here; the default is counted."
        findings.mark_uncertain("model.attention", sentence)
    default = usual("transformers", "model.attention", versions)
    origin = "transformers' default, not set anywhere"
    if default != usual("transformers", "model.attention", {}):
        known = ", ".join(f"{name} {versions[name]}" for name in ("transformers", "torch") if name in versions)
        origin = f"default of transformers with {known}, not set anywhere"
    findings.record("model.attention", default, origin, written=False)
    version = versions.get("transformers")
    older = usual("transformers", "model.attention", {"transformers": "4.0"})
    if isinstance(version, AssumedVersion) and default != older:
        sentence = f"transformers {version} is assumed ({version.why}); much older versions take {older} attention."
        findings.mark_uncertain("model.attention", sentence, direction="more")
