"""From another tool's configuration file alone, without a launch line, to a job with the origin of every value."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..common.errors import InputError
from .program.accelerate_env import yaml_layer
from .program.deepspeed import deepspeed_layer
from .program.launchers import Launch
from .program.program import Program
from .source.data_files import layer_from_table, read_table
from .source.evidence import Finding, FindingCollector, JobReading
from .source.filesystem_view import FilesystemView
from .source.settings import Setting
from .source.versions import transformers_defaults, trl_defaults
from .tools.registry import find_tool_by_config
from .trainer.trainer_program import read_trainer

_ACCELERATE = ("distributed_type", "compute_environment", "fsdp_config", "deepspeed_config")
_DEEPSPEED = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
_HINT = "give a job file, a training tool's own configuration, or the launch line after --"
_TRAINER = ("per_device_train_batch_size", "model_name_or_path", "output_dir", "dataset_name", "gradient_checkpointing")


def read_config_file(
    path: Path, *, environ: Mapping[str, str] | None = None, versions: Mapping[str, str] | None = None
) -> JobReading:
    """The job that a configuration file describes, as far as a file alone can say it.

    Args:
        path: YAML, JSON or TOML of axolotl, LLaMA-Factory, ms-swift, torchtune, torchtitan, LitGPT, NeMo Automodel or
            Megatron-LM; of TRL or transformers' TrainingArguments; of accelerate or DeepSpeed, which name no model.
        environ: where the model's config is looked up and paths lead; this process's own when left out.
        versions: installed versions by distribution, where they are known.

    Raises:
        InputError: the file cannot be read, or nothing in it says whose it is.
    """
    try:
        table = read_table(path)
    except InputError as error:
        raise InputError(f"{error.message}; {_HINT}") from None
    surroundings = os.environ if environ is None else environ
    launch = Launch(launchers=("tool",))
    program = Program(
        launch=launch,
        launcher=launch,
        environ={name: value for name, value in surroundings.items() if name in _PATH_VARIABLES},
        filesystem=_filesystem(path, surroundings),
        versions=dict(versions or {}),
        findings=FindingCollector(),
        config_file=path,
    )
    tool = find_tool_by_config(table)
    reading = tool.read(program) if tool is not None else _library(program, table, path)
    if reading.value("parallel.strategy") is None and "parallel.strategy" not in reading.missing:
        origin = "nothing in the file asks for several ranks"
        alone = Finding(key="parallel.strategy", value="none", origin=origin, written=False)
        reading = replace(reading, findings=(*reading.findings, alone))
    return reading


def tool_of_file(path: Path) -> str | None:
    """The name of the tool that a configuration file was written for; None where it is none of the known ones.

    Raises:
        InputError: the file cannot be read.
    """
    table = read_table(path)
    tool = find_tool_by_config(table)
    if tool is not None:
        return tool.name
    return "TRL" if not set(_TRAINER).isdisjoint(table) else None


def _filesystem(path: Path, environ: Mapping[str, str]) -> FilesystemView:
    """Paths in the file are meant from where its tool is started: its own folder, one around it, or ours."""
    folder = path.absolute().parent
    return FilesystemView(
        cwd=folder, home=environ.get("HOME"), fallback_folders=(*tuple(folder.parents)[:3], Path.cwd())
    )


_PATH_VARIABLES = ("HOME", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
"""A file alone has no ranks: those of our own environment are another job's."""


def _library(program: Program, table: Mapping[str, Any], path: Path) -> JobReading:
    """Of a library rather than a tool."""
    if not set(_ACCELERATE).isdisjoint(table):
        return read_trainer(program, [{}], [yaml_layer(table, source=path.name)], method=None)
    if not set(_DEEPSPEED).isdisjoint(table):
        layer = deepspeed_layer(table, source=path.name)
        layer["use_deepspeed"] = Setting(value=True, origin=f"{path.name}: a configuration of DeepSpeed")
        return read_trainer(program, [{}], [layer], method=None)
    if not set(_TRAINER).isdisjoint(table):
        method = None if "per_device_train_batch_size" in table and "dataset_name" not in table else "sft"
        defaults = [transformers_defaults(program.versions)]
        if method:
            program.findings.warn("The file is taken for one of trl sft.")
            defaults.insert(0, trl_defaults(method, program.versions))
        return read_trainer(program, [layer_from_table(table, source=path.name), *defaults], [{}], method=method)
    raise InputError(f"{path}: not known as a configuration of a training tool; {_HINT}")
