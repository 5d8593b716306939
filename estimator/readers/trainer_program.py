"""A program that trains with transformers, whichever tool wrote its settings down: from their names to a job."""

from collections.abc import Sequence

from .artefacts import trainer_artefacts
from .evidence import JobReading, Notes
from .model_facts import known_config, stored_dtype, usual_targets
from .precision import read_precision
from .program import Program
from .ranks import read_world
from .run_args import read_run
from .settings import Layer, Settings, as_bool, as_int
from .sharding import Sources, deepspeed_settings, fsdp_settings, read_parallel
from .transformers_args import Arguments, model_init, read_lora, read_model, read_step

_MEMORY_WORDS = ("quant", "offload", "lora", "fsdp", "parallel", "checkpointing", "precision", "zero", "liger")
_NO_MEMORY = {
    *("lora_alpha", "lora_dropout", "use_rslora", "lora_task_type", "gradient_checkpointing_kwargs", "parallel_mode"),
    *("fsdp_transformer_layer_cls_to_wrap", "fsdp_state_dict_type", "fsdp_min_num_params", "zero3_init_flag"),
    *("activation_checkpointing_kwargs", "bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "tokenizers_parallelism"),
    *("bnb_4bit_quant_storage",),
}


def read_trainer(
    program: Program, layers: Sequence[Layer], accelerate: Sequence[Layer], *, method: str | None
) -> JobReading:
    """The job of a program that trains with transformers.

    Args:
        program: what is read.
        layers: settings by transformers' names, the one that wins first.
        accelerate: settings by accelerate's names, the one that wins first.
        method: TRL's (``sft``, ``dpo``, ...); None without TRL.
    """
    notes = program.notes
    init = model_init(Settings(*layers), program.place, notes)
    written = trainer_artefacts(program, Settings(*layers))
    settings = Settings(program.told, written, layers[0], init, *layers[1:])
    launcher = Settings(*accelerate)
    world = read_world(program.outer, launcher, program.environ)
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
    config = known_config(notes.get("model.id"), program.environ)
    running = settings.find("running_model_config")
    if config is None and running is not None:
        config = running.value
        notes.put("model.config", config, running.origin)
    lora = read_lora(arguments, usual_targets(config), notes)
    read_precision(arguments, fsdp=fsdp is not None, lora=lora, stored=stored_dtype(config), notes=notes)
    read_parallel(sources, deepspeed, fsdp, notes)
    warn_of_unread(settings, notes)
    return notes.reading()


def warn_of_unread(settings: Settings, notes: Notes) -> None:
    """Say what was written, sounds as if memory depends on it, and was not understood."""
    for name, setting in settings.never_asked():
        said_off = as_bool(setting) is False or setting.value in ([], {})
        last = name.rpartition(".")[2]
        if any(word in name for word in _MEMORY_WORDS) and last not in _NO_MEMORY and not said_off:
            notes.warn(f"{setting.origin} may change the memory and is not counted.")
