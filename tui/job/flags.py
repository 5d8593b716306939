"""The flags of a command that takes a job: one for each key of the job file, and other tools' names for them."""

import argparse
import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.field_help import is_switch
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import check_value, job_keys, parse_assignment, with_changes
from vramtop.estimator.job.resolved_job import QLORA, USUAL_LORA_RANK
from vramtop.estimator.job.rules.strategies import DTYPE_NAMES, HALF, STRATEGIES

# Values of flags that have other tools' names, as settings of a job.
#
# Keys are those of the job file, or one of those below, from which several flags together make a setting.


Settings = Mapping[str, Any]
Reader = Callable[[str], Settings]

AMP, WEIGHTS = "mixed precision", "type of the weights"
"""``bf16``, ``fp16`` or ``no``; ``bf16``, ``fp16`` or ``fp32``."""
TUNING = "kind of fine-tuning"
"""``lora`` or ``full``."""
BITS, FP8 = "bits of the frozen weights", "fp8"
PROCESSES, NODES = "number of processes", "number of machines"
GLOBAL_BATCH = "global batch"
SERVED = "engine of the flag"
"""``vllm`` or ``sglang``; only their servers have the flag, so that it asks for one where a model stands alone."""
PROMPT, COMPLETION = "longest prompt", "longest completion"
METHOD = "training method"
"""One of TRL's, such as ``dpo``."""
OF_METHOD = "trl."
"""Begins a key that is an argument of TRL's trainers, which only a training method has."""
RANDOM = "random weights"
SPREAD = "strategy over GPUs"
"""The flag that named a strategy, for which the number of GPUs must be known."""
OF_INPUT = "input."
"""Begins a key that is a size of images or audio, which only a model that is given them has."""
SOFT = "?"
"""Begins a key whose value counts only if no other flag sets that key."""
LENGTH = "training.sequence_length"
_MAX_DIGITS = 15
_SHORTEST_LENGTH = 512
"""From here on a number behind ``--context`` is a length: sequences are split over far fewer GPUs."""
_YES, _NO = ("", "true", "yes", "on", "1"), ("false", "no", "off", "0")
_PRECISIONS = {"bf16-true": "bf16", "16-true": "fp16", "32": "fp32", "32-true": "fp32", "16-mixed": "fp16-mixed"}
"""Names that Lightning has for precisions."""
_FSDP_SHARDING = {
    "full_shard": ("fsdp1", "full"),
    "shard_grad_op": ("fsdp1", "grad_op"),
    "hybrid_shard": ("fsdp1", "hybrid"),
    "hybrid_shard_zero2": ("fsdp1", "hybrid_grad_op"),
    "no_shard": ("ddp", "full"),
}
_FSDP_SHARDING_BY_NUMBER = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_FLASH = {
    **dict.fromkeys(("", "true", "2", "fa2", "auto"), "flash_attention_2"),
    **dict.fromkeys(("3", "fa3"), "flash_attention_3"),
    **dict.fromkeys(("false", "disabled", "sdpa"), "sdpa"),
}


_TASKS = {
    **dict.fromkeys(("clm", "causal", "text-generation", "lm"), "causal-lm"),
    **dict.fromkeys(("mlm", "fill-mask"), "masked-lm"),
    **dict.fromkeys(("seq-cls", "classification", "text-classification"), "sequence-classification"),
    **dict.fromkeys(("token-cls", "ner"), "token-classification"),
    **dict.fromkeys(("seq-2-seq-lm", "seq2seq", "translation", "summarization"), "seq2seq-lm"),
    **dict.fromkeys(("question-ans", "qa"), "question-answering"),
}
"""Names that peft's ``TaskType`` and transformers' pipelines have for tasks."""
_METHODS = ("sft", "dpo", "grpo", "orpo", "kto", "rloo", "reward")
_GENERATING = ("grpo", "rloo")
_TRL_BATCH = 8
"""Sequences of a device in TRL, whose GRPO and RLOO compare as many completions of a prompt (``GRPOConfig``)."""
_METHODS_BY_WORD = {**{name: name for name in _METHODS}, "rm": "reward", "reward-modeling": "reward"}


def same_as(key: str) -> Reader:
    """Return a reader of another name of a job key: its value is written as in a job file."""
    return lambda text: dict([parse_assignment(f"{key}={text}")])


def fixed(settings: Settings) -> Reader:
    """Return a reader of a flag without a value."""
    return lambda _: settings


def switch(on: Settings, off: Settings | None = None) -> Reader:
    """Return a reader of a flag that may be followed by true or false."""

    def read(text: str) -> Settings:
        if text.lower() in _YES:
            return on
        if text.lower() in _NO:
            return off or {}
        raise InputError(f"{text!r} is neither true nor false")

    return read


def named(values: Mapping[str, Settings]) -> Reader:
    """Return a reader of a flag with a choice of words."""

    def read(text: str) -> Settings:
        found = values.get(text.lower())
        if found is None:
            raise InputError(f"{text!r} is not one of {', '.join(word for word in values if word)}")
        return found

    return read


def tokens(text: str) -> Settings:
    """Read a number of tokens: ``4096``, ``4,096``, ``4k`` or ``1m``."""
    plain = text.replace(",", "").replace("_", "").lower()
    unit = {"k": 2**10, "m": 2**20}.get(plain[-1:], 1)
    digits = plain if unit == 1 else plain[:-1]
    if not digits.removeprefix("-").isdecimal() or len(digits) > _MAX_DIGITS:
        raise InputError(f"{text!r} is not a number of tokens, such as 4096 or 4k")
    return {LENGTH: int(digits) * unit}


def context_ranks(text: str) -> Settings:
    """Read ``--context``, the GPUs over which sequences are split; a length of sequences is refused."""
    plain = text.replace(",", "").lower()
    if plain.removesuffix("k").isdecimal() and (plain.endswith("k") or int(plain[:10]) >= _SHORTEST_LENGTH):
        raise InputError(f"it is the number of GPUs that share a sequence; for the length write --seq-len {text}")
    return same_as("parallel.context")(text)


def number(key: str) -> Reader:
    """Return a reader of a whole number of at least 1."""

    def read(text: str) -> Settings:
        if not text.isdecimal() or not 1 <= int(text[:10]) < 2**31:
            raise InputError(f"{text!r} is not a whole number of at least 1")
        return {key: int(text)}

    return read


def argument(name: str) -> Reader:
    """Return a reader of a numeric argument of TRL's trainers."""

    def read(text: str) -> Settings:
        try:
            return {f"{OF_METHOD}{name}": float(text)}
        except ValueError:
            raise InputError(f"{text!r} is not a number") from None

    return read


def of_input(what: str) -> Reader:
    """Return a reader of a size of images or audio: ``images``, ``resolution``, ``seconds`` or ``frames``."""

    def read(text: str) -> Settings:
        from vramtop.estimator.program.named_models import read_size  # not at start-up

        return {f"{OF_INPUT}{name}": value for name, value in read_size(what, text).items()}

    return read


def lora(text: str) -> Settings:
    """Read ``--lora [RANK]``."""
    return {TUNING: "lora", **(number("lora.rank")(text) if text else {f"{SOFT}lora.rank": USUAL_LORA_RANK})}


def qlora(text: str) -> Settings:
    """Read ``--qlora [RANK]``."""
    weak = {f"{SOFT}{key}": value for key, value in QLORA.items()}
    return {**lora(text), BITS: "4", **weak}


def lora_targets(text: str) -> Settings:
    """Read names of layers, as a list or with commas or blanks between; ``all`` as LLaMA-Factory means it."""
    if text.startswith("["):
        return same_as("lora.targets")(text)
    words = text.replace(",", " ").split()
    return {"lora.targets": "all-linear" if words in (["all"], ["all-linear"]) else words, TUNING: "lora"}


def dtype(text: str) -> Settings:
    """Read the type in which the weights are loaded."""
    found = DTYPE_NAMES.get(text.lower().removeprefix("torch."))
    if found is None and text.lower() != "auto":
        raise InputError(f"{text!r} is not a dtype for weights; give bf16, fp16 or fp32")
    return {WEIGHTS: found} if found else {}


def precision(text: str) -> Settings:
    """Read a precision by its own name here, or by that of torch or Lightning."""
    return {"training.precision": {**DTYPE_NAMES, **_PRECISIONS}.get(text.lower(), text)}


def bits(text: str) -> Settings:
    """Read a number of bits of the frozen weights, as qlora.py and LLaMA-Factory have it; 16 quantizes nothing."""
    kinds = {"4": "nf4", "8": "int8"}
    if text in ("16", "32"):
        return {BITS: "none"}
    if text not in kinds:
        raise InputError(f"{text!r} is not a number of bits; give 4, 8 or 16")
    return {TUNING: "lora", BITS: text, f"{SOFT}lora.quantization": kinds[text]}


def optimizer(text: str) -> Settings:
    """Read an optimizer by its own name here, or by that of transformers' ``--optim``."""
    from vramtop.estimator.job.rules.optimizers.by_name import optimizer_by_trainer_name
    from vramtop.estimator.job.rules.optimizers.table import OPTIMIZERS

    if text in OPTIMIZERS or ":" in text or text == "unknown":
        return {"training.optimizer": text}
    choice = optimizer_by_trainer_name(text)
    if not choice.known:
        dashed = text.lower().replace("_", "-")
        return {"training.optimizer": dashed if dashed in OPTIMIZERS else text}
    settings: dict[str, Any] = {"training.optimizer": choice.name}
    if choice.options:
        settings["training.optimizer_options"] = dict(choice.options)
    if choice.in_backward:
        settings["training.optimizer_in_backward"] = True
    return settings


def engine(text: str) -> Settings:
    """Read an engine that generates text."""
    return {"training.mode": "inference", **same_as("inference.engine")(text.lower())}


def served_weights(text: str) -> Settings:
    """Read vLLM's ``--quantization``; ``4bit``, ``nf4``, ``8bit``, ``int8`` are bits of the weights in training too.

    Raises:
        InputError: it is not known.
    """
    word = text.lower().replace("-", "_")
    if (count := {"4bit": "4", "nf4": "4", "8bit": "8", "int8": "8"}.get(word)) is not None:
        return bits(count)
    from vramtop.estimator.model.checkpoint import WEIGHT_FORMATS  # not at start-up

    kinds = {**WEIGHT_FORMATS, "int4": "int4", "mxfp4": "mxfp4"}
    if word not in kinds:
        raise InputError(f"{text!r} is not known; give fp8, awq, gptq, int4, int8, mxfp4 or bitsandbytes")
    return {SERVED: "vllm", "inference.weights": kinds[word]}


def cache_dtype(text: str) -> Settings:
    """Read vLLM's ``--kv-cache-dtype``: ``fp8``, ``fp8_e5m2`` ..., or ``auto``."""
    word = text.lower()
    return {"inference.cache_dtype": "fp8" if word.startswith("fp8") else "auto" if word in DTYPE_NAMES else word}


def flash_attention(text: str) -> Settings:
    """Read ``--flash-attn [fa2]``."""
    if text.lower() not in _FLASH:
        raise InputError(f"{text!r} is not a version of FlashAttention; give 2 or 3")
    return {"model.attention": _FLASH[text.lower()]}


def attention(text: str) -> Settings:
    """Read transformers' ``--attn_implementation``."""
    short = {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "flash": "flash_attention_2"}
    word = text.lower().replace("-", "_")
    return {"model.attention": short.get(word, word)}


def checkpointing(text: str) -> Settings:
    """Read ``--gradient-checkpointing [true]``; ``unsloth`` keeps what is saved in CPU RAM too."""
    key = "training.activation_checkpointing"
    if text.lower() == "unsloth":
        return {key: "full", "training.activation_offload": True}
    if text.lower() in ("selective", "full", "none"):
        return {key: text.lower()}
    return switch({key: "full"}, {key: "none"})(text)


def fsdp(text: str) -> Settings:
    """Read ``--fsdp N``, or the words of the Trainer: ``--fsdp "full_shard auto_wrap offload"``."""
    if not text or text.isdecimal():
        count = number("parallel.data_shard")(text) if text else {}
        return {"parallel.strategy": "fsdp2", SPREAD: True, **count}
    words = text.lower().replace(",", " ").split()
    unknown = [word for word in words if word not in (*_FSDP_SHARDING, "auto_wrap", "offload")]
    chosen = [_FSDP_SHARDING[word] for word in words if word in _FSDP_SHARDING]
    if unknown or len(chosen) != 1:
        raise InputError(f"{text!r} is neither a number of GPUs nor one of {', '.join(_FSDP_SHARDING)}")
    ((strategy, sharding),) = chosen
    offload = {"parallel.cpu_offload": "all"} if "offload" in words else {}
    return {"parallel.strategy": strategy, "parallel.sharding": sharding, SPREAD: True, **offload}


def sharding_strategy(text: str) -> Settings:
    """Read accelerate's ``--fsdp_sharding_strategy``: a word, or its number."""
    numbered = dict(zip("12345", _FSDP_SHARDING_BY_NUMBER, strict=True))
    return fsdp(numbered.get(text, text))


def ddp(text: str) -> Settings:
    """Read ``--ddp [N]``."""
    count = number("parallel.data_replicate")(text) if text else {}
    return {"parallel.strategy": "ddp", SPREAD: True, **count}


def task(text: str) -> Settings:
    """Read a task by its own name here, by that of peft or a pipeline, or a training method that brings its task."""
    word = text.lower().replace("_", "-")
    method = _METHODS_BY_WORD.get(word)
    return {METHOD: method} if method else same_as("model.task")(_TASKS.get(word, word))


def stage(text: str) -> Settings:
    """Read a stage of ZeRO, or LLaMA-Factory's word for what is trained.

    Raises:
        InputError: it is neither.
    """
    methods = {"pt": "", "sft": "", "dpo": "dpo", "kto": "kto", "rm": "reward"}
    if (method := methods.get(text.lower())) is None:
        return zero(text)
    return {METHOD: method} if method else {}


def zero(text: str) -> Settings:
    """Read a stage of ZeRO; stage 0 shards nothing, as DDP."""
    stage = text.lower().removeprefix("stage").removeprefix("-").removeprefix("_")
    if stage not in ("0", "1", "2", "3"):
        raise InputError(f"{text!r} is not a ZeRO stage; give 1, 2 or 3")
    return {"parallel.strategy": "ddp" if stage == "0" else f"zero{stage}", SPREAD: True}


def deepspeed(text: str) -> Settings:
    """Refuse a file: whether all of it counts can only be told where the launch line is read."""
    if text.lower() in ("0", "1", "2", "3"):
        return zero(text)
    line = f"vramtop fit -- deepspeed train.py --deepspeed {text}"
    raise InputError(f"give the stage, as in --zero 3 --gpus 8, or the whole launch line, as in {line}")


def offload(what: str) -> Reader:
    """Return a reader of what is offloaded to ``cpu``; NVMe is not known here."""

    def read(text: str) -> Settings:
        if text.lower() == "none":
            return {}
        if text.lower() not in (*_YES, "cpu"):
            raise InputError(f"{text!r} is not a device to offload to; give cpu or none")
        return {f"{SOFT if what == 'optimizer' else ''}parallel.cpu_offload": what}  # weights go with their optimizer

    return read


# Flags by the names that other tools give to settings: what each means here, and what it sets.
#
# Meanings are those of the tool that has the name: transformers' Trainer and TRL (``--per-device-train-batch-size``,
# ``--max-length``, ``--bf16``, ``--optim``), axolotl (``--sequence-len``), LLaMA-Factory (``--cutoff-len``),
# torchtune, unsloth, DeepSpeed (``--train-batch-size``), Megatron-LM (``--global-batch-size``), torchrun and
# accelerate (``--nproc-per-node``, ``--num-processes``), vLLM (``--max-model-len``).


class FamiliarFlag(msgspec.Struct, frozen=True, kw_only=True):
    """A flag with other tools' names."""

    names: tuple[str, ...]
    meaning: str
    """One sentence for the help."""
    settings: Reader
    """What it sets: the text of its value to settings by job key."""
    placeholder: str
    """What stands for its value; empty: it takes none."""
    value_optional: bool
    choices: tuple[str, ...]
    """Words that complete its value."""
    remark: str
    """What the output says when it is used: the meaning, where tools differ about it."""
    key: str
    """The job key of which it is no more than another name; empty: there is none."""


def _flag(
    names: str,
    value: str,
    settings: str | Settings | Reader,
    meaning: str = "",
    *,
    choices: str = "",
    remark: str = "",
    key: str = "",
) -> FamiliarFlag:
    """Make a flag.

    Args:
        names: with blanks between.
        value: what stands for its value, in brackets if it may be left out; empty: it takes none.
        settings: reads its value; a job key: written as in a job file; settings: whatever the value.
        meaning: one sentence.
        choices: words that complete its value, with blanks between.
        remark: what the output says when it is used.
        key: the job key of which it is no more than another name, if ``settings`` is none.
    """
    if isinstance(settings, str):
        key, settings = settings, same_as(settings)
    elif isinstance(settings, Mapping):
        settings = fixed(settings)
    return FamiliarFlag(
        names=tuple(names.split()),
        meaning=meaning,
        settings=settings,
        placeholder=value.strip("[]"),
        value_optional=value.startswith("["),
        choices=tuple(choices.split()),
        remark=remark,
        key=key,
    )


def _switch(names: str, meaning: str, on: Settings, off: Settings | None = None) -> FamiliarFlag:
    return _flag(names, "[true|false]", switch(on, off), meaning, choices="true false")


def _of_engine(engine: str, name: str, flag: str, settings: Reader, value: str = "N") -> FamiliarFlag:
    shown = {"vllm": "vLLM", "sglang": "SGLang"}[engine]
    meaning = f"{shown}'s name for --{flag}; alone with a model, it means that {shown} serves the model."
    return _flag(name, value, lambda text: {SERVED: engine, **settings(text)}, meaning)


_CHECKPOINTING, _OFFLOAD = "training.activation_checkpointing", "training.activation_offload"
_4_BIT = {TUNING: "lora", BITS: "4"}
_SHARE = "inference.gpu_memory_utilization"
_TRAINED = "trained with LoRA; without training: the weights of the model."

FAMILIAR_FLAGS: tuple[FamiliarFlag, ...] = (
    _flag("--batch-size --per-device-train-batch-size --per-device-batch-size --per-gpu-train-batch-size "
          "--micro-batch-size --train-micro-batch-size-per-gpu --mbs --bs -b --batch --bsz --batchsize", "N",
          "training.micro_batch", "Sequences per GPU in one forward pass; the same as --micro-batch."),
    _flag("--global-batch-size --train-batch-size --gbs", "N", number(GLOBAL_BATCH),
          "Sequences per optimizer step over all GPUs, as in DeepSpeed and Megatron.",
          remark="all sequences of an optimizer step, as in DeepSpeed and Megatron."),
    _flag("--gradient-accumulation-steps --grad-accum --grad-acc --accumulate-grad-batches --ga", "N",
          "training.gradient_accumulation", "The same as --gradient-accumulation."),
    _flag("--per-device-eval-batch-size --eval-batch-size", "N",
          "training.evaluation_batch", "The same as --evaluation-batch."),
    _flag("--seq-len --max-length --max-seq-length --max-seq-len --sequence-len --seq-length --cutoff-len "
          "--context-length --block-size --model-max-length --seq --seqlen --max-seqlen --length --ctx --ctx-len "
          "--ctx-size --n-ctx --num-ctx --context-len --context-size --context-window", "N", tokens,
          "Tokens per sequence, such as 4096 or 4k; the same as --sequence-length."),
    _flag("--images", "SIZE", of_input("images"),
          "Images of an example, of a model that reads images: 2x1024x768 (number x height x width), 1024x768 or 2."),
    _flag("--resolution --image-size", "SIZE", of_input("resolution"),
          "Pixels of a side of the images, or 1024x768 (height x width)."),
    _flag("--seconds --audio-seconds", "N", of_input("seconds"),
          "Seconds of audio of an example, of a model that reads speech."),
    _flag("--frames --num-frames", "N", of_input("frames"), "Frames of a video of an example."),
    _switch("--channels-last", "Keep the channels of a pixel side by side in memory, in a model of images.",
            {f"{OF_INPUT}channels_last": True}),
    _flag("--lora --use-lora --use-peft", "[RANK]", lora, "Train LoRA adapters of this rank (default: 16)."),
    _flag("--qlora", "[RANK]", qlora,
          "Train LoRA adapters of this rank (default: 16) on all linear layers of a 4-bit model (nf4-double)."),
    _flag("--adapter --finetuning-type --train-type", "KIND",
          named({"full": {TUNING: "full"}, "none": {TUNING: "full"}, "lora": lora(""), "qlora": qlora("")}),
          "What is trained: full, lora or qlora.", choices="full lora qlora"),
    _flag("--lora-r --peft-lora-r --rank -r --r", "N", "lora.rank", "The same as --lora-rank."),
    _flag("--lora-target-modules --lora-target --target-modules", "NAMES", lora_targets,
          "The same as --lora-targets; all means all-linear."),
    _flag("--full --full-finetune --full-finetuning", "", {TUNING: "full"}, "Train all parameters, without adapters."),
    _switch("--load-in-4bit --4bit --use-4bit --int4", f"4-bit frozen weights (nf4), {_TRAINED}",
            {**_4_BIT, f"{SOFT}lora.quantization": "nf4"}),
    _switch("--load-in-8bit --8bit --use-8bit --int8", f"8-bit frozen weights, {_TRAINED}",
            {TUNING: "lora", BITS: "8", f"{SOFT}lora.quantization": "int8"}),
    _flag("--bits --quantization-bit", "N", bits,
          "Bits of the frozen weights: 4 (nf4) or 8, trained with LoRA; 16: not quantized.", choices="4 8 16"),
    _flag("--awq --gptq", "", {"inference.weights": "int4", SERVED: "vllm"},
          "4-bit AWQ or GPTQ weights: served, or frozen under LoRA (--lora-quantization int4)."),
    _switch("--from-scratch --train-from-scratch", "Train all parameters, from random weights.",
            {TUNING: "full", RANDOM: True}),
    _switch("--double-quant --use-bnb-nested-quant --bnb-4bit-use-double-quant",
            "Also quantize the constants of 4-bit weights (nf4-double).",
            {**_4_BIT, "lora.quantization": "nf4-double"}),
    *(
        _switch(f"--{name}" if name == "bf16" else f"--{name} --amp",
                f"The Trainer's {name}: autocast, weights as stored; in inference: {name} weights.",
                {AMP: name}, {f"{SOFT}{AMP}": "no"})
        for name in ("bf16", "fp16")
    ),
    _flag("--engine", "NAME", engine,
          "Generate text with transformers, vllm or sglang; the same as --inference --inference-engine.",
          choices="transformers vllm sglang"),
    _flag("--vllm --serve", "", engine("vllm"), "vLLM serves the model; the same as --engine vllm."),
    _flag("--sglang", "", engine("sglang"), "SGLang serves the model; the same as --engine sglang."),
    _flag("--fp8", "", {FP8: True},
          "8-bit floating-point weights for inference; in training the same as --bf16."),
    _flag("--fp32", "", {"training.precision": "fp32"}, "fp32 weights and computation."),
    _flag("--pure-bf16", "", {"training.precision": "bf16"},
          "Weights and computation in bf16, without autocast; the same as --precision bf16."),
    _flag("--mixed-precision", "TYPE", named({kind: {AMP: kind} for kind in ("no", "bf16", "fp16")}),
          "accelerate's mixed precision: no, bf16 or fp16; the same as --bf16, --fp16.",
          choices="no bf16 fp16"),
    _flag("--dtype --torch-dtype --model-dtype", "TYPE", dtype,
          "Dtype for loading the weights: auto (as stored), bfloat16, float16 or float32.",
          choices="auto bfloat16 float16 float32"),
    _flag("--gradient-checkpointing --use-gradient-checkpointing --grad-checkpointing --recompute --gc "
          "--enable-activation-checkpointing --checkpoint-activations --recompute-granularity --grad-ckpt "
          "--gradient-ckpt --ckpt",
          "[true|false|unsloth]", checkpointing,
          "Recompute activations (--activation-checkpointing full); unsloth: and keep the checkpoints in CPU RAM.",
          choices="true false full selective unsloth"),
    _flag("--recompute-activations", "", {_CHECKPOINTING: "selective"},
          "Recompute attention only (--activation-checkpointing selective)."),
    _switch("--activation-offloading --enable-activation-offloading", "The same as --activation-offload.",
            {_OFFLOAD: True}, {_OFFLOAD: False}),
    _flag("--optim", "NAME", optimizer,
          "The optimizer: the Trainer's name, such as paged_adamw_8bit, or a name of --optimizer."),
    _switch("--adafactor", "An old Trainer flag: the same as --optimizer adafactor.",
            {"training.optimizer": "adafactor"}),
    _flag("--8bit-adam --use-8bit-adam --adam8bit", "", {"training.optimizer": "adamw-8bit"},
          "The same as --optimizer adamw-8bit."),
    _flag("--flash-attention --flash-attn --use-flash-attn --use-flash-attention-2 --flash-attention-2 --flash",
          "[2|3]", flash_attention, "FlashAttention 2, or the version given.", choices="2 3"),
    _flag("--attn-implementation --attn", "NAME", attention, "The same as --attention.",
          choices="sdpa eager flash_attention_2 flash_attention_3"),
    _flag("--sdpa --xformers", "", {"model.attention": "sdpa"},
          "Attention that does not store its scores (--attention sdpa)."),
    _flag("--eager", "", {"model.attention": "eager"}, "Attention that stores its scores (--attention eager)."),
    _switch("--liger --use-liger-kernel --use-liger --enable-liger-kernel",
            "Liger-Kernel's loss, which does not store the logits (--loss fused-linear).",
            {"training.loss": "fused-linear"}, {"training.loss": "full"}),
    _flag("--unsloth", "", {f"{SOFT}training.loss": "fused-linear", f"{SOFT}{_CHECKPOINTING}": "full",
                            f"{SOFT}{_OFFLOAD}": True},
          "Unsloth's defaults: a loss without logits, and --gradient-checkpointing unsloth.",
          remark=(
              "a loss without logits, and checkpointing that offloads to CPU RAM, as in its CLI; adapters and 4-bit "
              "weights come from --lora, --qlora."
          )),
    _switch("--torch-compile", "The same as --compile.", {"training.compile": True}, {"training.compile": False}),
    _flag("--fsdp", "[N]", fsdp,
          "FSDP2 over N GPUs (default: --gpus); with the Trainer's words, such as full_shard: FSDP1 over --gpus."),
    _flag("--fsdp-sharding-strategy", "NAME", sharding_strategy,
          "accelerate's FSDP1 over --gpus: FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, or its number.",
          choices="full_shard shard_grad_op hybrid_shard no_shard"),
    _flag("--ddp", "[N]", ddp, "A whole copy of the model on each of N GPUs (default: --gpus)."),
    _flag("--zero --zero-stage --deepspeed-stage", "STAGE", zero,
          "DeepSpeed's ZeRO, stage 1, 2 or 3, over the GPUs of --gpus.", choices="1 2 3"),
    _flag("--stage", "STAGE", stage,
          "The same as --zero; also takes LLaMA-Factory's stages sft, rm, dpo and kto.",
          choices="1 2 3 sft rm dpo kto"),
    *(
        _flag(f"--zero{n} --zero-{n}", "", {"parallel.strategy": f"zero{n}"}, f"The same as --strategy zero{n}.")
        for n in (1, 2, 3)
    ),
    _flag("--deepspeed", "STAGE", deepspeed,
          "The same as --zero; to use a DeepSpeed file, give the whole launch line after --.", choices="1 2 3"),
    _flag("--num-processes --nproc-per-node --nproc --num-gpus --n-gpus --ngpus --world-size", "N", number(PROCESSES),
          "Processes, one per GPU, as in torchrun and accelerate; DDP unless you give another strategy."),
    _flag("--nnodes --num-nodes --num-machines", "N", number(NODES),
          "Machines with --nproc-per-node processes each."),
    _flag("--tp --tensor-parallel --tensor-parallel-size --tensor-model-parallel-size", "N", "parallel.tensor",
          "The same as --tensor."),
    _flag("--pp --pipeline-parallel --pipeline-parallel-size --pipeline-model-parallel-size", "N",
          "parallel.pipeline", "The same as --pipeline."),
    _flag("--cp --context-parallel --context-parallel-size", "N", context_ranks, "The same as --context.",
          key="parallel.context"),
    _flag("--ep --expert-parallel --expert-parallel-size --expert-model-parallel-size", "N", "parallel.expert",
          "The same as --expert."),
    _flag("--offload-optimizer --offload-optimizer-device", "[cpu|none]", offload("optimizer"),
          "Optimizer states in CPU RAM (--cpu-offload optimizer).", choices="cpu none"),
    _flag("--offload-param --offload-param-device --fsdp-offload-params", "[cpu|none]", offload("all"),
          "Weights and optimizer states in CPU RAM (--cpu-offload all).", choices="cpu none"),
    *(
        _flag(f"--{name}", "", {METHOD: name},
              f"Train with TRL's {name.upper()}: its loss and its trainer's extra memory.")
        for name in _METHODS
    ),
    _flag("--beta", "NUMBER", argument("beta"),
          "TRL's: with --grpo or --rloo, the trainer holds a reference model unless this is 0; no effect otherwise."),
    _switch("--use-vllm", "TRL's: with --grpo or --rloo, vLLM generates the completions.",
            {f"{OF_METHOD}use_vllm": True}),
    _flag("--vllm-mode", "MODE", named({mode: {f"{OF_METHOD}vllm_mode": mode} for mode in ("colocate", "server")}),
          "TRL's: vLLM on the GPUs of training (colocate), or on others (server).", choices="colocate server"),
    _flag("--vllm-gpu-memory-utilization", "SHARE", argument("vllm_gpu_memory_utilization"),
          "TRL's: share of each GPU for a colocated vLLM."),
    _flag("--max-prompt-length", "N", number(PROMPT),
          "Tokens of a prompt; prompt and completion together make the sequence length."),
    _flag("--max-completion-length --max-new-tokens", "N", number(COMPLETION), "Tokens of the longest completion."),
    _flag("--inference", "", {"training.mode": "inference"},
          "Generate text instead of training; the same as --mode inference."),
    _of_engine("vllm", "--max-model-len", "sequence-length", tokens),
    _of_engine("vllm", "--max-num-seqs", "micro-batch", same_as("training.micro_batch")),
    _of_engine("vllm", "--gpu-memory-utilization", "inference-gpu-memory-utilization", same_as(_SHARE), "SHARE"),
    _of_engine("vllm", "--max-num-batched-tokens", "inference-prefill-tokens", same_as("inference.prefill_tokens")),
    _of_engine("vllm", "--kv-cache-dtype", "inference-cache-dtype", cache_dtype, "TYPE"),
    _of_engine("vllm", "--quantization", "inference-weights", served_weights, "NAME"),
    _of_engine("sglang", "--max-running-requests", "micro-batch", same_as("training.micro_batch")),
    _of_engine("sglang", "--mem-fraction-static", "inference-gpu-memory-utilization", same_as(_SHARE), "SHARE"),
    _flag("--enforce-eager", "", {SERVED: "vllm", "inference.cuda_graphs": False},
          "vLLM's: no CUDA graphs (--inference-cuda-graphs false)."),
    _flag("--output-dir", "FOLDER", "run.output_dir", "The same as --set run.output_dir=FOLDER."),
    _flag("--logging-dir", "FOLDER", "run.logging_dir", "The same as --set run.logging_dir=FOLDER."),
    _flag("--save-total-limit", "N", "run.save_total_limit", "The same as --set run.save_total_limit=N."),
)  # fmt: skip


# Flags that people copy along from other tools' command lines, on which the memory of a GPU does not depend.


IGNORED_SWITCHES = (
    *("--tf32", "--packing", "--group-by-length", "--do-train", "--do-eval", "--overwrite-output-dir", "--push-to-hub"),
)
"""Ignored flags that may stand without a value."""
IGNORED_FLAGS = (
    *("--learning-rate", "--lr", "--num-train-epochs", "--epochs", "--num-epochs", "--max-steps", "--warmup-steps"),
    *("--warmup-ratio", "--weight-decay", "--lr-scheduler-type", "--seed", "--logging-steps", "--save-steps"),
    *("--eval-steps", "--max-grad-norm", "--lora-alpha", "--quant-type", "--dataset", "--num-generations"),
    *("--dataset-name", "--run-name", "--save-strategy", "--logging-strategy", "--dataloader-num-workers"),
    *IGNORED_SWITCHES,
)
"""All ignored flags; a value follows each that is no switch."""


TRUST_KEY = "model.trust_remote_code"
"""The key whose flag is that of transformers' own scripts."""
_KEYS_WITHOUT_FLAG = (
    "name",
    "model.id",
    "model.config",
    "other_models",
    "target.gpu",
    "target.devices",
)
_TABLES_WITHOUT_FLAGS = ("software", "run", "unsure", "rollout", "saving", "zero", "program")
"""Tables that are rarely given outside of a job file; ``--set`` reaches them."""
_PREFIXED_TABLES = ("lora", "inference")
_HEADINGS = {
    "model": "model",
    "training": "training step",
    "lora": "LoRA and QLoRA",
    "parallel": "several GPUs",
    "inference": "inference (--mode inference)",
}
"""Heading of each table's flags in the help, in their order there."""
_WITHOUT_VALUE = {"training.activation_checkpointing": "full", "parallel.cpu_offload": "all"}
"""The value of a flag that stands alone, of keys that are not true or false."""
_USUAL_HEADING = "common settings"
_FAMILIAR_HEADING = "other tools' names for these settings (with - or _)"
_USUAL = (
    *("--batch-size", "--seq-len", "--lora", "--qlora", "--bf16", "--fp16", "--gradient-checkpointing", "--optim"),
    *("--flash-attention", "--fsdp", "--ddp", "--zero"),
)
JOB_HELP = (
    "Job file (TOML), configuration of another tool (axolotl, LLaMA-Factory, torchtune, ...), model (built-in name, "
    "hub id in the local cache, folder with a config.json, module:callable), script (train.py, train.ipynb), or a "
    "launch line after --."
)


class FlagAction(argparse.Action):
    """Records the flag as it was typed, with its value; ``settings_of_flags`` makes settings of all of them.

    Args:
        key: the job key whose flag it is; None: none.
        familiar: the flag with other tools' names that it is; None: none.
        **settings: those of ``argparse.Action``.
    """

    def __init__(self, *, key: str | None = None, familiar: FamiliarFlag | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self.key = key
        self.familiar = familiar
        named = key or (familiar.key if familiar else "")
        self.splits_job = named.startswith("parallel.")
        """It splits the job over GPUs."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """Append to ``namespace.flags``."""
        del parser
        text = values if isinstance(values, str) else ""
        namespace.flags = [*namespace.flags, (option or self.option_strings[0], text)]


@lru_cache(maxsize=1)
def job_flags() -> Mapping[str, str]:
    """Return the job key of each flag: ``--micro-batch`` sets ``training.micro_batch``.

    Flags of ``[lora]`` and ``[inference]`` begin with the table's name.
    """
    flags = {}
    for key in job_keys():
        table, _, name = key.partition(".")
        if key not in _KEYS_WITHOUT_FLAG and table not in _TABLES_WITHOUT_FLAGS:
            prefix = f"{table}-" if table in _PREFIXED_TABLES else ""
            flags[f"--{prefix}{name.replace('_', '-')}"] = key
    return flags


def flags_by_key() -> dict[str, str]:
    """Return the flag of each job key that has one."""
    return {key: flag for flag, key in job_flags().items()}


def value_alone(key: str) -> str | None:
    """Return the value of a key's flag without a value, such as ``--compile``; None: it needs one."""
    return "true" if is_switch(key) else _WITHOUT_VALUE.get(key)


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the JOB argument, a flag for each setting of a job, its other names, and ``--set``."""
    parser.add_argument("job", nargs="?", metavar="JOB", help=JOB_HELP)
    parser.set_defaults(flags=[], model_flag=None)
    text = "Set any key of the job file, such as software.torch=2.4 or rollout.engine=vllm."
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    usual = [flag for flag in FAMILIAR_FLAGS if flag.names[0] in _USUAL]
    _add_familiar_flags(parser.add_argument_group(_USUAL_HEADING), usual)
    groups = {table: _rare(parser.add_argument_group(heading)) for table, heading in _HEADINGS.items()}
    text = "The model, in place of JOB, or in place of the model in a job file."
    names = ("--model", "-m", "--model-name-or-path", "--model-name", "--model-id", "--base-model")
    groups["model"].add_argument(*names, dest="model_flag", metavar="MODEL", help=text)
    for flag, key in job_flags().items():
        nargs = None if value_alone(key) is None else "?"
        group = groups[key.partition(".")[0]]
        group.add_argument(flag, action=FlagAction, key=key, nargs=nargs, dest=argparse.SUPPRESS)
    others = [flag for flag in FAMILIAR_FLAGS if flag not in usual]
    _add_familiar_flags(_rare(parser.add_argument_group(_FAMILIAR_HEADING)), others)
    for name in IGNORED_FLAGS:
        nargs = "?" if name in IGNORED_SWITCHES else None
        parser.add_argument(name, action=FlagAction, nargs=nargs, dest=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _rare(group: Any) -> Any:
    """Return the group, left out of the short help."""
    group.is_rare = True
    return group


def _add_familiar_flags(group: Any, flags: Sequence[FamiliarFlag]) -> None:
    for flag in flags:
        nargs = 0 if not flag.placeholder else "?" if flag.value_optional else None
        group.add_argument(
            *flag.names,
            action=FlagAction,
            familiar=flag,
            nargs=nargs,
            metavar=flag.placeholder or None,
            dest=argparse.SUPPRESS,
            help=flag.meaning,
        )


# Values of ``--gpus``, ``--gpu-type`` and ``--gpu``.


_SEVERAL = re.compile(
    r"(?P<count>\d{1,7})\s*[x×*]\s*(?P<card>.+)|(?P<name>.+?)\s*[:×*]\s*(?P<number>\d{1,7})", re.IGNORECASE
)
"""``8xH100``, or SkyPilot's ``H100:8``."""
_MAX_DIGITS = 10
_INDICES = re.compile(r"\d{1,3}(\s*,\s*\d{1,3})*")
"""No machine has a thousand GPUs: ``4090`` is a card."""
GPU_TYPE_FLAGS = ("--gpu-type", "--gpu-name", "--gpu-model", "--card")


def gpu_count(text: str) -> int:
    """Parse a number of GPUs."""
    from vramtop.estimator.job.settings import MAX_GPUS  # not at start-up

    if not text.isdecimal() or len(text) > _MAX_DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:80]} is not a valid number of GPUs")
    if int(text) > MAX_GPUS:
        raise argparse.ArgumentTypeError(f"{text} is more GPUs than any cluster has (at most {MAX_GPUS:,})")
    return int(text)


_CARD_SIZE = re.compile(r"(?i)(\d{1,4}(?:\.\d{1,2})?) ?(?:g|gb|gib)")


def _number_and_card(text: str) -> tuple[str, str] | None:
    """Return the two parts of ``8xh100`` or ``h100:8``; None: it is no such text."""
    found = _SEVERAL.fullmatch(text)
    return found and (found["count"] or found["number"], found["card"] or found["name"])


class GpuTypeAction(argparse.Action):
    """Takes ``8xh100`` as eight GPUs of that type."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """Set ``gpu_type``, and ``gpus`` if there is a number.

        Raises:
            argparse.ArgumentError: there is no such number of GPUs.
        """
        del parser, option
        several = _number_and_card(str(values))
        self._set_type(namespace, several[1] if several else str(values))
        if several:
            self._set_count(namespace, several[0])

    def _set_type(self, namespace: argparse.Namespace, name: str) -> None:
        """Set ``gpu_type``, or ``gpu_memory`` if the card is named by its size: ``24GB``, which is GiB.

        Raises:
            argparse.ArgumentError: another flag names another card.
        """
        if size := _CARD_SIZE.fullmatch(name):
            namespace.gpu_memory = f"{size[1]}GiB"
            return
        before, by = getattr(namespace, "gpu_type", None), getattr(namespace, "gpu_type_by", self)
        if before and by is not self and before.lower() != name.lower():
            raise argparse.ArgumentError(self, f"names {name}, and {by.option_strings[0]} names {before}; give one")
        namespace.gpu_type, namespace.gpu_type_by = name, self

    def _set_count(self, namespace: argparse.Namespace, text: str) -> None:
        try:
            namespace.gpus = gpu_count(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None


class GpuCountAction(GpuTypeAction):
    """Takes a number of GPUs, and ``8xh100`` as ``--gpu-type`` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """Set ``gpus``, or what ``--gpu-type`` sets.

        Raises:
            argparse.ArgumentError: there is no such number of GPUs.
        """
        text = str(values)
        if _number_and_card(text) is not None:
            super().__call__(parser, namespace, values, option)
        elif "," in text and _INDICES.fullmatch(text):
            raise argparse.ArgumentError(self, f"it takes a number of GPUs; to choose GPUs, write --gpu {text}")
        else:
            self._set_count(namespace, text)


class GpuAction(GpuTypeAction):
    """Takes ``0,1`` as GPUs of this machine, and the name of a card as ``--gpu-type`` does."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        """Set ``gpu``, or what ``--gpu-type`` sets.

        Raises:
            InputError: the value is neither.
        """
        if _INDICES.fullmatch(str(values)):
            namespace.gpu = values
            return
        from vramtop.estimator.job.gpu_catalogue import find_gpu

        super().__call__(parser, namespace, values, option)
        if getattr(namespace, "gpu_type", None) is None:
            return
        try:
            find_gpu(namespace.gpu_type)
        except InputError as error:
            indices = ", or indices of GPUs here, like 0,1" if "--gpu-memory" in error.message else ""
            raise InputError(f"--gpu {values}: {error.message}{indices}") from None


# The words of a command line as people type them: underscores in flags, flags whose value is left out.


_ONE_DASH = re.compile(r"-[A-Za-z][A-Za-z-]+[0-9]?")
"""``-b4`` is ``-b 4``."""
_SWITCH_WORDS = ("true", "false", "yes", "no", "on", "off")
_FURTHER_WORDS = {
    "--fsdp": ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard"),
    "--flash-attention": ("fa2", "fa3", "auto", "disabled", "sdpa"),
    "--activation-checkpointing": ("none", "full", "selective"),
    "--cpu-offload": ("none", "optimizer", "all"),
}
"""Words that may follow a flag whose value is optional, by the first of its names."""


def normal_words(words: Sequence[str], flags: Container[str] = ()) -> list[str]:
    """Return the words with dashes in the names of flags, and ``=`` between a flag and a value that is optional.

    Otherwise ``--lora llama-3.1-8b`` would read the model as the rank. A long name may stand behind one dash: ``-tp``.

    Args:
        words: as they were typed.
        flags: the names of a command's flags, beside those of a job.
    """
    optional = dict(_optional_values())
    normal: list[str] = []
    waiting = list(words)
    while waiting:
        word = _dashed(waiting.pop(0))
        name = word.partition("=")[0]
        if _ONE_DASH.fullmatch(name) and name not in flags and (f"-{name}" in flags or f"-{name}" in flag_names()):
            word = f"-{word}"
        if word == "--exec":  # the rest is another program's
            return [*normal, word, *waiting]
        values = optional.get(word)
        if values is not None:
            takes = bool(waiting) and _is_value(waiting[0], values)
            word = f"{word}={waiting.pop(0) if takes else ''}"
        normal.append(word)
    return normal


def _dashed(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("-") else word


@lru_cache(maxsize=1)
def flag_names() -> frozenset[str]:
    """Return the names of the flags of a job."""
    return frozenset((*job_flags(), *IGNORED_FLAGS, *(name for flag in FAMILIAR_FLAGS for name in flag.names)))


def _is_value(word: str, values: frozenset[str]) -> bool:
    first = word.lower().replace(",", " ").split()[:1]
    return word.isdecimal() or first == ["auto_wrap"] or (bool(first) and first[0] in values)


def _optional_values() -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the words that may follow each flag whose value is optional; a number may follow any."""
    for flag in FAMILIAR_FLAGS:
        if flag.value_optional:
            switch = () if flag.placeholder in ("RANK", "N") else _SWITCH_WORDS
            values = frozenset((*flag.choices, *switch, *_FURTHER_WORDS.get(flag.names[0], ())))
            yield from ((name, values) for name in flag.names)
    yield from ((name, frozenset(_SWITCH_WORDS)) for name in IGNORED_SWITCHES)
    for name, key in job_flags().items():
        if value_alone(key) is not None:
            yield name, frozenset((*_SWITCH_WORDS, *_FURTHER_WORDS.get(name, ())))


# The settings that the flags of a command line make together: contradictions, and what depends on several of them.


_MADE_OF_SEVERAL = frozenset(
    (
        AMP,
        BITS,
        COMPLETION,
        FP8,
        GLOBAL_BATCH,
        METHOD,
        NODES,
        PROCESSES,
        PROMPT,
        RANDOM,
        SERVED,
        SPREAD,
        TUNING,
        WEIGHTS,
    )
)
_PRECISION, _AUTOCAST = "training.precision", "lora.autocast"
_OTHER_NAMES = {
    "training.optimizer": optimizer,
    _PRECISION: precision,
    "model.attention": attention,
    LENGTH: tokens,
    "lora.targets": lora_targets,
    "parallel.context": context_ranks,
    "model.task": task,
}
"""Keys whose flag takes other tools' words for the values too, or refuses what is meant for another one."""
_USUAL_PART = 512
"""Tokens of a prompt or a completion where only the other one is given: a usual default of TRL's."""
_SHARD, _REPLICATE, _STRATEGY = "parallel.data_shard", "parallel.data_replicate", "parallel.strategy"
_MICRO_BATCH, _ACCUMULATION = "training.micro_batch", "training.gradient_accumulation"


class FlagSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the flags of a command line set."""

    changes: Mapping[str, Any]
    """New values by job key."""
    remarks: tuple[str, ...] = ()
    """How flags were understood whose meaning differs from tool to tool."""
    processes: int | None = None
    """Processes of the whole job; None: not given."""
    global_batch: int | None = None
    """Sequences of an optimizer step over all GPUs; None: not given."""
    spread_flag: str | None = None
    """The flag that names a strategy over several GPUs without a number of them; None: there is none."""
    mixed: str | None = None
    """Mixed precision (``bf16``, ``fp16``), whose effect on the weights the model decides; None: not given."""
    weights: str | None = None
    """The type in which the weights are loaded; None: not given."""
    adapts: bool = False
    """A flag asks for adapters, or for weights of few bits under them, as other tools do."""
    method: str | None = None
    """TRL's training method; None: not given."""
    method_arguments: Mapping[str, tuple[Any, str]] = msgspec.field(default_factory=dict)
    """Arguments of its trainer by TRL's names, each with its flag."""
    inputs: Mapping[str, tuple[Any, str]] = msgspec.field(default_factory=dict)
    """Sizes of images and audio, each with its flag."""
    whole: bool = False
    """A flag asks for the training of all parameters."""

    def complete(self, job: Job) -> Job:
        """Return the job, once loaded, with the ranks, the micro-batch and the precision that flags give indirectly.

        Raises:
            InputError: the numbers do not divide, or the number of GPUs is not known.
        """
        job = self._with_ranks(job)
        if self.mixed or self.weights:
            from vramtop.estimator.job.resolved_job import precision_under  # not at start-up
            from vramtop.estimator.model.checkpoint import weights_of
            from vramtop.estimator.model.find_config import resolve_model

            stored = weights_of(resolve_model(job.model))
            named = precision_under(job, mixed=self.mixed, weights=self.weights, stored=stored)
            changes: dict[str, Any] = {_PRECISION: named}
            if {named, self.mixed} == {"fp16", "bf16"}:
                changes["unsure.weights"] = "more"
            if job.lora is not None and self.mixed and _AUTOCAST not in self.changes:
                changes[_AUTOCAST] = True  # the Trainer's bf16
            job = with_changes(job, changes, where="the command line")
        return job if self.global_batch is None else self._with_global_batch(job, self.global_batch)

    def _with_ranks(self, job: Job) -> Job:
        if _SHARD in self.changes or (_REPLICATE in self.changes and self.spread_flag is None):
            return job
        if self.processes is None:
            if self.spread_flag and job.parallel.data_ranks == 1:
                raise InputError(f"{self.spread_flag}: give the number of GPUs with --gpus N")
            return job
        parallel = job.parallel
        within = parallel.tensor * parallel.pipeline * parallel.context
        if self.processes % within:
            raise InputError(
                f"{self.processes} GPUs cannot be split into groups of {within} "
                f"(tensor {parallel.tensor} x pipeline {parallel.pipeline} x context {parallel.context})"
            )
        ranks = self.processes // within
        name = "ddp" if parallel.strategy == "none" and ranks > 1 else parallel.strategy
        shards = STRATEGIES[name].zero_stage > 0
        copies = parallel.data_replicate if shards and _REPLICATE in self.changes else 1
        if ranks % copies:
            raise InputError(f"{ranks} data-parallel GPUs cannot be split into {copies} copies")
        sizes = {_SHARD: ranks // copies, _REPLICATE: copies} if shards else {_SHARD: 1, _REPLICATE: ranks}
        return with_changes(job, {_STRATEGY: name, **sizes}, where="the command line")

    def _with_global_batch(self, job: Job, whole: int) -> Job:
        """Divide the sequences of a step by ranks and accumulation, or by ranks and micro-batch."""
        training, ranks = job.training, job.parallel.data_ranks
        if _MICRO_BATCH in self.changes:
            key, each, words = _ACCUMULATION, training.micro_batch, f"micro-batch {training.micro_batch}"
        else:
            each = training.gradient_accumulation
            key, words = _MICRO_BATCH, f"{each} accumulated"
        if whole % (each * ranks):
            raise InputError(f"a global batch of {whole} cannot be divided by {ranks} GPUs x {words}")
        return with_changes(job, {key: whole // (each * ranks)}, where="the command line")


def settings_of_flags(
    flags: Sequence[tuple[str, str]], *, gpus: int | None = None, model_alone: bool = False
) -> FlagSettings:
    """Return what the flags of a command line set together.

    Args:
        flags: each as it was typed, with its value; empty where it has none.
        gpus: the value of ``--gpus``, over which a strategy is spread that names no number of GPUs.
        model_alone: they are about a model, not about a file or a launch line: an engine's flags ask for the engine.

    Raises:
        InputError: a value is wrong, or two flags contradict each other.
    """
    found: dict[str, tuple[Any, str]] = {}
    weak: dict[str, tuple[Any, str]] = {}
    order = {flag: (at, text) for at, (flag, text) in enumerate(flags)}  # of a repeated flag the last one counts
    remarks: list[str] = []
    for flag, (_, text) in sorted(order.items(), key=lambda each: each[1][0]):
        for key, value in _read(flag, text).items():
            if key.startswith(SOFT):
                weak.setdefault(key.removeprefix(SOFT), (value, flag))
                continue
            before, before_flag = found.setdefault(key, (value, flag))
            if before != value and flag in job_flags():
                remarks.append(f"{flag} {text} replaces {before_flag}.")
                found[key] = (value, flag)
            elif before != value:
                raise _contradiction(before_flag, flag, key.rpartition(".")[2].replace("_", " "))
    if _CHECKPOINTING in found:
        weak.pop(_OFFLOAD, None)  # --unsloth offloads what its own checkpointing saves
    found = {**weak, **found}
    remarks += _version_of_fsdp(found, gpus)
    values = {key: value for key, (value, _) in found.items()}
    changes = {key: value for key, value in values.items() if _is_job_key(key)}
    arguments = {key.removeprefix(OF_METHOD): each for key, each in found.items() if key.startswith(OF_METHOD)}
    remarks += _remarks(flags)
    remarks += _check_arguments(arguments, values.get(METHOD))
    if model_alone and _asks_for_server(found):
        engine, flag = found[SERVED]
        changes |= {"training.mode": "inference", "inference.engine": engine}
        remarks.append(
            f"{flag} is {engine}'s, so vramtop assumes that it serves the model; --engine names another engine."
        )
    if changes.get("training.mode") == "inference":
        _set_format(changes, found)
    elif changes.get("inference.weights") == "int4" and values.get(TUNING) == "lora":
        changes["lora.quantization"] = changes.pop("inference.weights")  # AWQ or GPTQ under adapters
    if changes.get("training.mode") != "inference" and FP8 in values:
        remarks.append("--fp8 is counted as bf16 mixed precision; 8-bit copies may need more memory.")
        changes |= {"unsure.weights": "more", "unsure.activations": "less"}
        found.setdefault(AMP, ("bf16", "--fp8"))
    if PROMPT in values or COMPLETION in values:
        remarks += _set_lengths(changes, values)
    position = {flag: at for flag, (at, _) in order.items()}
    mixed, weights = _types(changes, found, position)
    _set_tuning(changes, found, position)
    remarks += _doubt_random_weights(changes, values)
    spread = found[SPREAD][1] if SPREAD in found else None
    counted = _SHARD in values or _REPLICATE in values
    machines = values.get(NODES, 1)
    processes = values[PROCESSES] * machines if PROCESSES in values else None
    if processes is None and gpus and not counted and (spread or _STRATEGY in values):
        processes = gpus
    remarks += _placed(gpus if processes is None else None, changes, model_alone=model_alone)
    return FlagSettings(
        changes=changes,
        remarks=tuple(remarks),
        processes=None if counted else processes,
        global_batch=values.get(GLOBAL_BATCH),
        adapts=BITS in values or values.get(TUNING) == "lora",
        mixed=mixed,
        weights=weights,
        spread_flag=None if counted else spread,
        method=values.get(METHOD),
        method_arguments=arguments,
        whole=values.get(TUNING) == "full",
        inputs={key.removeprefix(OF_INPUT): each for key, each in found.items() if key.startswith(OF_INPUT)},
    )


def _placed(gpus: int | None, changes: dict[str, Any], *, model_alone: bool) -> Iterator[str]:
    """Place the modules of one process on several GPUs if a device map is given; yield that it takes one if not."""
    if gpus is None or gpus == 1:
        return
    if "parallel.device_map" in changes:
        changes.setdefault("parallel.pipeline", gpus)
        return
    is_spread = any(key.startswith("parallel.") for key in changes)
    if model_alone and not is_spread and changes.get("training.mode") != "inference":
        yield f"The job runs on one of the {gpus} GPUs; --fsdp, --ddp or --device-map auto spreads it over them."


def _version_of_fsdp(found: dict[str, tuple[Any, str]], gpus: int | None) -> Iterator[str]:
    """Take ``--fsdp 2 --gpus 8`` for FSDP's version over as many GPUs; yield that it was."""
    count, flag = found.get(_SHARD, (0, ""))
    sizes = [key for key in found if key.startswith("parallel.") and key not in (_SHARD, _STRATEGY)]
    if flag == "--fsdp" and count in (1, 2) and gpus is not None and gpus > count and not sizes:
        del found[_SHARD]
        found[_STRATEGY] = (f"fsdp{count}", flag)
        yield f"--fsdp {count} --gpus {gpus} is taken for FSDP{count} over {gpus} GPUs."


def _is_job_key(key: str) -> bool:
    return key not in _MADE_OF_SEVERAL and not key.startswith((OF_METHOD, OF_INPUT))


def _check_arguments(arguments: Mapping[str, tuple[Any, str]], method: str | None) -> Iterator[str]:
    """Yield which arguments of TRL's trainers change nothing.

    Raises:
        InputError: they ask for vLLM, and nothing that is trained generates text.
    """
    generates = method in _GENERATING
    for name, (_, flag) in arguments.items():
        if name == "beta" and not generates:
            yield f"{flag}: GPU memory does not depend on it{'' if method else ' but with --grpo or --rloo'}."
        elif not generates:
            served = "; to serve the model: --engine vllm" if name == "use_vllm" else ""
            raise InputError(f"{flag} only affects completions of --grpo and --rloo; add one of them{served}")


def _asks_for_server(found: Mapping[str, tuple[Any, str]]) -> bool:
    """Return True if a flag is an engine's, and no other says that something is trained or which engine it is."""
    nothing: tuple[Any, str] = (None, "")
    only_bits = found.get(TUNING, nothing)[1] == found.get(BITS, nothing)[1]
    trains = METHOD in found or not only_bits or found.get("training.mode", nothing)[0] == "train"
    return SERVED in found and not trains and "inference.engine" not in found


def _doubt_random_weights(changes: dict[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Allow for fp32 where weights are random and nothing gives their type; yield why."""
    if RANDOM in values and WEIGHTS not in values and _PRECISION not in changes:
        changes |= dict.fromkeys(("unsure.weights", "unsure.gradients", "unsure.optimizer"), "more")
        yield (
            "--from-scratch assumes weights in the config's dtype, as in transformers' from_config; a script that "
            "builds its own config gets fp32 (--dtype float32)."
        )


def _set_lengths(changes: dict[str, Any], values: Mapping[str, Any]) -> Iterator[str]:
    """Set the length of a sequence from those of its prompt and its completion; yield which of them is a usual one."""
    for key, flag in ((PROMPT, "--max-prompt-length"), (COMPLETION, "--max-completion-length")):
        if key not in values and LENGTH not in changes:
            yield f"{flag}: {_USUAL_PART} tokens are assumed."
    changes.setdefault(LENGTH, values.get(PROMPT, _USUAL_PART) + values.get(COMPLETION, _USUAL_PART))
    if COMPLETION in values and values.get(METHOD) == "grpo":
        changes.setdefault("training.loss_length", values[COMPLETION])


def _read(flag: str, text: str) -> Mapping[str, Any]:
    """Return what one flag sets.

    Raises:
        InputError: its value is wrong; the sentence names the flag, not the job file's key.
    """
    if flag in IGNORED_FLAGS:
        return {}
    key = job_flags().get(flag)
    reader = _OTHER_NAMES.get(key) or same_as(key) if key else _familiar(flag).settings
    try:
        settings = reader(text or (value_alone(key) or "" if key else ""))
        for name, value in settings.items():
            if _is_job_key(name.removeprefix(SOFT)):
                check_value(name.removeprefix(SOFT), value)
    except InputError as error:
        raise InputError(f"{flag}: {error.message}") from None
    return settings


def _familiar(flag: str) -> FamiliarFlag:
    return next(each for each in FAMILIAR_FLAGS if flag in each.names)


def _set_format(changes: dict[str, Any], found: dict[str, tuple[Any, str]]) -> None:
    """Set the format of the weights of a model that is not trained, in place of adapters over frozen ones."""
    bits, flag = found.get(BITS, (None, ""))
    if bits in ("4", "8"):
        stored = changes.pop("lora.quantization", "none")
        changes["inference.weights"] = stored if stored != "none" else {"4": "nf4", "8": "int8"}[bits]
        if found.get(TUNING, (None, ""))[1] == flag:
            del found[TUNING]
            for key in [key for key in changes if key.startswith("lora.")]:
                del changes[key]
    elif FP8 in found:
        changes["inference.weights"] = "fp8"


def _types(
    changes: Mapping[str, Any], found: Mapping[str, tuple[Any, str]], position: Mapping[str, int]
) -> tuple[str | None, str | None]:
    """Return mixed precision and the type of the weights, where they are given in place of ``--precision``.

    Raises:
        InputError: ``--precision`` says otherwise, and does not come after them.
    """
    (mixed, mixed_flag), (weights, weights_flag) = (found.get(key, (None, "")) for key in (AMP, WEIGHTS))
    mixed = mixed if mixed in HALF else None
    given = changes.get(_PRECISION)
    if given is None or (mixed is None and weights is None):
        return mixed, weights
    last = position[found[_PRECISION][1]] > max(position.get(mixed_flag, -1), position.get(weights_flag, -1))
    if not last and (given not in (weights, mixed, f"{mixed}-mixed") or (weights in HALF and given != weights)):
        raise _contradiction(found[_PRECISION][1], mixed_flag or weights_flag, "precision")
    return None, None


def _set_tuning(changes: dict[str, Any], found: Mapping[str, tuple[Any, str]], position: Mapping[str, int]) -> None:
    """Remove the adapters for full fine-tuning, and make some where only their kind is given.

    Raises:
        InputError: full fine-tuning has settings of adapters, and does not come before them.
    """
    tuning, flag = found.get(TUNING, (None, ""))
    of_lora = [key for key in changes if key.startswith("lora.")]
    if tuning == "full":
        later = [position.get(found[key][1], 0) > position[flag] for key in of_lora if key in found]
        if later and all(later):
            return
        if of_lora:
            other = next((found[key][1] for key in of_lora if key in found), "--set")
            raise _contradiction(flag, other, TUNING)
        changes["lora"] = None
    elif tuning == "lora" and not of_lora:
        changes["lora.rank"] = USUAL_LORA_RANK


def _remarks(flags: Sequence[tuple[str, str]]) -> Iterator[str]:
    given = dict(flags)
    for flag, text in given.items():
        if flag in IGNORED_FLAGS or flag in job_flags() or text.lower() in ("false", "no", "off", "0"):
            continue
        if remark := _familiar(flag).remark:
            yield f"{flag}: {remark}"
    ignored = [flag for flag in given if flag in IGNORED_FLAGS]
    if ignored:
        yield f"{', '.join(ignored)}: GPU memory does not depend on it."


def _contradiction(one: str, other: str, about: str) -> InputError:
    return InputError(f"{one} and {other} contradict each other ({about}); give only one")


# A flag that names one of TRL's training methods, such as ``--dpo``.


def with_method(
    job: Job,
    method: str,
    stated: Collection[str],
    changes: Mapping[str, Any],
    arguments: Mapping[str, tuple[Any, str]] = MappingProxyType({}),
) -> tuple[Job, str]:
    """Return the job with what TRL's trainer of a method holds and computes, and a note on what that is.

    Args:
        job: the job otherwise.
        method: its name.
        stated: keys that were set, which stay; but TRL's trainers have losses of their own in place of Liger-Kernel's
            for all of the logits.
        changes: what the command line sets by job key.
        arguments: of the trainer by TRL's names, each with the flag that gives it.

    Raises:
        InputError: the job trains nothing.
    """
    if job.training.mode != "train":
        raise InputError(f"--{method} is a training method, but this job only generates text; leave out one of the two")
    from vramtop.estimator.readers.trl.trainer import read_method  # only where it is asked for

    batch = ""
    if method in _GENERATING and "training.micro_batch" not in stated:  # which one completion alone cannot be
        job = with_changes(job, {"training.micro_batch": _TRL_BATCH})
        batch = f"training.micro_batch = {_TRL_BATCH} (TRL's default); "
    kept = [key for key in stated if (key, changes.get(key)) != ("training.loss", "fused-linear")]
    found = [finding for finding in read_method(method, job, arguments) if finding.key not in kept]
    read = "; ".join(f"{finding.key} = {finding.value_text} ({finding.origin})" for finding in found)
    return with_changes(job, {finding.key: finding.value for finding in found}), f"--{method}: {batch}{read}."
