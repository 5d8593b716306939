"""Reads a configuration file alone, without a launch line, into a job with the origin of every value."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..common import InputError, note_job_folder
from .program import Launch, Program, deepspeed_layer, yaml_layer
from .source import (
    FilesystemView,
    Finding,
    FindingCollector,
    JobReading,
    Setting,
    layer_from_table,
    read_table,
    transformers_defaults,
    trl_defaults,
)
from .tools import find_tool_by_config
from .tools.shared import ConfigTable, has_any
from .trainer import read_trainer

_ACCELERATE_KEYS = ("distributed_type", "compute_environment", "fsdp_config", "deepspeed_config")
_DEEPSPEED_KEYS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
_TRAINER_KEYS = (
    *("per_device_train_batch_size", "model_name_or_path", "output_dir", "dataset_name", "gradient_checkpointing"),
)
_PATH_VARIABLES = ("HOME", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
"""Variables that a file alone is read with: the ranks in our own environment belong to another job."""
_HINT = "give a job file, a training tool's own configuration, or the launch line after --"


def read_config_file(
    path: Path, *, environ: Mapping[str, str] | None = None, versions: Mapping[str, str] | None = None
) -> JobReading:
    """Return the job that a configuration file describes, as far as a file alone can describe it.

    Args:
        path: YAML, JSON or TOML of axolotl, LLaMA-Factory, ms-swift, torchtune, torchtitan, LitGPT, NeMo Automodel or
            Megatron-LM; of TRL or transformers' TrainingArguments; of accelerate or DeepSpeed, which name no model.
        environ: the environment that names the home folder and the model caches; by default that of this process.
        versions: installed versions by distribution, where known.

    Raises:
        InputError: the file cannot be read, or belongs to no known tool.
    """
    note_job_folder(path.parent)
    try:
        table = read_table(path)
    except InputError as error:
        raise InputError(f"{error.message}; {_HINT}") from None
    variables = os.environ if environ is None else environ
    launch = Launch(launchers=("tool",))
    program = Program(
        launch=launch,
        launcher=launch,
        environ={name: value for name, value in variables.items() if name in _PATH_VARIABLES},
        filesystem=_filesystem(path, variables),
        versions=dict(versions or {}),
        findings=FindingCollector(),
        config_file=path,
    )
    tool = find_tool_by_config(table)
    reading = tool.read(program) if tool is not None else _read_library_file(program, table, path)
    if reading.value("parallel.strategy") is None and "parallel.strategy" not in reading.missing:
        origin = "nothing in the file asks for several ranks"
        single = Finding(key="parallel.strategy", value="none", origin=origin, written=False)
        reading = replace(reading, findings=(*reading.findings, single))
    return reading


def tool_of_file(path: Path) -> str | None:
    """Return the name of the tool that a configuration file was written for; None if it is no known tool.

    Raises:
        InputError: the file cannot be read.
    """
    table = read_table(path)
    tool = find_tool_by_config(table)
    if tool is not None:
        return tool.name
    return "TRL" if has_any(table, *_TRAINER_KEYS) else None


def _filesystem(path: Path, environ: Mapping[str, str]) -> FilesystemView:
    """Return the view in which the file's paths are resolved.

    Its tool may be started in the file's folder, in one around it, or in ours.
    """
    folder = path.absolute().parent
    fallback_folders = (*tuple(folder.parents)[:3], Path.cwd())
    return FilesystemView(cwd=folder, home=environ.get("HOME"), fallback_folders=fallback_folders)


def _read_library_file(program: Program, table: ConfigTable, path: Path) -> JobReading:
    """Return the job in a configuration of accelerate, DeepSpeed, TRL or transformers, which are no tools."""
    if has_any(table, *_ACCELERATE_KEYS):
        return read_trainer(program, [{}], [yaml_layer(table, source=path.name)], method=None)
    if has_any(table, *_DEEPSPEED_KEYS):
        layer = deepspeed_layer(table, source=path.name)
        layer["use_deepspeed"] = Setting(value=True, origin=f"{path.name}: a configuration of DeepSpeed")
        return read_trainer(program, [{}], [layer], method=None)
    if has_any(table, *_TRAINER_KEYS):
        is_plain = "per_device_train_batch_size" in table and "dataset_name" not in table
        method = None if is_plain else "sft"
        defaults = [transformers_defaults(program.versions)]
        if method:
            program.findings.warn("The file is read as a configuration of trl sft.")
            defaults.insert(0, trl_defaults(method, program.versions))
        return read_trainer(program, [layer_from_table(table, source=path.name), *defaults], [{}], method=method)
    raise InputError(f"{path}: not known as a configuration of a training tool; {_HINT}")
