"""A step (``training.*``) from TrainingArguments: batch, length, accumulation, optimizer, checkpointing, loss.

The settings have transformers' names, wherever they were read: flags, YAML or JSON, a script's literals, defaults.
"""

import re
from collections.abc import Mapping
from typing import Any

from ...job.rules.optimizers.by_name import OptimizerChoice, optimizer_by_trainer_name
from ..arguments.table import doubt_arguments, library, record_arguments
from ..source.data_files import NULL_IS_WRONG, layer_of_setting
from ..source.evidence import FindingCollector
from ..source.settings import LayeredSettings, Setting, as_bool, as_int, as_word, words_of
from ..source.versions import is_at_least
from ..trl.liger import read_liger
from .trainer_inputs import TrainerInputs

_NAMES = library("transformers").aliases
_ACCUMULATION = "gradient_accumulation_steps"
_WITHOUT_TEXT = re.compile(
    r"image-(?!text)|segmentation|detection|estimation|video|ctc|speech|audio|keypoint|matting|rnnt|tdt"
)
"""Tasks of models that read no text."""


def read_step(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record the batch, length, accumulation, optimizer, checkpointing, loss and compile settings."""
    _read_micro_batch(inputs, findings)
    trainer = inputs.trl_trainer(findings)
    if trainer is not None:
        names, settings = _NAMES["length"], inputs.settings
        trainer.read_length(None if settings.is_unset(*names) else settings.find(*names))
    else:
        _read_length(inputs, findings)
    _read_varying_lengths(inputs, findings)
    _read_evaluation(inputs.settings, findings)
    findings.record_count("training.gradient_accumulation", _accumulation(inputs))
    if (task := findings.get("model.task")) is not None and task.value == "multiple-choice":
        findings.record_count("training.sequences_per_example", inputs.settings.find("num_choices"))
    _read_optimizer(inputs, findings)
    _read_compile(inputs, findings)
    record_arguments(library("transformers"), "step", inputs.settings, findings)
    doubt_arguments(library("transformers"), "step", inputs.settings, findings)
    if trainer is not None and trainer.checkpoints_quantized:
        origin = f"{trainer.trl} checkpoints a quantized model (prepare_model_for_int8_training)"
        findings.record("training.activation_checkpointing", "full", origin)
    _read_checkpointing(inputs, findings)
    if trainer is not None:
        trainer.read_loss(own_loss=inputs.own_loss)
    elif (liger := read_liger(inputs.settings, findings)) is not None:
        findings.record_from(liger, "training.loss", "fused-linear" if liger.written else "unsloth")
    _read_loss_of_evaluation(inputs, findings)
    if inputs.method is not None and inputs.trl is None:
        findings.warn(f"TRL's method {inputs.method} is not supported: its additional models are not counted.")
        findings.add_uncertainty("more", "weights", "activations", "logits")


def _read_loss_of_evaluation(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record an evaluation with Liger-Kernel, whose forward pass leaves out the logits in training only.

    TRL's SFTTrainer asks it to do so in evaluation too since 0.29; unsloth, which uses it unasked, has its own loss.
    """
    loss, liger = findings.get("training.loss"), inputs.settings.find_true("use_liger_kernel", "use_liger")
    asks = inputs.method == "sft" and is_at_least("trl", (0, 29), inputs.versions)
    fused = loss is not None and loss.value == "fused-linear" and liger is not None and liger.written
    asks = asks or inputs.settings.is_true("fused_in_evaluation")
    if liger is not None and fused and not asks and findings.get("training.evaluation_batch") is not None:
        origin = f"{liger.origin}: Liger-Kernel computes all logits in evaluation"
        findings.infer("training.evaluation_loss", "full", origin)


def _accumulation(inputs: TrainerInputs) -> Setting | None:
    """Return the accumulation steps; an engine that the script makes itself counts them by its own configuration."""
    written = inputs.settings.find(_ACCUMULATION)
    if inputs.deepspeed is not None and inputs.settings.is_true("script_deepspeed_engine"):
        own, total, micro = (inputs.deepspeed.find(name) for name in (_ACCUMULATION, "train_batch", "micro_batch"))
        if own is not None and as_int(own):
            return own
        sequences, size = as_int(total), (as_int(micro) or 0) * (inputs.ranks or 0)
        if own is None and total is not None and sequences and size and not sequences % size:
            return total.with_value(sequences // size)
        if own is None and total is None:
            return Setting.default(1, "DeepSpeed's default gradient_accumulation_steps")
    return _prefer_written(_prefer_written(written, inputs.deepspeed, _ACCUMULATION), inputs.accelerate, _ACCUMULATION)


def _read_compile(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record whether the backend of torch.compile fuses kernels; ``eager`` runs the model as it is."""
    backend = inputs.settings.find("torch_compile_backend") or inputs.accelerate.find("dynamo_backend")
    word = as_word(backend)
    if backend is None or word in (None, "no", "none"):
        return
    findings.record_from(backend, "training.compile", word == "inductor")
    if word not in ("inductor", "eager"):
        sentence = f"{backend.origin} = {word}: what this backend of torch.compile keeps is not known."
        findings.mark_uncertain("training.compile", sentence, direction="either")


def _read_micro_batch(inputs: TrainerInputs, findings: FindingCollector) -> None:
    batch = _prefer_written(inputs.settings.find(*_NAMES["batch"]), inputs.deepspeed, "micro_batch")
    if (batch is None or not batch.written) and inputs.deepspeed is not None:
        batch = _share_of_train_batch(inputs, inputs.deepspeed) or batch
    for name in NULL_IS_WRONG:
        if (unset := inputs.settings.find_unset(name)) is not None and unset.written:
            findings.refuse("training.micro_batch", unset)
    if batch is not None and inputs.method == "grpo" and inputs.settings.is_true("script_unsloth"):
        batch = _as_unsloth_makes_it(batch, inputs, findings)
    findings.record_count("training.micro_batch", batch)


def _as_unsloth_makes_it(batch: Setting, inputs: TrainerInputs, findings: FindingCollector) -> Setting:
    """Return the batch of GRPO, which unsloth raises to ``num_generations`` (``check_num_generations`` in rl.py).

    It does so where a step is no multiple of it; until 2025, where a micro-batch is none.
    """
    find, generations = inputs.settings.find, inputs.settings.find("num_generations")
    micro, group, steps = as_int(batch), as_int(generations), as_int(find(_ACCUMULATION)) or 1
    if generations is None or not micro or not group or micro % group == 0:
        return batch
    if find("steps_per_generation", "generation_batch_size") is None and micro * steps * (inputs.ranks or 1) % group:
        return Setting(value=group, origin=f"{generations.origin}, to which unsloth raises {batch.origin} = {micro}")
    sentence = f"{batch.origin}: versions of unsloth until 2025 raise the batch of {micro} to the {group} generations."
    findings.mark_uncertain("training.micro_batch", sentence, direction="more")
    return batch


def _share_of_train_batch(inputs: TrainerInputs, deepspeed: LayeredSettings) -> Setting | None:
    """Return a rank's share of DeepSpeed's ``train_batch_size``, which counts all ranks and accumulation steps."""
    total = deepspeed.find("train_batch")
    steps, ranks = as_int(deepspeed.find("gradient_accumulation_steps")), inputs.ranks
    sequences = as_int(total)
    if total is not None and sequences is None:
        return total
    if total is None or sequences is None or not steps or not ranks or sequences % (steps * ranks):
        return None
    share = sequences // (steps * ranks)
    return Setting(value=share, origin=f"{total.origin}, over {ranks} ranks and {steps} accumulation steps")


def _read_length(inputs: TrainerInputs, findings: FindingCollector) -> None:
    source = inputs.settings.find("max_source_length", "source_max_len", *_NAMES["query"])
    target = inputs.settings.find(*_NAMES["target"], "max_new_tokens", *_NAMES["passage"])
    targets = inputs.settings.find(*_NAMES["target"])
    both = as_int(source), as_int(target)
    task = findings.get("model.task")
    is_one = task is None or task.value != "seq2seq-lm"  # whose encoder and decoder each take theirs
    whole = inputs.settings.find(*_NAMES["length"])
    if whole is None and task is not None and _WITHOUT_TEXT.search(str(task.value)):
        findings.release("training.sequence_length")  # images and sounds have sizes of their own
        return
    if source is not None and target is not None and both[0] and both[1] and is_one:
        origin = f"the longest source and target ({source.origin}; {target.origin})"
        sentence = f"{origin} are assumed to form one sequence."
        findings.record("training.sequence_length", both[0] + both[1], origin)
        findings.mark_uncertain("training.sequence_length", sentence, direction="either")
        return
    findings.record_count("training.sequence_length", whole)
    if is_one or whole is None:
        return
    if as_int(targets):
        findings.record_count("training.loss_length", targets)
    else:
        sentence = f"{whole.origin}: targets are assumed to be as long, but they may have another length."
        findings.doubt(sentence, "either", "activations", "logits")


def _read_varying_lengths(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record whether batches differ in length, by the data settings; nothing where these leave it open.

    Tools and TRL's trainers pad a batch to its longest sequence unless they pack them; axolotl's
    ``pad_to_sequence_len``, and ``pad_to_max_length`` of transformers' example scripts, pad to the limit.
    What a script's own collator does is not read.
    """
    key, settings = "training.varying_lengths", inputs.settings
    packed, padded = settings.find_true("packing"), settings.find(*_NAMES["padded"])
    unpadded = padded if padded is not None and as_bool(padded) is False else None
    if padded is not None and as_bool(padded):
        findings.record_from(padded, key, False)
    elif packed is not None:
        findings.record_from(packed if unpadded is None else unpadded, key, unpadded is not None)
    elif as_word(sampling := settings.find("train_sampling_strategy")) == "group_by_length" and sampling is not None:
        findings.record_from(sampling, key, True)
    elif varying := settings.find_true("group_by_length", "padding_free") or unpadded or settings.find("packing"):
        findings.record_from(varying, key, True)
    elif inputs.trl is not None:
        findings.infer(key, True, "TRL pads a batch to its longest sequence unless it packs them")


def _read_evaluation(settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the evaluation batch size if evaluation is enabled, and warn if all logits stay on the GPU.

    transformers' default is 8 sequences (``per_device_eval_batch_size``), whatever the training batch is. With
    ``compute_metrics``, ``Trainer.evaluation_loop`` gathers the logits of all batches on the GPU, until
    ``eval_accumulation_steps`` batches have been gathered (transformers 5.23, trainer.py).
    """
    strategy = settings.find("eval_strategy", "evaluation_strategy", "val_set_size")
    metrics = settings.find("compute_metrics")
    moves = settings.find("eval_accumulation_steps", "preprocess_logits_for_metrics")
    generates = settings.find_true("predict_with_generate")
    moves = moves or settings.find_true("prediction_loss_only", "batch_eval_metrics") or generates
    if strategy is None or as_word(strategy) in ("no", "0", "0.0") or as_bool(strategy) is False:
        return
    names = ("per_gpu_eval_batch_size", "per_device_eval_batch_size")  # the old one counts first
    findings.record_count("training.evaluation_batch", settings.find(*names))
    task = findings.get("model.task")
    over_words = task is None or str(task.value).endswith("-lm")  # a classifier's are a few numbers
    if metrics is not None and moves is None and over_words:
        sentence = (
            f"Evaluation keeps the logits of the whole validation set on the GPU ({metrics.origin}); they are not "
            "counted (sequence length x vocabulary x 2 to 4 bytes per sequence). eval_accumulation_steps moves them "
            "to CPU RAM."
        )
        findings.doubt(sentence, "more", "logits")
    if metrics is not None and generates is not None:
        sentence = (
            f"Evaluation generates text ({generates.origin}); the keys and values of its tokens, and of each beam, are "
            "not counted."
        )
        findings.doubt(sentence, "more", "activations")


def _prefer_written(setting: Setting | None, other: LayeredSettings | None, name: str) -> Setting | None:
    """Return a written setting of either source rather than a default; ``auto`` leaves it to the trainer's."""
    if setting is not None and setting.written:
        return setting
    found = other.find(name) if other is not None else None
    return setting if found is None or found.value == "auto" else found


def _read_checkpointing(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record checkpointing and offloading of activations; FSDP's own checkpointing wins over the trainer's.

    What a script switches on in its model, ``gradient_checkpointing=False`` does not switch off (``trainer.py``).
    """
    find, accelerate = inputs.settings.find, inputs.accelerate
    of_model, setting = find("activation_checkpointing"), find("activation_checkpointing", "gradient_checkpointing")
    if of_model is not None and of_model.written and as_bool(of_model) is not False:
        setting = of_model
    by_fsdp = accelerate.find("fsdp_activation_checkpointing")
    if by_fsdp is None:
        layer = layer_of_setting(find("fsdp_config"), inputs.filesystem, findings, key="parallel.strategy")
        by_fsdp = layer.get("activation_checkpointing") or layer.get("fsdp_activation_checkpointing")
    offload = find("activation_offloading") or accelerate.find("fsdp_activation_checkpointing_offload")
    if by_fsdp is not None and as_bool(by_fsdp):
        findings.record("training.activation_checkpointing", "full", by_fsdp.origin)
    elif setting is not None:
        on = as_bool(setting)
        findings.record_from(setting, "training.activation_checkpointing", "full" if on else "none")
    if offload is not None and as_bool(offload):
        findings.record_from(offload, "training.activation_offload", True)
    _read_checkpointing_options(inputs, findings)


def _read_checkpointing_options(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Read ``every_n_layers`` and ``offload``, which transformers has since about 5.23."""
    given = inputs.settings.find("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
    layer = layer_of_setting(given, inputs.filesystem, findings, key="training.activation_checkpointing")
    if (offload := layer.get("offload")) is not None and offload.value is True:
        findings.record_from(offload, "training.activation_offload", True)
    if (every := layer.get("every_n_layers")) is not None and every.value != 1:
        sentence = f"{every.origin}: only every {every.value}th layer is checkpointed; the estimate assumes all layers."
        findings.mark_uncertain("training.activation_checkpointing", sentence, direction="more")


def _read_optimizer(inputs: TrainerInputs, findings: FindingCollector) -> None:
    """Record the optimizer with its options, and what is uncertain about it."""
    settings = inputs.settings
    if (adafactor := settings.find_true("adafactor")) is not None:
        findings.record_from(adafactor, "training.optimizer", "adafactor")
        return
    setting = settings.find("optim")
    if setting is None or not isinstance(setting.value, OptimizerChoice):  # a script's own --optimizer is its own word
        setting = settings.find("optim", "optimizer")
    if inputs.deepspeed is not None:  # which transformers takes in place of the Trainer's (``deepspeed_optim_sched``)
        setting = inputs.deepspeed.find("optimizer") or setting
    if setting is not None and isinstance(setting.value, OptimizerChoice):  # a class of a script, or DeepSpeed's
        findings.record_optimizer(setting, setting.value)
    elif setting is not None:
        choice = optimizer_by_trainer_name(str(setting.value), _optimizer_arguments(settings, findings))
        findings.record_optimizer(setting, choice)


def _optimizer_arguments(settings: LayeredSettings, findings: FindingCollector) -> dict[str, Any]:
    """Return ``optim_args``, with the settings that the Trainer passes beside them."""
    given = settings.find("optim_args")
    found: dict[str, Any] = {}
    if given is not None and isinstance(given.value, Mapping):
        found |= given.value
    elif given is not None:
        parts = (part.partition("=") for part in str(given.value).replace(" ", "").split(",") if "=" in part)
        found |= {name: value for name, _, value in parts}
    decay = settings.find("weight_decay")
    if decay is not None:
        found["weight_decay"] = decay.value
    if (targets := settings.find("optim_target_modules")) is not None:
        words = words_of(targets)
        found["targets"] = "all-linear" if words in (["all-linear"], ["all_linear"]) else words
        if found["targets"] == words != ["attn", "mlp"]:  # as transformers' documentation has them
            found["targets"] = "blocks"
            sentence = f"{targets.origin}: which layers these are is not read; those of all blocks are counted."
            findings.mark_uncertain("training.optimizer", sentence, direction="more")
    return found
