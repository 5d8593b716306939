"""From a launch line, as a person types it or as a process has it, to a job with the origin of every value."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from .accelerate_env import default_file, environment_layer, shipped_trl_config, yaml_layer
from .data_files import as_layer, read_table
from .evidence import JobReading, Notes
from .flags import parse_flags
from .launchers import Launch, parse_launch, words_of
from .model_facts import known_config, stored_dtype, usual_targets
from .place import Place
from .precision import read_precision
from .ranks import read_world
from .script_ast import Script, read_script
from .settings import Layer, Setting, Settings, as_bool, as_int
from .sharding import Sources, deepspeed_settings, fsdp_settings, read_parallel
from .transformers_args import Arguments, model_init, read_lora, read_model, read_step
from .versions import transformers_defaults, trl_defaults

_MEMORY_WORDS = ("quant", "offload", "lora", "fsdp", "parallel", "checkpointing", "precision", "zero", "liger")
_TRAINER_FLAGS = ("output_dir", "do_train", "num_train_epochs", "logging_steps", "save_strategy", "optim", "report_to")
_NO_MEMORY = {
    *("lora_alpha", "lora_dropout", "use_rslora", "lora_task_type", "gradient_checkpointing_kwargs", "parallel_mode"),
    *("fsdp_transformer_layer_cls_to_wrap", "fsdp_state_dict_type", "fsdp_min_num_params", "zero3_init_flag"),
    *("activation_checkpointing_kwargs", "bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "tokenizers_parallelism"),
    *("bnb_4bit_quant_storage",),
}


def read_launch(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    root: Path | None = None,
    versions: Mapping[str, str] | None = None,
    launcher: Sequence[str] | None = None,
) -> JobReading:
    """The job that a launch line starts. Files it names are read as data, scripts are parsed; nothing is run.

    Args:
        argv: the launch line, or a worker's own command line.
        environ: its environment; this process's own when left out.
        cwd: the folder against which its paths are read, as it is reached from here; our own when left out.
        root: its root folder as it is reached from here, for a process in a container.
        versions: installed versions by distribution (``transformers``, ``trl``, ``torch``), where they are known.
        launcher: the command line of the launcher that started the worker, whose own flags the worker does not have.

    Raises:
        InputError: the line starts no Python program.
    """
    launch = parse_launch(words_of(argv))
    if launch.program is None:
        line = " ".join(argv)
        raise InputError(f"{line[:120]!r} starts no Python script or module that can be read")
    outer = parse_launch(launcher) if launcher else launch
    surroundings = {**(os.environ if environ is None else environ), **launch.assignments}
    context = _Context(
        launch=launch,
        outer=outer,
        environ=surroundings,
        place=Place(cwd=Path.cwd() if cwd is None else cwd, home=surroundings.get("HOME"), root=root),
        versions=dict(versions or {}),
        notes=Notes(),
    )
    return _read(context)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    launch: Launch
    outer: Launch
    environ: Mapping[str, str]
    place: Place
    versions: Mapping[str, str]
    notes: Notes


def _read(context: _Context) -> JobReading:
    notes = context.notes
    flags, words = parse_flags(context.launch.arguments)
    files = _files(context, flags, words)
    script = _script(context, {**files, **flags})
    notes.warn(*(what for name, what in script.unread.items() if name not in flags and name not in files))
    method = context.launch.trl_command or script.trl_method
    layers = [flags, files, script.written, script.hints, *_defaults(context, script, method, {**files, **flags})]
    init = model_init(Settings(*layers), context.place, notes)
    settings = Settings(flags, init, *layers[1:])
    accelerate = Settings(*_accelerate_layers(context, files), script.accelerate)
    world = read_world(context.outer, accelerate, context.environ)
    sources = Sources(trainer=settings, accelerate=accelerate, world=world, place=context.place)
    deepspeed = deepspeed_settings(sources, notes)
    fsdp = None if deepspeed is not None else fsdp_settings(sources, notes)
    arguments = Arguments(
        settings=settings,
        accelerate=accelerate,
        deepspeed=deepspeed,
        method=method,
        versions=context.versions,
        place=context.place,
        ranks=as_int(world.ranks),
    )
    read_model(arguments, notes)
    read_step(arguments, notes)
    config = known_config(notes.get("model.id"), context.environ)
    lora = read_lora(arguments, usual_targets(config), notes)
    read_precision(arguments, fsdp=fsdp is not None, lora=lora, stored=stored_dtype(config), notes=notes)
    read_parallel(sources, deepspeed, fsdp, notes)
    _warn_of_unread(settings, notes)
    return notes.reading()


def _files(context: _Context, flags: Layer, words: Sequence[str]) -> dict[str, Setting]:
    """The configuration file that the program itself reads: ``--config x.yaml``, or the only word before its flags."""
    named = flags.get("config") if context.launch.trl_command or "config" in flags else None
    name = str(named.value) if named is not None else words[0] if len(words) == 1 else ""
    if not name.endswith((".yaml", ".yml", ".json")):
        return {}
    path = context.place.path(name)
    try:
        return as_layer(read_table(path), source=path.name)
    except InputError as error:
        context.notes.warn(f"The program's configuration is not counted: {error.message}")
        return {}


def _script(context: _Context, options: Layer) -> Script:
    """The script's text; TRL's own scripts say nothing that their flags do not."""
    if context.launch.script is None or context.launch.trl_command:
        return Script()
    path = context.place.path(context.launch.script)
    try:
        return read_script(path, options=options, environ=context.environ)
    except InputError as error:
        context.notes.warn(f"The script is not counted: {error.message}")
        return Script()


def _defaults(context: _Context, script: Script, method: str | None, given: Layer) -> list[Layer]:
    """Defaults of the frameworks that the program is seen to use."""
    seen = not script.called and any(name in given for name in _TRAINER_FLAGS)
    uses_trainer = script.trains_with_trainer or seen or any(name.startswith("per_device_") for name in given)
    library = transformers_defaults(context.versions)
    if method is not None:
        trl = trl_defaults(method, context.versions)
        if not context.launch.trl_command and script.loads_model:
            trl.pop("dtype", None)
        if script.plain_arguments:  # TRL copies them, their defaults included
            trl = {name: setting for name, setting in trl.items() if name in ("max_length", "loss_type", "dtype")}
        return [trl, library]
    if uses_trainer:
        return [library]
    loaded = "from_pretrained" in script.called or "from_config" in script.called
    return [{"dtype": library["dtype"]}] if loaded or "model_name_or_path" in given else []


def _accelerate_layers(context: _Context, files: Layer) -> list[Layer]:
    """Settings of accelerate: the launcher's flags, its file, the environment."""
    launch, notes = context.outer, context.notes
    layers: list[Layer] = [launch.options]
    if "trl" in launch.launchers:
        layers.append(files)
    named = launch.options.get("config_file") or launch.options.get("accelerate_config")
    if named is None and "trl" in launch.launchers:
        named = files.get("accelerate_config")
    path: Path | None = None
    if named is not None:
        shipped = shipped_trl_config(str(named.value))
        path = None if shipped else context.place.path(str(named.value))
        layers.append(shipped)
    elif "accelerate" in launch.launchers or "trl" in launch.launchers:
        path = default_file(context.environ)
    if path is not None:
        try:
            layers.append(yaml_layer(read_table(path), source=path.name))
        except InputError as error:
            notes.warn(f"accelerate's configuration is not counted: {error.message}")
    return [*layers, environment_layer(context.environ)]


def _warn_of_unread(settings: Settings, notes: Notes) -> None:
    """Say what was written, sounds as if memory depends on it, and was not understood."""
    for name, setting in settings.never_asked():
        said_off = as_bool(setting) is False or setting.value in ([], {})
        if any(word in name for word in _MEMORY_WORDS) and name not in _NO_MEMORY and not said_off:
            notes.warn(f"{setting.origin} may change the memory and is not counted.")
