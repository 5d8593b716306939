"""Values of flags that have other tools' names, as settings of a job.

Keys are those of the job file, or one of those below, from which several flags together make a setting.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.job.job_file.changes import parse_assignment
from vramtop.estimator.job.rules.strategies import DTYPE_NAMES
from vramtop.estimator.job.settled import QLORA, USUAL_LORA_RANK

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
METHODS = ("sft", "dpo", "grpo", "orpo", "kto", "rloo", "reward")
GENERATING = ("grpo", "rloo")
TRL_BATCH = 8
"""Sequences of a device in TRL, whose GRPO and RLOO compare as many completions of a prompt (``GRPOConfig``)."""


def same_as(key: str) -> Reader:
    """Return a reader of another name of a job key: its value is written as in a job file."""
    return lambda text: dict([parse_assignment(f"{key}={text}")])


_YES, _NO = ("", "true", "yes", "on", "1"), ("false", "no", "off", "0")


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


_MAX_TOKEN_DIGITS = 10


def tokens(text: str) -> Settings:
    """Read a number of tokens: ``4096``, ``4,096``, ``4k`` or ``1m``."""
    plain = text.replace(",", "").replace("_", "").lower()
    unit = {"k": 2**10, "m": 2**20}.get(plain[-1:], 1)
    digits = plain if unit == 1 else plain[:-1]
    if not digits.removeprefix("-").isdecimal() or len(digits) > _MAX_TOKEN_DIGITS:
        raise InputError(f"{text!r} is not a number of tokens, such as 4096 or 4k")
    return {LENGTH: int(digits) * unit}


_SHORTEST_LENGTH = 512
"""From here on a number behind ``--context`` is a length: sequences are split over far fewer GPUs."""


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


def adapter(text: str) -> Settings:
    """Read what is trained: ``full``, ``lora`` or ``qlora``."""
    whole = {TUNING: "full"}
    return named({"full": whole, "none": whole, "lora": lora(""), "qlora": qlora("")})(text)


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


_PRECISIONS = {"bf16-true": "bf16", "16-true": "fp16", "32": "fp32", "32-true": "fp32", "16-mixed": "fp16-mixed"}
"""Names that Lightning has for precisions."""


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


_FSDP_SHARDING = {
    "full_shard": ("fsdp1", "full"),
    "shard_grad_op": ("fsdp1", "grad_op"),
    "hybrid_shard": ("fsdp1", "hybrid"),
    "hybrid_shard_zero2": ("fsdp1", "hybrid_grad_op"),
    "no_shard": ("ddp", "full"),
}


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


_FSDP_SHARDING_BY_NUMBER = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")


def sharding_strategy(text: str) -> Settings:
    """Read accelerate's ``--fsdp_sharding_strategy``: a word, or its number."""
    numbered = dict(zip("12345", _FSDP_SHARDING_BY_NUMBER, strict=True))
    return fsdp(numbered.get(text, text))


def ddp(text: str) -> Settings:
    """Read ``--ddp [N]``."""
    count = number("parallel.data_replicate")(text) if text else {}
    return {"parallel.strategy": "ddp", SPREAD: True, **count}


_TASKS = {
    **dict.fromkeys(("clm", "causal", "text-generation", "lm"), "causal-lm"),
    **dict.fromkeys(("mlm", "fill-mask"), "masked-lm"),
    **dict.fromkeys(("seq-cls", "classification", "text-classification"), "sequence-classification"),
    **dict.fromkeys(("token-cls", "ner"), "token-classification"),
    **dict.fromkeys(("seq-2-seq-lm", "seq2seq", "translation", "summarization"), "seq2seq-lm"),
    **dict.fromkeys(("question-ans", "qa"), "question-answering"),
}
"""Names that peft's ``TaskType`` and transformers' pipelines have for tasks."""
_METHODS_BY_WORD = {**{name: name for name in METHODS}, "rm": "reward", "reward-modeling": "reward"}


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
    """Take a stage (``3``, ``zero3``); refuse a file: whether all of it counts is only told from the launch line."""
    if stage := re.fullmatch(r"(?i)(?:zero|stage)?[-_]?([0-3])", text):
        return zero(stage[1])
    line = f"vramtop fit -- deepspeed train.py --deepspeed {text}"
    raise InputError(f"give the stage, as in --zero 3 --gpus 8, or the whole launch line, as in {line}")
