"""A program that trains with transformers, whichever tool wrote its settings down: from their names to a job."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..program.program import Program
from ..program.ranks import read_world_size
from ..program.run_logs import logged_trainer_settings
from ..source.evidence import JobReading
from ..source.settings import LayeredSettings, SettingsLayer, as_int
from .model_facts import known_config, stored_dtype, usual_targets
from .precision import read_precision
from .run_args import read_run
from .sharding import Sources, deepspeed_settings, fsdp_settings, read_parallel
from .transformers_args import Arguments, model_init, read_lora, read_model, read_step
from .unread_settings import warn_of_unknown, warn_of_unread


def read_trainer(
    program: Program,
    layers: Sequence[SettingsLayer],
    accelerate: Sequence[SettingsLayer],
    *,
    method: str | None,
    unread: Mapping[str, str] | None = None,
) -> JobReading:
    """The job of a program that trains with transformers.

    Args:
        program: what is read.
        layers: settings by transformers' names, the one that wins first.
        accelerate: settings by accelerate's names, the one that wins first.
        method: TRL's (``sft``, ``dpo``, ...); None without TRL.
        unread: settings that only the running program knows, each with a sentence.
    """
    findings = program.findings
    init = model_init(LayeredSettings(*layers), program.filesystem, findings)
    written = logged_trainer_settings(program, LayeredSettings(*layers))
    known = {**program.reported, **written}
    warn_of_unknown({name: what for name, what in (unread or {}).items() if name not in known}, known, findings)
    settings = LayeredSettings(program.reported, written, layers[0], init, *layers[1:])
    launcher = LayeredSettings(*accelerate)
    started = program.pid is not None and program.launcher is not program.launch
    world = read_world_size(
        program.launcher, launcher, program.environ, started=started, self_started_ranks=program.self_started_ranks
    )
    sources = Sources(trainer=settings, accelerate=launcher, world=world, filesystem=program.filesystem)
    deepspeed = deepspeed_settings(sources, findings)
    fsdp = None if deepspeed is not None else fsdp_settings(sources, findings)
    arguments = Arguments(
        settings=settings,
        accelerate=launcher,
        deepspeed=deepspeed,
        method=method,
        versions=program.versions,
        filesystem=program.filesystem,
        ranks=as_int(world.ranks),
    )
    read_model(arguments, findings)
    read_step(arguments, findings)
    read_run(arguments, findings)
    config = known_config(findings.get("model.id"), program.environ, folders=program.pid is None)
    running = settings.find("running_model_config")
    if (
        running is not None
        and isinstance(running.value, Mapping)
        and (config is None or _is_another(running.value, config))
    ):
        config = running.value
        findings.put("model.config", config, running.origin.removesuffix(": running_model_config"))
    lora = read_lora(arguments, usual_targets(config), findings)
    read_precision(arguments, fsdp=fsdp is not None, lora=lora, stored=stored_dtype(config), findings=findings)
    read_parallel(sources, deepspeed, fsdp, findings)
    warn_of_unread(settings, findings)
    return findings.build()


def _is_another(running: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """The model that runs is not that of the config: layers or embeddings were added or taken away."""
    if running.get("auto_map") or config.get("auto_map"):  # its code lies beside the config that is named
        return False
    shared = [name for name in running.keys() & config.keys() if not name.endswith("_id")]
    return any(
        running[name] != config[name] and all(type(table[name]) is int for table in (running, config))
        for name in shared
    )
