"""transformers.TrainingArguments and its relatives (TRL's configurations, ModelConfig, LoraConfig) to job keys.

Works on settings by transformers' names, wherever they were read: flags, YAML or JSON, a script's literals, defaults.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...common.errors import InputError
from ..source.data_files import layer_from_table, table_of_setting
from ..source.evidence import FindingCollector
from ..source.filesystem_view import FilesystemView
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word
from ..source.versions import framework_with_version, version_tuple

LENGTHS = (
    *("max_length", "max_seq_length", "max_seq_len", "block_size", "cutoff_len", "model_max_length"),
    *("sequence_length", "sequence_len", "seq_length", "seq_len", "max_source_length"),
)
_BATCHES = (
    "per_device_train_batch_size",
    "per_gpu_train_batch_size",
    "micro_batch_size",
    "train_batch_size",
    "batch_size",
)
_OPTIMIZERS = {
    **dict.fromkeys(("adamw_torch", "adamw_hf", "adamw_torch_xla", "adamw_torch_npu_fused", "adamw", "adam"), "adamw"),
    **dict.fromkeys(("adamw_torch_fused", "adamw_apex_fused"), "adamw-fused"),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_bnb", "adamw_8bit", "adamw_torch_8bit"), "adamw-8bit"),
    **dict.fromkeys(("paged_adamw", "paged_adamw_32bit"), "paged-adamw"),
    **dict.fromkeys(("lion", "lion_32bit"), "lion"),
    "paged_adamw_8bit": "paged-adamw-8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "muon": "muon",
}
_ATTENTION = {
    **{name: name for name in ("sdpa", "eager", "flash_attention_2", "flash_attention_3")},
    "kernels-community/flash-attn": "flash_attention_2",
    "kernels-community/flash-attn2": "flash_attention_2",
    "kernels-community/flash-attn3": "flash_attention_3",
    "kernels-community/vllm-flash-attn3": "flash_attention_3",
}
_TASKS = {
    "seq_cls": "sequence-classification",
    "token_cls": "token-classification",
    "seq_2_seq_lm": "seq2seq-lm",
    "question_ans": "question-answering",
}
_TARGETS = ("lora_target_modules", "lora_target", "lora_targets")
PAIRS = ("dpo", "reward", "orpo", "cpo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """All that is known of a program that trains with transformers."""

    settings: LayeredSettings
    accelerate: LayeredSettings
    deepspeed: LayeredSettings | None
    method: str | None
    """TRL's: ``sft``, ``dpo``, ...; None without TRL."""
    versions: Mapping[str, str]
    filesystem: FilesystemView
    """Where the program's paths lead."""
    ranks: int | None = None
    """Of the whole job."""


def model_init(settings: LayeredSettings, filesystem: FilesystemView, findings: FindingCollector) -> dict[str, Setting]:
    """What TRL's ``model_init_kwargs`` says of the model (dtype, attention)."""
    given = settings.find("model_init_kwargs")
    if given is None:
        return {}
    try:
        table, source = table_of_setting(given.value, filesystem)
    except InputError as error:
        findings.mark_uncertain("training.precision", f"model_init_kwargs is not counted: {error.message}")
        return {}
    return layer_from_table(table, source=source or given.origin)


def read_model(arguments: Arguments, findings: FindingCollector) -> None:
    """Put ``name`` and ``model.*``. A folder becomes its full path."""
    find = arguments.settings.find
    if (name := find("run_name")) is not None:
        findings.put("name", str(name.value), name.origin)
    model = find("model_name_or_path", "config_name", "model_name", "model_id", "model_path", "base_model", "model")
    if model is not None and isinstance(model.value, str):
        folder = arguments.filesystem.resolve(model.value)
        is_folder = os.access(folder / "config.json", os.F_OK) or model.value.startswith(("/", "./", "../", "~"))
        findings.put("model.id", str(folder) if is_folder else model.value, model.origin, written=model.written)
    task = find("task")
    lora_task = find("lora_task_type", "task_type")
    if task is not None and task.value in (*_TASKS.values(), "causal-lm", "masked-lm", "feature-extraction"):
        findings.put("model.task", task.value, task.origin)
    elif lora_task is not None and (as_word(lora_task) or "") in _TASKS:
        findings.put("model.task", _TASKS[as_word(lora_task) or ""], lora_task.origin)
    elif arguments.method == "reward":
        findings.put("model.task", "sequence-classification", "TRL's reward trainer scores sequences", written=False)
    _attention(find("attn_implementation", "attention_implementation"), findings)


def read_step(arguments: Arguments, findings: FindingCollector) -> None:
    """Put batch, length, accumulation, optimizer, checkpointing, compile and loss."""
    _micro_batch(arguments, findings)
    _length(arguments, findings)
    _accumulation(arguments, findings)
    _optimizer(arguments, findings)
    _checkpointing(arguments, findings)
    _loss(arguments, findings)
    compiled = arguments.settings.find("torch_compile", "compile")
    dynamo = arguments.accelerate.find("dynamo_backend")
    if compiled is not None and as_bool(compiled):
        findings.put("training.compile", True, compiled.origin)
    elif dynamo is not None and as_word(dynamo) not in ("no", "none"):
        findings.put("training.compile", True, dynamo.origin)
    if arguments.settings.is_true("auto_find_batch_size"):
        sentence = "auto_find_batch_size is on: after an out-of-memory error the batch is smaller than written."
        findings.mark_uncertain("training.micro_batch", sentence, direction="less")
    if arguments.method in ("dpo", "kto", "grpo", "rloo"):
        findings.warn(
            f"TRL's {arguments.method} trainer may hold a reference model and generate text; neither is counted."
        )
        if not arguments.settings.is_true("use_peft"):  # adapters are switched off for the reference
            findings.add_uncertainty("more", "weights")
        if arguments.method in ("grpo", "rloo"):
            findings.add_uncertainty("more", "activations")


def read_lora(arguments: Arguments, usual_targets: Setting | None, findings: FindingCollector) -> bool:
    """Put ``lora.*`` where adapters are trained. Returns whether they are.

    Args:
        arguments: what is known of the program.
        usual_targets: the layers that are adapted where the program names none; None: it has to name them.
        findings: where it is put.
    """
    find = arguments.settings.find
    asked = find("use_peft", "use_lora", "lora", "peft")
    rank = find("lora_r", "lora_rank")
    wanted = as_bool(asked) if asked is not None else (rank is not None and arguments.method is None)
    quantized = _quantization(arguments)
    if not wanted:
        if rank is not None and rank.written:
            findings.warn(f"{rank.origin} has no effect without use_peft.")
            find(*_TARGETS)  # nor have they
        if quantized is not None:
            findings.warn(f"{quantized.origin}: quantized weights without LoRA adapters are not counted as quantized.")
            findings.add_uncertainty("less", "weights")
        return False
    default = 16 if arguments.method else 8
    rank = rank or Setting(value=default, origin="the default rank, written nowhere", written=False)
    if (number := as_int(rank)) is not None:
        findings.put("lora.rank", number, rank.origin, written=rank.written)
    _targets(find(*_TARGETS), usual_targets, findings)
    if quantized is not None:
        findings.put("lora.quantization", quantized.value, quantized.origin, written=quantized.written)
    return True


def _attention(setting: Setting | None, findings: FindingCollector) -> None:
    name = str(setting.value).partition("@")[0] if setting is not None else ""
    if setting is not None and name in _ATTENTION:
        findings.put("model.attention", _ATTENTION[name], setting.origin)
        return
    if setting is not None:
        sentence = f"{setting.origin}: attention {setting.value!r} is not known here and is counted as sdpa."
        findings.mark_uncertain("model.attention", sentence)
    findings.put("model.attention", "sdpa", "transformers' usual choice, written nowhere", written=False)


def _micro_batch(arguments: Arguments, findings: FindingCollector) -> None:
    batch = _prefer_written(arguments.settings.find(*_BATCHES), arguments.deepspeed, "micro_batch")
    if (batch is None or not batch.written) and arguments.deepspeed is not None:
        batch = _from_train_batch(arguments) or batch
    number = as_int(batch)
    if batch is None or number is None:
        if batch is not None:
            findings.warn(f"{batch.origin}: {batch.value!r} is not a batch size.")
        return
    origin = batch.origin
    if arguments.method in PAIRS:
        number, origin = 2 * number, f"{batch.origin}, times 2: each example is a chosen and a rejected sequence"
    findings.put("training.micro_batch", number, origin, written=batch.written)


def _from_train_batch(arguments: Arguments) -> Setting | None:
    """DeepSpeed's ``train_batch_size`` counts all ranks and accumulation steps."""
    deepspeed = arguments.deepspeed
    total = deepspeed.find("train_batch") if deepspeed is not None else None
    steps = as_int(deepspeed.find("gradient_accumulation_steps") if deepspeed is not None else None)
    if total is None or not steps or not arguments.ranks or (as_int(total) or 0) % (steps * arguments.ranks):
        return None
    share = (as_int(total) or 0) // (steps * arguments.ranks)
    return Setting(value=share, origin=f"{total.origin}, over {arguments.ranks} ranks and {steps} accumulation steps")


def _length(arguments: Arguments, findings: FindingCollector) -> None:
    length = arguments.settings.find(*LENGTHS)
    prompt, completion = (as_int(arguments.settings.find(f"max_{part}_length")) for part in ("prompt", "completion"))
    if prompt and completion and (length is None or not length.written):
        origin = "max_prompt_length + max_completion_length"
        findings.put("training.sequence_length", prompt + completion, origin)
    elif (number := as_int(length)) is not None and length is not None:
        packed = arguments.settings.is_true("packing")
        origin = length.origin if packed or arguments.method is None else f"{length.origin}, the longest a batch can be"
        findings.put("training.sequence_length", number, origin, written=length.written)


def _accumulation(arguments: Arguments, findings: FindingCollector) -> None:
    name = "gradient_accumulation_steps"
    setting = _prefer_written(arguments.settings.find(name), arguments.deepspeed, name)
    setting = _prefer_written(setting, arguments.accelerate, name)
    if setting is not None and (number := as_int(setting)) is not None:
        findings.put("training.gradient_accumulation", number, setting.origin, written=setting.written)


def _prefer_written(setting: Setting | None, other: LayeredSettings | None, name: str) -> Setting | None:
    """What is written wins over a default, wherever it is written."""
    if setting is not None and setting.written:
        return setting
    return (other.find(name) if other is not None else None) or setting


def _optimizer(arguments: Arguments, findings: FindingCollector) -> None:
    setting = arguments.settings.find("optim", "optimizer")
    if arguments.settings.is_true("adafactor"):
        setting = arguments.settings.find("adafactor")
        findings.put("training.optimizer", "adafactor", setting.origin if setting else "adafactor")
        return
    setting = _prefer_written(setting, arguments.deepspeed, "optimizer")
    if setting is None:
        return
    word = as_word(setting) or ""
    known = _OPTIMIZERS.get(word)
    if known is None:
        sentence = f"{setting.origin}: optimizer {setting.value!r} is not known here and is counted as adamw."
        findings.mark_uncertain("training.optimizer", sentence)
        findings.put("training.optimizer", "adamw", f"{setting.origin}, counted as adamw", written=False)
        return
    momentum = arguments.settings.find("optim_args")
    if known == "sgd" and momentum is not None and "momentum" in str(momentum.value):
        known = "sgd-momentum"
    findings.put("training.optimizer", known, setting.origin, written=setting.written)


def _checkpointing(arguments: Arguments, findings: FindingCollector) -> None:
    setting = arguments.settings.find("activation_checkpointing", "gradient_checkpointing")
    fsdp = arguments.accelerate.find("fsdp_activation_checkpointing")
    nested = arguments.settings.find("fsdp_config")
    if fsdp is None and nested is not None:
        fsdp = _fsdp_checkpointing(nested, arguments.filesystem)
    offload = arguments.settings.find("activation_offloading") or arguments.accelerate.find(
        "fsdp_activation_checkpointing_offload"
    )
    if fsdp is not None and as_bool(fsdp):
        findings.put("training.activation_checkpointing", "full", fsdp.origin)
    elif setting is not None:
        on = as_bool(setting)
        findings.put(
            "training.activation_checkpointing", "full" if on else "none", setting.origin, written=setting.written
        )
    if offload is not None and as_bool(offload):
        findings.put("training.activation_offload", True, offload.origin, written=offload.written)
    _checkpointing_options(arguments, findings)


def _checkpointing_options(arguments: Arguments, findings: FindingCollector) -> None:
    """``every_n_layers`` and ``offload``, which transformers has since 5.23 or so."""
    given = arguments.settings.find("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
    if given is None:
        return
    try:
        table, _ = table_of_setting(given.value, arguments.filesystem)
    except InputError as error:
        findings.mark_uncertain("training.activation_checkpointing", f"{given.origin} is not counted: {error.message}")
        return
    if table.get("offload") is True:
        findings.put("training.activation_offload", True, f"offload in {given.origin}")
    if (every := table.get("every_n_layers")) not in (None, 1):
        sentence = f"{given.origin}: only every {every}th layer is checkpointed; the estimate counts all of them."
        findings.mark_uncertain("training.activation_checkpointing", sentence, direction="more")


def _fsdp_checkpointing(config: Setting, filesystem: FilesystemView) -> Setting | None:
    try:
        table, source = table_of_setting(config.value, filesystem)
    except InputError:  # said where the sharding is read
        return None
    layer = layer_from_table(table, source=source or config.origin)
    return layer.get("activation_checkpointing") or layer.get("fsdp_activation_checkpointing")


def _loss(arguments: Arguments, findings: FindingCollector) -> None:
    liger = arguments.settings.find("use_liger_kernel", "use_liger")
    kind = arguments.settings.find("loss_type")
    if liger is not None and as_bool(liger):
        findings.put("training.loss", "fused-linear", liger.origin, written=liger.written)
        return
    if arguments.method != "sft" or kind is None:
        return
    newer = (version_tuple(arguments.versions.get("trl")) or (1, 16)) >= (1, 16)
    if as_word(kind) == "chunked_nll":
        findings.put("training.loss", "chunked", kind.origin, written=kind.written)
    elif as_word(kind) == "nll" and newer:  # 1.16 computes "nll" in chunks too and deprecates the other name
        findings.put(
            "training.loss", "chunked", f"{kind.origin}, chunked in {framework_with_version('trl', arguments.versions)}"
        )


def _quantization(arguments: Arguments) -> Setting | None:
    """The storage of frozen weights, or None."""
    find = arguments.settings.find
    four, eight = find("load_in_4bit"), find("load_in_8bit")
    double = find("use_bnb_nested_quant", "bnb_4bit_use_double_quant", "double_quant")
    if four is not None and as_bool(four):
        if as_bool(double):
            origin = "; ".join(dict.fromkeys(setting.origin for setting in (four, double) if setting is not None))
            return Setting(value="nf4-double", origin=origin, written=four.written)
        return Setting(value="nf4", origin=four.origin, written=four.written)
    if eight is not None and as_bool(eight):
        return Setting(value="int8", origin=eight.origin)
    return None


def _targets(setting: Setting | None, usual: Setting | None, findings: FindingCollector) -> None:
    names: Any = setting.value if setting is not None else None
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    if setting is not None and names in (["all-linear"], ["all"]):
        findings.put("lora.targets", "all-linear", setting.origin, written=setting.written)
    elif setting is not None and isinstance(names, list) and all(isinstance(name, str) for name in names):
        if any(set(name) & set("*|()[]\\$^") for name in names):
            findings.warn(f"{setting.origin}: the pattern {names} is not understood; give lora.targets as names.")
            findings.require("lora.targets")
            return
        findings.put("lora.targets", names, setting.origin, written=setting.written)
    elif usual is not None:
        findings.put("lora.targets", usual.value, usual.origin, written=False)
    else:
        findings.require("lora.targets")
