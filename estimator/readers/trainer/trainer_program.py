"""Reads a program that trains with transformers into a job, whichever tool its settings come from."""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from ...common.errors import InputError, VramtopError
from ...common.records import replace
from ...job.rules.library_defaults import usual
from ...job.rules.strategies import DTYPE_NAMES, HALF, STRATEGIES
from ...job.settings import ModelSpec, Task
from ...job.settled import trainer_precision
from ..arguments.table import library
from ..program.deepspeed import record_zero_sizes
from ..program.program import Program, WorldSize, checked_ranks, read_world_size
from ..program.run_logs import logged_trainer_settings
from ..source.data_files import FilesystemView, layer_from_table, read_table, table_of_setting
from ..source.evidence import MODEL_STATES, Finding, FindingCollector, JobReading
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_bool, as_int, as_word, words_of
from ..source.versions import AssumedVersion, framework_with_version
from ..trl.trainer import Setup
from .fsdp import fsdp_settings
from .sharding import deepspeed_settings, read_device_map, read_parallel
from .trainer_inputs import TrainerInputs, read_step
from .unread_settings import warn_of_unread, warn_of_unresolved

# Reads LoRA adapters and the quantization of frozen weights (``lora.*``) from peft's and bitsandbytes' arguments.


_TARGET_NAMES = ("lora_target_modules", "lora_target", "lora_targets")
_DOUBLE_QUANTIZATION_NAMES = ("use_bnb_nested_quant", "bnb_4bit_use_double_quant", "double_quant")
_COPIED_NAMES = ("lora_modules_to_save", "modules_to_save")
_DROPOUT_NAMES = ("lora_dropout", "lora_dropout_p")
_AS_WEIGHTS = "as weights"
"""Value of ``lora_adapter_dtype`` where peft leaves adapters in the type of what they adapt."""
_EMBEDDINGS = ("embed_tokens", "embed_in", "wte")
_HEADS = ("lm_head", "embed_out")
_PATTERN_CHARACTERS = frozenset("*|()[]\\$^")


def read_lora(inputs: TrainerInputs, default_targets: Setting | None, findings: FindingCollector) -> bool:
    """Record ``lora.*`` where adapters are trained. Return True if they are.

    Args:
        inputs: everything known about the program.
        default_targets: the layers that peft adapts where the program names none; None: it has to name them.
        findings: collects what is read.
    """
    find = inputs.settings.find
    enabled = find("use_peft", "use_lora", "lora", "peft")
    rank = find("lora_r", "lora_rank")
    wanted = as_bool(enabled) if enabled is not None else (rank is not None and inputs.method is None)
    quantization = _quantization(inputs.settings)
    if not wanted:
        if rank is not None and rank.written:
            findings.warn(f"{rank.origin}: use_peft is not set, so no adapters are counted.")
            find(*_TARGET_NAMES)  # which have no effect either, and need no warning of their own
        if quantization is not None:
            sentence = f"{quantization.origin}: weights are counted unquantized, because there are no LoRA adapters."
            findings.doubt(sentence, "less", "weights")
        return False
    rank = rank or Setting.default(16 if inputs.method else 8, "the default rank")
    findings.record_count("lora.rank", rank)
    targets = find(*_TARGET_NAMES)
    _read_targets(targets, default_targets, findings)
    if enabled is None and targets is None and inputs.is_script:
        sentence = f"{rank.origin} is the only adapter setting: the adapted layers are not known."
        findings.mark_uncertain("lora.targets", sentence)
    _read_copied_modules(inputs.settings, findings)
    findings.record_dropout(find(*_DROPOUT_NAMES))
    prepared = find("kbit_preparation")
    _read_type(inputs.settings, findings)
    if quantization is not None:
        findings.record_from(quantization, "lora.quantization", quantization.value)
        findings.record_from(prepared, "lora.kbit_preparation", as_bool(prepared))
    return True


def _read_type(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the adapters' type where it is stated, by a tool's flag or as that of the weights that they adapt."""
    setting = settings.find("lora_adapter_dtype")
    if setting is None:
        return
    word = as_word(setting) or ""
    if word == _AS_WEIGHTS:
        halves = [name for name in ("bf16", "fp16") if settings.is_true(name)]
        dtype = DTYPE_NAMES.get(as_word(settings.find("dtype", "torch_dtype")) or "") or next(iter(halves), None)
    else:
        dtype = DTYPE_NAMES.get(word)
    findings.record_from(setting, "lora.adapter_dtype", dtype)


def _quantization(settings: LayeredSettings) -> Setting | None:
    """Return how bitsandbytes stores frozen weights; None: it does not quantize them."""
    four, eight = settings.find_true("load_in_4bit"), settings.find_true("load_in_8bit")
    double = settings.find(*_DOUBLE_QUANTIZATION_NAMES)
    if four is not None and double is not None and as_bool(double):
        origin = "; ".join(dict.fromkeys((four.origin, double.origin)))
        return Setting(value="nf4-double", origin=origin, written=four.written)
    if four is not None:
        return four.with_value("nf4")
    return eight.with_value("int8") if eight is not None else None


def _read_targets(setting: Setting | None, default: Setting | None, findings: FindingCollector) -> None:
    names: Any = setting.value if setting is not None else None
    if isinstance(names, str):
        words = names.removeprefix("[").removesuffix("]").split(",")  # fire takes [q_proj,v_proj] for a list
        names = [name for word in words if (name := word.strip().strip("'\""))]
    if setting is not None and names in (["all-linear"], ["all"]):
        findings.record_from(setting, "lora.targets", "all-linear")
    elif setting is not None and isinstance(names, list) and all(isinstance(name, str) for name in names):
        if any(not _PATTERN_CHARACTERS.isdisjoint(name) for name in names):
            findings.warn(
                f"{setting.origin}: the pattern {names} is not understood; give lora.targets as a list of names."
            )
            findings.require("lora.targets")
        else:
            findings.record_from(setting, "lora.targets", names)
    elif default is not None:
        findings.infer("lora.targets", default.value, default.origin)
    else:
        findings.require("lora.targets")


def _read_copied_modules(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the modules of which peft trains a copy beside the adapters: the embedding, the head."""
    setting = settings.find(*_COPIED_NAMES)
    names = words_of(setting)
    if setting is None or not names:
        return
    known = all(name in (*_EMBEDDINGS, *_HEADS) for name in names)
    if known and findings.get("training.trainable") is None:
        findings.record_from(setting, "training.trainable", [f"*{name}.*" for name in names])
        if {*names} & {*_EMBEDDINGS} and {*names} & {*_HEADS}:  # peft copies both even where they share their weight
            sentence = (
                "if the head and the embedding share their weight, peft trains a copy of each, but one is counted."
            )
            findings.doubt(f"{setting.origin}: {sentence}", "more", *MODEL_STATES, unless="training.trainable")
    else:
        findings.doubt(f"{setting.origin} may change the memory and is not counted.", "more", *MODEL_STATES)


# Reads the model (``name``, ``model.*``) from transformers' and TRL's arguments.


_MODEL_NAMES = ("model_name_or_path", "config_name", "model_name", "model_id", "model_path", "base_model", "model")
_TASKS = get_args(Task)
_TASKS_WITH_LABELS = ("sequence-classification", "token-classification")


def model_init_layer(
    settings: LayeredSettings, filesystem: FilesystemView, findings: FindingCollector
) -> dict[str, Setting]:
    """Return the settings in TRL's ``model_init_kwargs`` (dtype, attention)."""
    given = settings.find("model_init_kwargs")
    if given is None:
        return {}
    try:
        table, source = table_of_setting(given.value, filesystem)
    except InputError as error:
        findings.mark_uncertain("training.precision", f"Could not read model_init_kwargs: {error.message}")
        return {}
    return layer_from_table(table, source=source or given.origin)


def read_model(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record ``name`` and ``model.*``. A folder becomes its full path."""
    find = inputs.settings.find
    if (name := find("run_name")) is not None:
        findings.record("name", str(name.value), name.origin)
    model = find(*_MODEL_NAMES)
    if model is not None and isinstance(model.value, str):
        folder = inputs.filesystem.resolve(model.value)
        if (base := base_of_adapters(folder)) is not None:
            origin = f"base_model_name_or_path in the adapter_config.json of {model.origin}"
            findings.record("model.id", base, origin)
            if not inputs.settings.is_true("use_peft"):
                findings.mark_uncertain(
                    "training.trainable", f"{model.origin}: whether its adapters train is not known."
                )
        is_file = folder.suffix == ".json" and os.access(folder, os.F_OK)
        is_folder = (
            is_file or os.access(folder / "config.json", os.F_OK) or model.value.startswith(("/", "./", "../", "~"))
        )
        findings.record_from(model, "model.id", str(folder) if is_folder else model.value)
    _read_task(inputs, findings)
    _read_num_labels(inputs, findings)
    _read_attention(find("attn_implementation", "attention_implementation"), inputs.versions, findings)


def base_of_adapters(folder: Path) -> str | None:
    """Return the base model of a folder that holds adapters and no model."""
    file = folder / "adapter_config.json"
    if not os.access(file, os.R_OK) or os.access(folder / "config.json", os.F_OK):
        return None
    try:
        name = read_table(file).get("base_model_name_or_path")
    except InputError:
        return None
    return name if isinstance(name, str) else None


def _read_task(inputs: TrainerInputs, findings: FindingCollector) -> None:
    task = inputs.settings.find("task")
    peft_task, tasks = inputs.settings.find("lora_task_type", "task_type"), library("transformers").words["task"]
    if task is not None and task.value in _TASKS:
        findings.record_from(task, "model.task", task.value)
    elif peft_task is not None and (known := tasks.get(as_word(peft_task) or "")):
        findings.record_from(peft_task, "model.task", known)
    elif inputs.trl is not None and inputs.trl.task is not None:
        origin = f"the model that TRL's {inputs.trl.name} trains"
        findings.infer("model.task", inputs.trl.task, origin)


def _read_num_labels(inputs: TrainerInputs, findings: FindingCollector) -> None:
    setting, task = inputs.settings.find("num_labels"), findings.get("model.task")
    if task is None or task.value not in _TASKS_WITH_LABELS:
        return
    if setting is not None and (number := as_int(setting)) is not None and number > 0:
        findings.record_from(setting, "model.num_labels", number)
    elif inputs.trl is not None and inputs.trl.num_labels is not None:
        origin = f"the head that TRL's {inputs.trl.name} gives the model"
        findings.infer("model.num_labels", inputs.trl.num_labels, origin)


def _read_attention(setting: Setting | None, versions: Mapping[str, str], findings: FindingCollector) -> None:
    name = str(setting.value).partition("@")[0] if setting is not None else ""
    if setting is not None and name in (known := library("transformers").words["attention"]):
        findings.record_from(setting, "model.attention", known[name])
        return
    if setting is not None:
        sentence = f"{setting.origin}: vramtop does not know attention {setting.value!r}; the default is assumed."
        findings.mark_uncertain("model.attention", sentence)
    default = usual("transformers", "model.attention", versions)
    origin = "transformers' default"
    if default != usual("transformers", "model.attention", {}):
        versions_known = ", ".join(f"{name} {versions[name]}" for name in ("transformers", "torch") if name in versions)
        origin = f"default of transformers with {versions_known}"
    findings.infer("model.attention", default, origin)
    version = versions.get("transformers")
    older = usual("transformers", "model.attention", {"transformers": "4.0"})
    if isinstance(version, AssumedVersion) and default != older:
        sentence = f"transformers {version} is assumed ({version.why}); much older versions use {older} attention."
        findings.mark_uncertain("model.attention", sentence, direction="more")


# Defaults that follow from a model's config: the dtype of its weights and the layers that peft adapts.


def known_config(
    model: Finding | Setting | None, environ: Mapping[str, str], *, folders: bool = True
) -> Mapping[str, Any] | None:
    """Return the model's config; None if it cannot be found here.

    Args:
        model: its name or folder.
        environ: the environment that names the caches to search.
        folders: whether a relative name may be a folder of ours.
    """
    if model is None:
        return None
    from ...model.find_config import resolve_model  # here: 20 ms that recognising a running program does not need

    name = str(model.value)
    try:
        return resolve_model(ModelSpec(id=name), environ=environ, folders=folders or name.startswith("/")).config
    except (VramtopError, OSError):  # a model that cannot be estimated is reported elsewhere
        return None


def given_config(findings: FindingCollector, environ: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the config of the model that the user gives in place of the one that is read; None if it is not found."""
    config = findings.get("model.config")
    if config is not None and isinstance(config.value, Mapping):
        return config.value
    return known_config(findings.get("model.id"), environ)


def hidden_size(config: Mapping[str, Any] | None) -> int | None:
    """Return the hidden size as DeepSpeed's integration finds it; None if the config is unknown or has none."""
    for table in (config or {}, (config or {}).get("text_config") or {}):
        names = ("hidden_size", "n_embd", "d_model", "dim")  # transformers' attribute maps know them as hidden_size
        for value in (*(table.get(name) for name in names), max(table.get("hidden_sizes") or [0])):
            if isinstance(value, int) and value > 0:
                return value
    return None


def stored_dtype(config: Mapping[str, Any] | None) -> Setting | None:
    """Return the dtype that ``dtype="auto"`` loads; None if the config is unknown."""
    if config is None:
        return None
    from ...model.checkpoint import stored_dtype as dtype_of_config  # here, as above

    dtype = dtype_of_config(config)
    if dtype is None:  # such configs are older than the field, and their checkpoints are in fp32
        return Setting.default("fp32", "the model's config names no dtype, so fp32")
    return Setting.default(dtype, f"the model's config says {dtype}")


def default_targets(config: Mapping[str, Any] | None) -> Setting | None:
    """Return the layers that peft adapts by default; None if peft requires them to be named."""
    if config is None:
        return Setting.default(["q_proj", "v_proj"], "peft's default for most decoder models")
    kind = str(config.get("model_type"))
    targets = library("peft").default["target_modules"].get(kind)
    return Setting.default(targets.split(), f"peft's default for {kind}") if targets else None


# Reads a job's precision from the dtype of its weights and from mixed precision, wherever each is set.


_DTYPES = ("dtype", "torch_dtype", "model_dtype")


def read_precision(
    inputs: TrainerInputs, *, lora: bool, config: Mapping[str, Any] | None, findings: FindingCollector
) -> None:
    """Record ``training.precision``, and ``parallel.reduce_dtype`` for FSDP.

    Args:
        inputs: everything known about the program.
        lora: whether only adapters are trained.
        config: the model's config, where it can be read.
        findings: collects what is read.
    """
    mixed = mixed_precision(inputs, findings)
    kind = _counted_kind(mixed, findings)
    fsdp, deepspeed = inputs.fsdp is not None, inputs.deepspeed is not None
    inputs.settings.find(*_DTYPES)  # of which nothing is left where weights are kept in fp32
    if mixed is not None and kind in HALF and (deepspeed or (fsdp and not lora)):
        library = "DeepSpeed" if deepspeed else "FSDP under accelerate"
        origin = f"{mixed.origin}; {library} also keeps trained weights in fp32"
        findings.record("training.precision", f"{kind}-mixed", origin, written=mixed.written)
    elif (weights := _weights(inputs, config, findings)) is not None or kind is not None:
        precision = trainer_precision(None if weights is None else weights.value, kind, keeps_fp32=False)
        written = any(part is not None and part.written for part in (mixed, weights))
        findings.record("training.precision", precision, _origin(mixed, weights), written=written)
        if lora and mixed is not None and kind in HALF and precision in HALF and not fsdp:
            findings.record("lora.autocast", True, f"{mixed.origin}: autocast", written=mixed.written)
        if mixed is not None and {kind, precision} == set(HALF) and findings.get("lora.quantization") is None:
            sentence = f"{mixed.origin} computes in {kind}, and the weights are {precision}: autocast may keep a copy."
            findings.doubt(sentence, "more", "weights", unless="training.precision")
    elif findings.get("training.precision") is None:
        sentence = "The dtype of the weights is not set; they are counted as the checkpoint stores them."
        findings.mark_uncertain("training.precision", sentence, direction="more")
    if mixed is not None and kind in HALF and fsdp:
        origin = f"accelerate reduces FSDP's gradients in the type of {mixed.origin}"
        findings.infer("parallel.reduce_dtype", kind, origin)


def mixed_precision(inputs: TrainerInputs, findings: FindingCollector) -> Setting | None:
    """Return ``bf16``, ``fp16``, ``fp8`` or ``no``; None if it is set nowhere.

    DeepSpeed's file decides where it speaks of the type, then TrainingArguments, then accelerate: the trainer ignores
    accelerate's choice when it has one of its own.
    """
    asked = _asked(inputs, findings)
    file = inputs.deepspeed if inputs.deepspeed is not inputs.accelerate else None  # rather than accelerate's flags
    from_file = file.find("mixed_precision") if file is not None else None
    if file is None or from_file is None:
        return asked
    own_loop = inputs.accelerate.is_true("script_own_loop") and inputs.accelerate.find("mixed_precision") is None
    if own_loop:
        return from_file
    return _with_what_accelerate_adds(from_file, asked, file.find("precision_sections"), findings)


def _with_what_accelerate_adds(
    from_file: Setting, asked: Setting | None, named: Setting | None, findings: FindingCollector
) -> Setting:
    """Return the precision that accelerate leaves in DeepSpeed's configuration.

    It adds the sections ``bf16`` and ``fp16`` that are absent, on where they are asked for and off otherwise
    (``DeepSpeedPlugin.set_mixed_precision`` in accelerate/utils/dataclasses.py), so that an older name counts nowhere.
    """
    sections = named.value if named is not None else ()
    wanted = as_word(asked) or "no"
    kind = "bf16" if wanted == "fp8" else wanted
    by_old_name = from_file.value == "bf16" and "bf16" not in sections
    if asked is not None and kind in HALF and kind not in sections and (by_old_name or from_file.value == "no"):
        return asked
    if by_old_name:
        return Setting.default("no", f"{from_file.origin}, an old setting that accelerate treats as bf16: false")
    if asked is not None and kind in HALF and kind != from_file.value:
        sentence = (
            f"{asked.origin} contradicts {from_file.origin}, which is used here; transformers rejects this combination."
        )
        findings.mark_uncertain("training.precision", sentence)
    return from_file


def _asked(inputs: TrainerInputs, findings: FindingCollector) -> Setting | None:
    """Return what TrainingArguments ask for, else accelerate."""
    for name in HALF:
        if (flag := inputs.settings.find_true(name)) is not None:
            return flag.with_value(name)
    chosen = inputs.accelerate.find("mixed_precision")
    default = inputs.settings.find("bf16_unless_fp16")
    bf16 = inputs.settings.find("bf16")
    if default is not None and as_bool(bf16) is None:
        return Setting.default("bf16", default.origin)
    if bf16 is not None and as_bool(bf16) is False and (chosen is None or as_word(chosen) == "no"):
        return Setting(value="no", origin=bf16.origin)
    if chosen is not None and as_word(chosen) not in ("no", "fp8", *HALF):
        sentence = f"{chosen.origin}: mixed precision {chosen.value!r} is not known."
        findings.mark_uncertain("training.precision", sentence)
        return None
    return chosen


def _counted_kind(mixed: Setting | None, findings: FindingCollector) -> str | None:
    """Return the mixed precision that is counted: bf16 for fp8, whose 8-bit copies are uncertain."""
    kind = as_word(mixed) if mixed is not None else None
    if mixed is None or kind != "fp8":
        return kind
    findings.warn(f"fp8 ({mixed.origin}) is counted as bf16 mixed precision.")
    findings.add_uncertainty("more", "weights", unless="training.precision")  # copies in 8 bits
    findings.add_uncertainty("less", "activations", unless="training.precision")
    return "bf16"


def _weights(inputs: TrainerInputs, config: Mapping[str, Any] | None, findings: FindingCollector) -> Setting | None:
    """Return the dtype in which the weights are loaded: ``bf16``, ``fp16`` or ``fp32``."""
    stored = stored_dtype(config)
    setting = inputs.settings.find(*_DTYPES)
    if setting is None:
        return None
    word = as_word(setting) or ""
    known = DTYPE_NAMES.get(as_word(stored) or "")
    by_version = setting.origin == f"default of {framework_with_version('transformers', inputs.versions)}"
    remote = inputs.settings.find("script_remote_code")
    if by_version and remote is not None and word != "auto" and (config is None or "auto_map" in config):
        sentence = f"{remote.origin}: the model's own code may set its dtype; the weights are counted as stored."
        findings.mark_uncertain("training.precision", sentence, direction="more")
        word = "auto"
    if word in DTYPE_NAMES:
        return setting.with_value(DTYPE_NAMES[word])
    if word != "auto":
        sentence = f"{setting.origin}: vramtop does not know weights in {setting.value!r}."
        findings.mark_uncertain("training.precision", sentence)
        return None
    if by_version and "transformers" not in inputs.versions and (known or "bf16") in HALF:
        sentence = f"{setting.origin}: weights are loaded as stored; before transformers 5 they were loaded in fp32."
        findings.mark_uncertain("training.precision", sentence, direction="more")
    if stored is not None and known is not None:
        return Setting.default(known, f"dtype=auto ({setting.origin}), {stored.origin}")
    return Setting.default(
        "bf16", f"dtype=auto ({setting.origin}), and the model's config was not found; bf16 is assumed"
    )


def _origin(mixed: Setting | None, weights: Setting | None) -> str:
    parts = [mixed.origin] if mixed is not None else []
    if weights is not None:
        parts.append(f"weights in {weights.value} ({weights.origin})")
    return "; ".join(parts)


# Reads output folders and reporting (``run.*``) and checkpoints (``saving.*``) from transformers' arguments.


_NO_TARGETS = ("none", "all")
"""Values of ``report_to`` that name no library; ``all`` means whatever is installed."""


def read_run(inputs: TrainerInputs, findings: FindingCollector) -> None:
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


def read_saving(inputs: TrainerInputs, findings: FindingCollector, *, lora: bool) -> None:
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


# Facts about what a script does to its models: a changed config, frozen parameters, models beside the trained one.


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
    read_run(inputs, findings)
    config = _model_config(program, inputs.settings)
    lora = read_lora(inputs, default_targets(config), findings)
    read_precision(inputs, lora=lora, config=config, findings=findings)
    read_parallel(inputs, findings)
    if inputs.deepspeed is not None:
        record_zero_sizes(inputs.deepspeed, findings, lambda: hidden_size(given_config(findings, program.environ)))
    read_device_map(inputs, program.environ, findings)
    read_saving(inputs, findings, lora=lora)
    findings.record_from(inputs.settings.find("script_keeps_outputs"), "training.keep_outputs", True)
    if (trainer := inputs.trl_trainer(findings)) is not None:
        zero3 = inputs.deepspeed is not None and as_int(inputs.deepspeed.find("zero_stage")) == 3
        sharding: Literal["zero3", "fsdp"] | None = "zero3" if zero3 else "fsdp" if inputs.fsdp is not None else None
        trainer.read_other_models(Setup(adapters=lora, sharding=sharding, filesystem=inputs.filesystem))
        trainer.read_rollout(inputs.ranks)
    inputs.settings.find(*understood)
    warn_of_unread(inputs.settings, findings)
    return findings.build()


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
        findings=findings,
    )
    started = LayeredSettings(*layers).find("script_processes")
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
    if world.one_per_gpu and shards:
        world = WorldSize(ranks=None)
    return replace(inputs, deepspeed=deepspeed, fsdp=fsdp, world=world)


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
    return any(
        running[name] != config[name] and all(type(table[name]) is int for table in (running, config))
        for name in shared
    )
