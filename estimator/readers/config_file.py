"""Reads a configuration file alone, without a launch line, into a job with the origin of every value."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..common import InputError, note_job_folder, working_folder
from .config_tool import HINT, Library, is_surely_sft, tool_of_table
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
)
from .tools.shared import ConfigTable, Tool
from .trainer import read_trainer
from .trl import model_config_defaults, trl_defaults

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
    program = Program(
        launch=launch,
        launcher=launch,
        environ={name: value for name, value in variables.items() if name in _PATH_VARIABLES},
        filesystem=_filesystem(path, variables),
        versions=dict(versions or {}),
        findings=FindingCollector(given),
        config_file=path,
    )
    tool = tool_of_table(table, path)
    reading = tool.read(program) if isinstance(tool, Tool) else _read_library_file(program, table, path, tool)
    if reading.value("parallel.strategy") is None and "parallel.strategy" not in reading.missing:
        origin = "nothing in the file asks for several ranks"
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


def _filesystem(path: Path, environ: Mapping[str, str]) -> FilesystemView:
    """Return the view in which the file's paths are resolved.

    Its tool may be started in the file's folder, in one around it, or in ours.
    """
    folder = path.absolute().parent
    fallback_folders = (*tuple(folder.parents)[:3], working_folder())
    return FilesystemView(cwd=folder, home=environ.get("HOME"), fallback_folders=fallback_folders)


def _read_library_file(program: Program, table: ConfigTable, path: Path, library: Library) -> JobReading:
    """Return the job in a configuration of accelerate, DeepSpeed, TRL or transformers, which are no tools."""
    if library == "accelerate":
        return read_trainer(program, [{}], [yaml_layer(table, source=path.name)], method=None)
    if library == "DeepSpeed":
        layer = deepspeed_layer(table, source=path.name)
        layer["use_deepspeed"] = Setting(value=True, origin=f"{path.name}: a configuration of DeepSpeed")
        return read_trainer(program, [{}], [layer], method=None)
    settings, defaults = layer_from_table(table, source=path.name), transformers_defaults(program.versions)
    if library == "transformers":
        return read_trainer(program, [settings, defaults], [{}], method=None)
    program.findings.warn("The file is read as a configuration of trl sft.")
    if not is_surely_sft(table):
        sentence = "TRL's other commands may hold a second model and two sequences per example; the launch line tells."
        program.findings.warn(sentence)
        program.findings.add_uncertainty("more", "weights", "activations", "logits")
    trl = {**trl_defaults("sft", program.versions), **model_config_defaults(program.versions)}
    return read_trainer(program, [settings, trl, defaults], [{}], method="sft")
