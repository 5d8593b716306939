"""Reads a configuration file alone, without a launch line, into a job with the origin of every value."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ..common.errors import InputError
from ..common.paths import note_job_folder, working_folder
from ..common.records import replace
from .arguments.table import library
from .program.accelerate import yaml_layer
from .program.deepspeed import deepspeed_layer
from .program.launch import Launch
from .program.program import Program
from .source.data_files import layer_from_table, read_table
from .source.evidence import Finding, FindingCollector, JobReading
from .source.filesystem_view import FilesystemView
from .source.settings import Setting
from .source.versions import transformers_defaults
from .tools.shared.tool import ConfigTable, Tool, has_any
from .tools.shared.unread_tools import unread_tool_of_table
from .tools.tool_registry import all_tools
from .trainer.trainer_program import read_trainer
from .trl.defaults import model_config_defaults, trl_defaults
from .trl.methods import TABLE

Library = Literal["accelerate", "DeepSpeed", "TRL", "transformers"]
"""Libraries whose files are read without a ``Tool``."""
HINT = "give a job file, a training tool's own configuration, or the launch line after --"
_MODEL = "model_name_or_path"


def tool_of_table(table: ConfigTable, path: Path) -> Tool | Library:
    """Return the tool or the library that a file was written for.

    Raises:
        InputError: it is of no known tool, or its names are those of several.
    """
    tools = [tool for tool in all_tools() if tool.is_config(table)]
    if tools and (unread := unread_tool_of_table(table, least=2)) is not None:  # one key, such as base_model, says less
        raise InputError(f"{path}: {unread.sentence}")
    if len(tools) > 1:
        names = " or ".join(tool.name for tool in tools)
        raise InputError(f"{path}: may be a configuration of {names}; give the launch line after -- to decide")
    if tools:
        return tools[0]
    if (unread := unread_tool_of_table(table)) is not None:
        raise InputError(f"{path}: {unread.sentence}")
    found = _library(table, path)
    if found is None:
        raise InputError(f"{path}: not a known configuration of a training tool; {HINT}")
    return found


def trl_command(table: ConfigTable) -> str | None:
    """Return the command of TRL that a file is for, by names that only one has; None: no name tells."""
    surely = {"sft": TABLE.aliases["sft"], "kto": TABLE.aliases["kto"], "grpo": ("num_generations", "reward_funcs")}
    return next((name for name, own in surely.items() if has_any(table, *own)), None)


def _library(table: ConfigTable, path: Path) -> Library | None:
    names = library("transformers").aliases
    if has_any(table, *names["accelerate"]) and _MODEL not in table:
        return "accelerate"
    if has_any(table, *names["deepspeed"]):
        return "DeepSpeed"
    if _MODEL in table and has_any(table, *names["data"], *TABLE.aliases["sft"]):
        other = next((name for name in ("kto", "grpo", "dpo") if has_any(table, *TABLE.aliases[name])), None)
        if other is not None and trl_command(table) is None:
            example = f"-- trl {other} --config {path.name}"
            raise InputError(f"{path}: may belong to several TRL commands; give the launch line, such as {example}")
        return "TRL"
    if "per_device_train_batch_size" in table:
        return "transformers"
    return "TRL" if _MODEL in table and has_any(table, "output_dir", "gradient_checkpointing") else None


_PATH_VARIABLES = ("HOME", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
"""Variables that a file alone is read with: the ranks in our own environment belong to another job."""


def read_config_file(
    path: Path,
    *,
    environ: Mapping[str, str] | None = None,
    versions: Mapping[str, str] | None = None,
    given: Mapping[str, Any] | None = None,
) -> JobReading:
    """Return the job that a configuration file describes, as far as a file alone can describe it.

    Args:
        path: YAML, JSON or TOML of axolotl, LLaMA-Factory, ms-swift, torchtune, torchtitan, LitGPT, NeMo Automodel or
            Megatron-LM; of TRL or transformers' TrainingArguments; of accelerate or DeepSpeed, which name no model.
        environ: the environment that names the home folder and the model caches; by default that of this process.
        versions: installed versions by distribution, where known.
        given: values that the user gives by dotted job key; another model decides what is read.

    Raises:
        InputError: the file cannot be read, or belongs to no known tool.
    """
    note_job_folder(path.parent)
    try:
        table = read_table(path)
    except InputError as error:
        raise InputError(f"{error.message}; {HINT}") from None
    variables = os.environ if environ is None else environ
    launch = Launch(launchers=("tool",))
    folder = path.absolute().parent  # the tool may be started there, in a folder around it, or in ours
    fallback_folders = (*tuple(folder.parents)[:3], working_folder())
    program = Program(
        launch=launch,
        launcher=launch,
        environ={name: value for name, value in variables.items() if name in _PATH_VARIABLES},
        filesystem=FilesystemView(cwd=folder, home=variables.get("HOME"), fallback_folders=fallback_folders),
        versions=dict(versions or {}),
        findings=FindingCollector(given),
        config_file=path,
    )
    tool = tool_of_table(table, path)
    reading = tool.read(program) if isinstance(tool, Tool) else _read_library_file(program, table, path, tool)
    if reading.value("parallel.strategy") is None and "parallel.strategy" not in reading.missing:
        origin = "the file does not ask for several ranks"
        single = Finding(key="parallel.strategy", value="none", origin=origin, written=False)
        reading = replace(reading, findings=(*reading.findings, single))
    return reading


def tool_of_file(path: Path) -> str:
    """Return the name of the tool or library that a configuration file was written for.

    Raises:
        InputError: the file cannot be read, or belongs to no known tool.
    """
    tool = tool_of_table(read_table(path), path)
    return tool.name if isinstance(tool, Tool) else tool


def _read_library_file(program: Program, table: ConfigTable, path: Path, library: Library) -> JobReading:
    """Return the job in a configuration of accelerate, DeepSpeed, TRL or transformers, which are no tools."""
    if library == "accelerate":
        return read_trainer(program, [{}], [yaml_layer(table, source=path.name)], method=None)
    if library == "DeepSpeed":
        layer = deepspeed_layer(table, source=path.name)
        layer["use_deepspeed"] = Setting(value=True, origin=f"{path.name}: a DeepSpeed configuration")
        return read_trainer(program, [{}], [layer], method=None)
    settings, defaults = layer_from_table(table, source=path.name), transformers_defaults(program.versions)
    if library == "transformers":
        return read_trainer(program, [settings, defaults], [{}], method=None)
    known = trl_command(table)
    command = known or "sft"
    program.findings.warn(f"The file is read as a configuration of trl {command}.")
    if known is None:
        sentence = (
            "Other TRL commands may hold a second model and two sequences per example; give the launch line to decide."
        )
        program.findings.doubt(sentence, "more", "weights", "activations", "logits")
    trl = {**trl_defaults(command, program.versions), **model_config_defaults(program.versions)}
    return read_trainer(program, [settings, trl, defaults], [{}], method=command)
