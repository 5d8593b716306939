"""Reads a program that trains with transformers into a job, whichever tool its settings come from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..program import Program, logged_trainer_settings, read_world_size
from ..source import JobReading, LayeredSettings, SettingsLayer
from .lora_arguments import read_lora
from .model_arguments import model_init_layer, read_model
from .model_facts import default_targets, known_config, stored_dtype
from .precision import read_precision
from .run_arguments import read_run
from .script_facts import config_of_script, read_other_models, read_trainable
from .sharding import deepspeed_settings, fsdp_settings, read_parallel
from .step_arguments import read_step
from .trainer_inputs import TrainerInputs
from .unread_settings import warn_of_unread, warn_of_unresolved


def read_trainer(
    program: Program,
    layers: Sequence[SettingsLayer],
    accelerate: Sequence[SettingsLayer],
    *,
    method: str | None,
    unresolved: Mapping[str, str] | None = None,
) -> JobReading:
    """Return the job of a program that trains with transformers.

    Args:
        program: the program.
        layers: settings by transformers' names, the one that wins first.
        accelerate: settings by the names of accelerate's flags, the one that wins first.
        method: TRL's method (``sft``, ``dpo``, ...); None without TRL.
        unresolved: settings whose values only the running program knows, each with a sentence.
    """
    findings = program.findings
    inputs = _inputs(program, layers, accelerate, method=method, unresolved=unresolved or {})
    read_model(inputs, findings)
    read_step(inputs, findings)
    read_run(inputs, findings)
    config = _model_config(program, inputs.settings)
    lora = read_lora(inputs, default_targets(config), findings)
    read_precision(inputs, lora=lora, stored=stored_dtype(config), findings=findings)
    read_parallel(inputs, findings)
    read_trainable(inputs.settings, findings)
    read_other_models(inputs.settings, program)
    warn_of_unread(inputs.settings, findings)
    return findings.build()


def _inputs(
    program: Program,
    layers: Sequence[SettingsLayer],
    accelerate: Sequence[SettingsLayer],
    *,
    method: str | None,
    unresolved: Mapping[str, str],
) -> TrainerInputs:
    """Return all settings; what the running program reports or has logged wins over what was read."""
    findings = program.findings
    model_init = model_init_layer(LayeredSettings(*layers), program.filesystem, findings)
    logged = logged_trainer_settings(program, LayeredSettings(*layers))
    from_run = {**program.reported, **logged}
    still_unresolved = {name: sentence for name, sentence in unresolved.items() if name not in from_run}
    warn_of_unresolved(still_unresolved, from_run, findings)
    launcher = LayeredSettings(*accelerate)
    world = read_world_size(
        program.launcher,
        launcher,
        program.environ,
        started=program.pid is not None and program.launcher is not program.launch,
        self_started_ranks=program.self_started_ranks,
    )
    inputs = TrainerInputs(
        settings=LayeredSettings(program.reported, logged, layers[0], model_init, *layers[1:]),
        accelerate=launcher,
        world=world,
        method=method,
        versions=program.versions,
        filesystem=program.filesystem,
    )
    deepspeed = deepspeed_settings(inputs, findings)
    fsdp = None if deepspeed is not None else fsdp_settings(inputs, findings)
    return replace(inputs, deepspeed=deepspeed, fsdp=fsdp)


def _model_config(program: Program, settings: LayeredSettings) -> Mapping[str, Any] | None:
    """Return the model's config; record ``model.config`` where the running model differs from the one that is named."""
    findings = program.findings
    config = known_config(findings.get("model.id"), program.environ, folders=program.pid is None)
    running = settings.find("running_model_config")
    if running is None or not isinstance(running.value, Mapping):
        return config_of_script(settings, findings) or config
    if config is not None and not _differs(running.value, config):
        return config
    findings.record("model.config", running.value, running.origin.removesuffix(": running_model_config"))
    return running.value


def _differs(running: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return True if layers or embeddings were added to or removed from the model of the config."""
    if running.get("auto_map") or config.get("auto_map"):  # its code lies beside the config that is named
        return False
    shared = [name for name in running.keys() & config.keys() if not name.endswith("_id")]
    return any(
        running[name] != config[name] and all(type(table[name]) is int for table in (running, config))
        for name in shared
    )
