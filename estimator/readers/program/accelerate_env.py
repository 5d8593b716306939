"""What accelerate was told: its YAML file and the environment of its workers, by the names of its own flags.

Names and meanings: ``accelerate/utils/launch.py`` and ``accelerate/commands/launch.py`` of accelerate 1.15.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...common.errors import InputError
from ..source.data_files import layer_from_table, read_table
from ..source.settings import Setting, SettingsLayer
from .program import Program

_RENAMED = {
    "ACCELERATE_MIXED_PRECISION": "mixed_precision",
    "ACCELERATE_USE_FSDP": "use_fsdp",
    "ACCELERATE_USE_DEEPSPEED": "use_deepspeed",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "use_parallelism_config",
    "ACCELERATE_USE_MEGATRON_LM": "use_megatron_lm",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "zero_stage",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "offload_optimizer_device",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "offload_param_device",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": "deepspeed_config_file",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "gradient_accumulation_steps",
    "ACCELERATE_DYNAMO_BACKEND": "dynamo_backend",
    "WORLD_SIZE": "num_processes",
    "LOCAL_WORLD_SIZE": "processes_here",
    "LOCAL_SIZE": "processes_here",
}
_PREFIXES = ("FSDP_", "PARALLELISM_CONFIG_")
_KINDS = {"FSDP": "use_fsdp", "DEEPSPEED": "use_deepspeed", "MEGATRON_LM": "use_megatron_lm", "MULTI_GPU": "multi_gpu"}


def accelerate_layers(program: Program, files: SettingsLayer) -> list[SettingsLayer]:
    """Settings of accelerate: the launcher's flags, its file, the environment."""
    launch, findings = program.launcher, program.findings
    layers: list[SettingsLayer] = [launch.options]
    if "trl" in launch.launchers:
        layers.append(files)
    named = launch.options.get("config_file") or launch.options.get("accelerate_config")
    if named is None and "trl" in launch.launchers:
        named = files.get("accelerate_config")
    path: Path | None = None
    if named is not None:
        shipped = _shipped_trl_config(str(named.value))
        path = None if shipped else program.filesystem.resolve(str(named.value))
        layers.append(shipped)
    elif "accelerate" in launch.launchers or "trl" in launch.launchers:
        path = _default_file(program.environ)
    if path is not None:
        try:
            layers.append(yaml_layer(read_table(path), source=path.name))
        except InputError as error:
            findings.warn(f"accelerate's configuration is not counted: {error.message}")
    return [*layers, environment_layer(program.environ)]


def environment_layer(environ: Mapping[str, str]) -> dict[str, Setting]:
    """The variables that accelerate, torchrun and deepspeed set for a worker."""
    layer = {}
    for variable, value in environ.items():
        name = _RENAMED.get(variable) or (variable.lower() if variable.startswith(_PREFIXES) else None)
        if name:
            layer[name] = Setting(value=value, origin=f"{variable} in the environment")
    return layer


def yaml_layer(table: Mapping[str, Any], *, source: str) -> dict[str, Setting]:
    """The values of a configuration file of accelerate (``accelerate config`` writes one)."""
    layer = layer_from_table(
        {name: value for name, value in table.items() if not isinstance(value, dict)}, source=source
    )
    for section, prefix in (("fsdp_config", "fsdp_"), ("deepspeed_config", ""), ("parallelism_config", "")):
        inner = table.get(section)
        if isinstance(inner, dict):
            named = layer_from_table(inner, source=source, prefix=f"{section}.")
            layer.update({name if name.startswith(prefix) else prefix + name: item for name, item in named.items()})
    kind = str(table.get("distributed_type", "")).upper()
    if kind in _KINDS:
        layer.setdefault(_KINDS[kind], Setting(value=True, origin=f"{source}: distributed_type"))
    if isinstance(table.get("parallelism_config"), dict) and table["parallelism_config"]:
        layer.setdefault("use_parallelism_config", Setting(value=True, origin=f"{source}: parallelism_config"))
    dynamo = table.get("dynamo_config")
    if isinstance(dynamo, dict) and dynamo.get("dynamo_backend"):
        backend = Setting(value=dynamo["dynamo_backend"], origin=f"{source}: dynamo_config.dynamo_backend")
        layer["dynamo_backend"] = backend
    return layer


def _default_file(environ: Mapping[str, str]) -> Path | None:
    """The file that accelerate reads when no ``--config_file`` is given: in the Hugging Face home, if it is there."""
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
    """The configurations that TRL ships and ``--accelerate_config`` names, as of TRL 1.16 (8 processes each)."""
    origin = f"--accelerate_config {name}, as TRL ships it"
    kinds: dict[str, dict[str, Any]] = {
        "single_gpu": {"num_processes": 1},
        "multi_gpu": {"multi_gpu": True},
        "fsdp1": {"use_fsdp": True, "fsdp_version": 1, "fsdp_sharding_strategy": "FULL_SHARD"},
        "fsdp2": {"use_fsdp": True, "fsdp_version": 2, "fsdp_reshard_after_forward": True},
        "zero1": {"use_deepspeed": True, "zero_stage": 1},
        "zero2": {"use_deepspeed": True, "zero_stage": 2},
        "zero3": {"use_deepspeed": True, "zero_stage": 3},
    }
    if name not in kinds:
        return {}
    values = {"num_processes": 8, "mixed_precision": "bf16", **kinds[name]}
    return {key: Setting(value=value, origin=origin) for key, value in values.items()}
