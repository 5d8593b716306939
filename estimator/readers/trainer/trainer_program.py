"""A program that trains with transformers, whichever tool wrote its settings down: from their names to a job."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..program.program import Program
from ..program.ranks import read_world
from ..program.run_logs import trainer_artefacts
from ..source.evidence import JobReading
from ..source.settings import Layer, Settings, as_int
from .model_facts import known_config, stored_dtype, usual_targets
from .precision import read_precision
from .run_args import read_run
from .sharding import Sources, deepspeed_settings, fsdp_settings, read_parallel
from .transformers_args import Arguments, model_init, read_lora, read_model, read_step
from .unread_settings import warn_of_unknown, warn_of_unread


def read_trainer(
    program: Program,
    layers: Sequence[Layer],
    accelerate: Sequence[Layer],
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
    notes = program.notes
    init = model_init(Settings(*layers), program.place, notes)
    written = trainer_artefacts(program, Settings(*layers))
    known = {**program.told, **written}
    warn_of_unknown({name: what for name, what in (unread or {}).items() if name not in known}, known, notes)
    settings = Settings(program.told, written, layers[0], init, *layers[1:])
    launcher = Settings(*accelerate)
    started = program.pid is not None and program.outer is not program.launch
    world = read_world(program.outer, launcher, program.environ, started=started, workers=program.workers)
    sources = Sources(trainer=settings, accelerate=launcher, world=world, place=program.place)
    deepspeed = deepspeed_settings(sources, notes)
    fsdp = None if deepspeed is not None else fsdp_settings(sources, notes)
    arguments = Arguments(
        settings=settings,
        accelerate=launcher,
        deepspeed=deepspeed,
        method=method,
        versions=program.versions,
        place=program.place,
        ranks=as_int(world.ranks),
    )
    read_model(arguments, notes)
    read_step(arguments, notes)
    read_run(arguments, notes)
    config = known_config(notes.get("model.id"), program.environ, folders=program.pid is None)
    running = settings.find("running_model_config")
    if (
        running is not None
        and isinstance(running.value, Mapping)
        and (config is None or _is_another(running.value, config))
    ):
        config = running.value
        notes.put("model.config", config, running.origin.removesuffix(": running_model_config"))
    lora = read_lora(arguments, usual_targets(config), notes)
    read_precision(arguments, fsdp=fsdp is not None, lora=lora, stored=stored_dtype(config), notes=notes)
    read_parallel(sources, deepspeed, fsdp, notes)
    warn_of_unread(settings, notes)
    return notes.reading()


def _is_another(running: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """The model that runs is not that of the config: layers or embeddings were added or taken away."""
    if running.get("auto_map") or config.get("auto_map"):  # its code lies beside the config that is named
        return False
    shared = [name for name in running.keys() & config.keys() if not name.endswith("_id")]
    return any(
        running[name] != config[name] and all(type(table[name]) is int for table in (running, config))
        for name in shared
    )
