"""Reads a program that trains with transformers into a job, whichever tool its settings come from."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from ...common.records import replace
from ...job.rules.strategies import STRATEGIES
from ..program.deepspeed import record_zero_sizes
from ..program.program import Program
from ..program.run_logs import logged_trainer_settings
from ..program.world_size import WorldSize, checked_ranks, read_world_size
from ..source.data_files import layer_of_setting
from ..source.evidence import FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_bool, as_int, as_word, words_of
from ..trl.trainer import Setup
from .fsdp import fsdp_settings
from .lora import read_lora
from .precision import read_precision
from .sharding import deepspeed_settings, read_device_map, read_parallel
from .step import read_step
from .trained_model import default_targets, given_config, hidden_size, known_config, read_model
from .trainer_inputs import TrainerInputs
from .unread_settings import warn_of_unread, warn_of_unresolved

_WITH_POSITIONS = ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Encoders that learn a table of positions: no sequence is longer (``models/*/modeling_*.py`` of transformers 5)."""


def config_of_script(settings: LayeredSettings, findings: FindingCollector) -> Mapping[str, Any] | None:
    """Return the config that a script makes or changes, and record ``model.config``; None if it does neither."""
    made = settings.find("script_model_config")
    if made is None or not isinstance(made.value, Mapping):
        return None
    findings.record("model.config", dict(made.value), made.origin)
    return made.value


def read_trainer(
    program: Program,
    layers: Sequence[SettingsLayer],
    accelerate: Sequence[SettingsLayer],
    *,
    method: str | None,
    own_loss: bool = True,
    unresolved: Mapping[str, str] | None = None,
    understood: Collection[str] = (),
) -> JobReading:
    """Return the job of a program that trains with transformers.

    Args:
        program: the program.
        layers: settings by transformers' names, the one that wins first.
        accelerate: settings by the names of accelerate's flags, the one that wins first.
        method: TRL's method (``sft``, ``dpo``, ...); None without TRL.
        own_loss: TRL's trainer computes the loss; False: a tool's own, derived from it.
        unresolved: settings whose values only the running program knows, each with a sentence.
        understood: options that the script was seen to use, which need no warning.
    """
    findings = program.findings
    inputs = _inputs(program, layers, accelerate, method=method, own_loss=own_loss, unresolved=unresolved or {})
    read_model(inputs, findings)
    read_step(inputs, findings)
    _read_run(inputs, findings)
    config = _model_config(program, inputs.settings)
    _bound_length(config or {}, findings)
    _assume_head(config or {}, findings)
    lora = read_lora(inputs, default_targets(config), findings)
    read_precision(inputs, lora=lora, config=config, findings=findings)
    read_parallel(inputs, findings)
    if inputs.deepspeed is not None:
        record_zero_sizes(inputs.deepspeed, findings, lambda: hidden_size(given_config(findings, program.environ)))
    read_device_map(inputs, program.environ, findings)
    _read_saving(inputs, findings, lora=lora)
    if (loop := inputs.accelerate.find("script_own_loop")) is not None:
        _doubt_own_loop(loop, findings)
    if (trainer := inputs.trl_trainer(findings)) is not None:
        zero3 = inputs.deepspeed is not None and as_int(inputs.deepspeed.find("zero_stage")) == 3
        sharding: Literal["zero3", "fsdp"] | None = "zero3" if zero3 else "fsdp" if inputs.fsdp is not None else None
        precision = findings.get("training.precision") if inputs.deepspeed is not None else None
        half, dash, _ = str(precision.value).partition("-") if precision is not None else ("", "", "")
        engine = half if dash else None
        trainer.read_other_models(
            Setup(adapters=lora, sharding=sharding, engine_dtype=engine, filesystem=inputs.filesystem)
        )
        trainer.read_rollout(inputs.ranks)
    held = inputs.settings.find("script_other_models")
    if held is not None and findings.get("other_models") is None:
        findings.infer("other_models", held.value, held.origin)
        sentence = f"{held.origin}; what it computes in a step is not read."
        findings.doubt(sentence, "more", "activations", "logits", unless="other_models")
    inputs.settings.find(*understood)
    warn_of_unread(inputs.settings, findings)
    return findings.build()


def _doubt_own_loop(loop: Setting, findings: FindingCollector) -> None:
    """Count the outputs of a step as kept until those of the next, as in most loops, and doubt what else one keeps.

    It may run the model several times before a backward pass, on parts of a batch or on several of its sequences,
    compute the loss itself, and leave the gradients of the last step while the model runs.
    """
    key = "training.keep_outputs"
    findings.infer(key, True, f"{loop.origin}, and most keep the model's outputs until the next ones")
    sentence = f"{loop.origin}; what it keeps between steps is known by a rehearsal."
    findings.doubt(sentence, "either", "activations", "logits", unless=key)
    findings.add_uncertainty("more", "gradients", unless=key)


def _bound_length(config: Mapping[str, Any], findings: FindingCollector) -> None:
    """Bound the sequence length by the model's maximum, which is also taken where no length is known."""
    if config.get("model_type") not in _WITH_POSITIONS:
        return
    from ...model.read_architecture import max_positions  # here: few running programs need it

    if (most := max_positions(config)) is None:
        return
    origin = "the most that the model takes"
    findings.lower("training.sequence_length", most, origin)
    if findings.lacks("training.sequence_length"):
        sentence = f"What cuts sequences is not known; they are counted with the {most} tokens that the model takes."
        findings.infer("training.sequence_length", most, origin)
        findings.mark_uncertain("training.sequence_length", sentence, direction="less")


def _inputs(
    program: Program,
    layers: Sequence[SettingsLayer],
    accelerate: Sequence[SettingsLayer],
    *,
    method: str | None,
    own_loss: bool,
    unresolved: Mapping[str, str],
) -> TrainerInputs:
    """Return all settings; what the running program reports or has logged wins over what was read."""
    findings = program.findings
    settings = LayeredSettings(*layers)
    of_trl = settings.find("model_init_kwargs")  # dtype and attention
    model_init = layer_of_setting(of_trl, program.filesystem, findings, key="training.precision")
    flash = model_init.get("use_flash_attention_2")  # until transformers 4.52
    if flash is not None and as_bool(flash):
        model_init.setdefault("attn_implementation", flash.with_value("flash_attention_2"))
    logged = logged_trainer_settings(program, settings)
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
        findings=findings,
    )
    started = settings.find("script_processes")
    if started is not None and program.pid is None and world.ranks is not None and not world.ranks.written:
        world = checked_ranks(started, findings) if as_int(started) else WorldSize(ranks=None)
    inputs = TrainerInputs(
        settings=LayeredSettings(program.reported, logged, layers[0], model_init, *layers[1:]),
        accelerate=launcher,
        world=world,
        method=method,
        own_loss=own_loss,
        is_script=program.launch.script is not None and program.launch.trl_command is None,
        versions=program.versions,
        filesystem=program.filesystem,
    )
    deepspeed = deepspeed_settings(inputs, findings)
    fsdp = None if deepspeed is not None else fsdp_settings(inputs, findings)
    shards = deepspeed is not None or fsdp is not None or launcher.is_true("script_sharding")
    if world.one_per_gpu is not None and shards:
        world = WorldSize(ranks=None)
    return replace(inputs, deepspeed=deepspeed, fsdp=fsdp, world=world)


def _assume_head(config: Mapping[str, Any], findings: FindingCollector) -> None:
    """Record the usual head of an encoder or encoder-decoder where nothing states one."""
    if findings.get("model.task") is not None or not config.get("model_type"):
        return
    from ...model.read_architecture import usual_task  # here: recognising a running program does not need it

    if (task := usual_task(config)) != "causal-lm":
        findings.infer("model.task", task, "the usual head of this family, as nothing states one")


def _model_config(program: Program, settings: LayeredSettings) -> Mapping[str, Any] | None:
    """Return the model's config; record ``model.config`` where the running model differs from the one that is named."""
    findings = program.findings
    if findings.replaces_model:
        return given_config(findings, program.environ)
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
    shared = [name for name in sorted(running.keys() & config.keys()) if not name.endswith("_id")]
    sizes = [name for name in shared if type(running[name]) is type(config[name]) is int]
    return any(running[name] != config[name] for name in sizes)


_NO_TARGETS = ("none", "all")
"""Values of ``report_to`` that name no library; ``all`` means whatever is installed."""


def _read_run(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record ``run.output_dir``, ``run.save_total_limit``, ``run.logging_dir``, ``run.report_to``.

    Paths become absolute, unless it is unknown from which folder the program is started.
    """
    find, filesystem = inputs.settings.find, inputs.filesystem
    for name in ("output_dir", "logging_dir"):
        folder = find(name)
        if folder is not None and isinstance(folder.value, str):
            path = folder.value if filesystem.fallback_folders else str(filesystem.resolve(folder.value))
            findings.record_from(folder, f"run.{name}", path)
    limit, targets = find("save_total_limit"), find("report_to")
    findings.record_from(limit, "run.save_total_limit", as_int(limit))
    names = [name for name in words_of(targets) if name not in _NO_TARGETS]
    findings.record_from(targets, "run.report_to", names or None)


def _read_saving(inputs: TrainerInputs, findings: FindingCollector, *, lora: bool) -> None:
    """Record what the Trainer saves where ranks hold shards: ``_save_checkpoint``, ``save_model``.

    FSDP gathers the whole model, adapters or not, under FULL_STATE_DICT, which is accelerate's default for FSDP1; its
    default for FSDP2 is SHARDED_STATE_DICT. ZeRO 3 gathers only if it is told so, and then no frozen weights of peft's.
    """
    find, found = inputs.settings.find, findings.get("parallel.strategy")
    written = find("save_strategy", "save_steps", "output_dir", "save_only_model")
    if written is None or found is None or as_word(find("save_strategy")) == "no":
        return
    strategy = STRATEGIES[found.value]
    if inputs.fsdp is not None:
        default = "FULL_STATE_DICT" if strategy.flat_parameters else "SHARDED_STATE_DICT"
        kind = inputs.fsdp.find("fsdp_state_dict_type")
        kind = kind or Setting.default(default, f"accelerate's default with {strategy.name}")
        full = str(kind.value).upper().startswith(("FULL", "1"))
        findings.record_from(kind, "saving.weights", "full" if full else "sharded")
    elif strategy.deepspeed and strategy.zero_stage == 3 and inputs.deepspeed is not None:
        gather = inputs.deepspeed.find("zero3_save_16bit_model")
        gather = gather or Setting.default(False, "DeepSpeed's default stage3_gather_16bit_weights_on_model_save")
        whole = "adapters" if lora else "full"
        findings.record_from(gather, "saving.weights", whole if as_bool(gather) else "sharded")
    else:
        return
    only = find("save_only_model")
    default_origin = "the Trainer saves optimizer states unless save_only_model is set"
    findings.record_from(only or Setting.default(False, default_origin), "saving.optimizer", not as_bool(only))
