"""accelerate's settings from its YAML file and its workers' environment, by the names of its own flags.

Names and meanings: ``accelerate/utils/launch.py`` and ``accelerate/commands/launch.py`` of accelerate 1.15.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...common.errors import InputError
from ..arguments.table import library
from ..source.data_files import layer_from_table, read_table
from ..source.settings import Setting, SettingsLayer
from .program import Program

_VARIABLE_PREFIXES = ("FSDP_", "PARALLELISM_CONFIG_")
"""Variables that begin so are flags of the same name in lower case."""
_KINDS = ("multi_gpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm")
"""Flags of which one is enough for the file's ``distributed_type`` not to count (``_validate_launch_command``)."""
_SECTION_PREFIXES = {"fsdp_config": "fsdp_", "deepspeed_config": "", "parallelism_config": ""}
"""Sections of accelerate's file, and what its flags have in front of the names in them."""


def accelerate_layers(program: Program, files: SettingsLayer) -> list[SettingsLayer]:
    """Return accelerate's settings: the launcher's flags, its file, the environment."""
    options, launchers = program.launcher.options, program.launcher.launchers
    layers: list[SettingsLayer] = [options]
    if "trl" in launchers:
        layers.append(files)
    named = options.get("config_file") or options.get("accelerate_config")
    if named is None and "trl" in launchers:
        named = files.get("accelerate_config")
    path: Path | None = None
    if named is not None:
        shipped = _shipped_trl_config(str(named.value))
        path = None if shipped else program.filesystem.resolve(str(named.value))
        layers.append(shipped)
    elif "accelerate" in launchers or "trl" in launchers:
        path = _default_file(program.environ)
    if path is not None:
        try:
            own = any(name in options for name in _KINDS)
            layers.append(yaml_layer(read_table(path), source=path.name, kind=not own))
        except InputError as error:
            sentence = f"Could not read accelerate's configuration: {error.message}"
            program.findings.mark_uncertain("parallel.strategy", sentence)
    return [*layers, environment_layer(program.environ)]


def environment_layer(environ: Mapping[str, str]) -> dict[str, Setting]:
    """Return the settings in variables that accelerate, torchrun and deepspeed set for a worker."""
    layer = {}
    names = library("accelerate").words["variable"]
    for variable, value in environ.items():
        flag = variable.lower() if variable.startswith(_VARIABLE_PREFIXES) else None
        name = names.get(variable) or flag
        if name and value.strip():  # empty ones count as not set
            layer[name] = Setting(value=value, origin=f"{variable} in the environment")
    return layer


def yaml_layer(table: Mapping[str, Any], *, source: str, kind: bool = True) -> dict[str, Setting]:
    """Return the settings in a configuration file of accelerate (``accelerate config`` writes one).

    Args:
        table: what it says.
        source: its name.
        kind: its ``distributed_type`` counts, as no flag names another one.
    """
    top_level = {name: value for name, value in table.items() if not isinstance(value, dict)}
    layer = layer_from_table(top_level, source=source)
    for section, prefix in _SECTION_PREFIXES.items():
        inner = table.get(section)
        if isinstance(inner, dict):
            named = layer_from_table(inner, source=source, prefix=f"{section}.")
            layer.update({name if name.startswith(prefix) else prefix + name: item for name, item in named.items()})
    flag = library("accelerate").words["distributed_type"].get(str(table.get("distributed_type", "")).upper())
    if flag is not None and kind:
        layer.setdefault(flag, Setting(value=True, origin=f"{source}: distributed_type"))
    if kind and isinstance(table.get("parallelism_config"), dict) and table["parallelism_config"]:
        layer.setdefault("use_parallelism_config", Setting(value=True, origin=f"{source}: parallelism_config"))
    dynamo = table.get("dynamo_config")
    if isinstance(dynamo, dict) and dynamo.get("dynamo_backend"):
        origin = f"{source}: dynamo_config.dynamo_backend"
        layer["dynamo_backend"] = Setting(value=dynamo["dynamo_backend"], origin=origin)
    return layer


def _default_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file in the Hugging Face home that accelerate reads without ``--config_file``, if it is there."""
    home = environ.get("HF_HOME")
    if not home and environ.get("XDG_CACHE_HOME"):
        home = f"{environ['XDG_CACHE_HOME']}/huggingface"
    if not home and environ.get("HOME"):
        home = f"{environ['HOME']}/.cache/huggingface"
    for name in ("default_config.yaml", "default_config.json"):
        path = Path(home or "/nonexistent") / "accelerate" / name
        if os.access(path, os.R_OK):
            return path
    return None


def _shipped_trl_config(name: str) -> SettingsLayer:
    """Return a configuration that TRL ships; empty if it ships none of that name."""
    shipped = library("accelerate").default.get(f"trl_{name}")
    if shipped is None:
        return {}
    values = {"num_processes": 8, "mixed_precision": "bf16", **shipped}
    origin = f"--accelerate_config {name}, as TRL ships it"
    return {key: Setting(value=value, origin=origin) for key, value in values.items()}
