"""The flag of each key of the job file, and the arguments of a command that takes a job."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from vramtop.estimator.job.field_help import is_switch
from vramtop.estimator.job.job_file.changes import job_keys

from . import familiar_values as read
from .familiar_values import (
    AMP,
    BITS,
    COMPLETION,
    FP8,
    GLOBAL_BATCH,
    METHOD,
    NODES,
    PROCESSES,
    PROMPT,
    SOFT,
    TUNING,
    Reader,
    Settings,
)

# Flags by the names that other tools give to settings: what each means here, and what it sets.
#
# Meanings are those of the tool that has the name: transformers' Trainer and TRL (``--per-device-train-batch-size``,
# ``--max-length``, ``--bf16``, ``--optim``), axolotl (``--sequence-len``), LLaMA-Factory (``--cutoff-len``),
# torchtune, unsloth, DeepSpeed (``--train-batch-size``), Megatron-LM (``--global-batch-size``), torchrun and
# accelerate (``--nproc-per-node``, ``--num-processes``), vLLM (``--max-model-len``).


@dataclass(frozen=True, slots=True, kw_only=True)
class FamiliarFlag:
    """A flag with other tools' names."""

    names: tuple[str, ...]
    meaning: str
    """One sentence for the help."""
    settings: Reader
    """What it sets: the text of its value to settings by job key."""
    placeholder: str = ""
    """What stands for its value; empty: it takes none."""
    value_optional: bool = False
    choices: tuple[str, ...] = ()
    """Words that complete its value."""
    remark: str = ""
    """What the output says when it is used: the meaning, where tools differ about it."""
    key: str = ""
    """The job key of which it is no more than another name; empty: there is none."""


def _same(key: str, names: str, flag: str, placeholder: str = "N") -> FamiliarFlag:
    return FamiliarFlag(
        names=tuple(names.split()),
        meaning=f"The same as {flag}.",
        settings=read.same_as(key),
        placeholder=placeholder,
        key=key,
    )


def _number(names: str, meaning: str, key: str) -> FamiliarFlag:
    return FamiliarFlag(names=tuple(names.split()), meaning=meaning, settings=read.number(key), placeholder="N")


def _switch(names: str, meaning: str, on: dict[str, Any], off: dict[str, Any] | None = None) -> FamiliarFlag:
    return FamiliarFlag(
        names=tuple(names.split()),
        meaning=meaning,
        settings=read.switch(on, off),
        placeholder="true|false",
        value_optional=True,
        choices=("true", "false"),
    )


def _fixed(names: str, meaning: str, settings: Settings, remark: str = "") -> FamiliarFlag:
    return FamiliarFlag(names=tuple(names.split()), meaning=meaning, settings=read.fixed(settings), remark=remark)


def _of_engine(engine: str, name: str, flag: str, settings: Reader, placeholder: str = "N") -> FamiliarFlag:
    shown = {"vllm": "vLLM", "sglang": "SGLang"}[engine]
    return FamiliarFlag(
        names=(name,),
        meaning=f"{shown}'s: the same as --{flag}; {shown} serves a model that is given with it alone.",
        settings=read.of_engine(engine, settings),
        placeholder=placeholder,
    )


_ATTENTION, _LOSS = "model.attention", "training.loss"

FAMILIAR_FLAGS: tuple[FamiliarFlag, ...] = (
    FamiliarFlag(
        names=(
            *("--batch-size", "--per-device-train-batch-size", "--per-device-batch-size", "--per-gpu-train-batch-size"),
            *("--micro-batch-size", "--train-micro-batch-size-per-gpu", "--mbs", "--bs", "-b", "--batch", "--bsz"),
            "--batchsize",
        ),
        meaning="Sequences per GPU in one forward pass; the same as --micro-batch.",
        settings=read.same_as("training.micro_batch"),
        placeholder="N",
    ),
    FamiliarFlag(
        names=("--global-batch-size", "--train-batch-size", "--gbs"),
        meaning="Sequences per optimizer step over all GPUs, as in DeepSpeed and Megatron.",
        settings=read.number(GLOBAL_BATCH),
        placeholder="N",
        remark="all sequences of an optimizer step, as DeepSpeed and Megatron mean it.",
    ),
    _same(
        "training.gradient_accumulation",
        "--gradient-accumulation-steps --grad-accum --grad-acc --accumulate-grad-batches",
        "--gradient-accumulation",
    ),
    FamiliarFlag(
        names=(
            *("--seq-len", "--max-length", "--max-seq-length", "--max-seq-len", "--sequence-len", "--seq-length"),
            *("--cutoff-len", "--context-length", "--block-size", "--model-max-length", "--seq"),
            *("--seqlen", "--max-seqlen", "--length", "--ctx", "--ctx-len", "--ctx-size", "--n-ctx", "--num-ctx"),
            *("--context-len", "--context-size", "--context-window"),
        ),
        meaning="Tokens per sequence, such as 4096 or 4k; the same as --sequence-length.",
        settings=read.tokens,
        placeholder="N",
    ),
    FamiliarFlag(
        names=("--lora", "--use-lora", "--use-peft"),
        meaning="Train LoRA adapters of this rank (default: 16).",
        settings=read.lora,
        placeholder="RANK",
        value_optional=True,
    ),
    FamiliarFlag(
        names=("--qlora",),
        meaning="Train LoRA adapters of this rank (default: 16) on all linear layers of a 4-bit model (nf4-double).",
        settings=read.qlora,
        placeholder="RANK",
        value_optional=True,
    ),
    FamiliarFlag(
        names=("--adapter", "--finetuning-type", "--train-type"),
        meaning="What is trained: full, lora or qlora.",
        settings=read.named(
            {
                "full": {TUNING: "full"},
                "none": {TUNING: "full"},
                "lora": read.lora(""),
                "qlora": read.qlora(""),
            }
        ),
        placeholder="KIND",
        choices=("full", "lora", "qlora"),
    ),
    _same("lora.rank", "--lora-r --peft-lora-r --rank -r --r", "--lora-rank"),
    FamiliarFlag(
        names=("--lora-target-modules", "--lora-target", "--target-modules"),
        meaning="The same as --lora-targets; all is all-linear.",
        settings=read.lora_targets,
        placeholder="NAMES",
    ),
    _fixed("--full --full-finetune --full-finetuning", "Train all parameters: no adapters.", {TUNING: "full"}),
    _switch(
        "--load-in-4bit --4bit --use-4bit --int4",
        "4-bit frozen weights (nf4), trained through LoRA; of a model that is not trained: its weights.",
        {TUNING: "lora", BITS: "4", f"{SOFT}lora.quantization": "nf4"},
    ),
    _switch(
        "--load-in-8bit --8bit --use-8bit --int8",
        "8-bit frozen weights, trained through LoRA; of a model that is not trained: its weights.",
        {TUNING: "lora", BITS: "8", f"{SOFT}lora.quantization": "int8"},
    ),
    FamiliarFlag(
        names=("--bits", "--quantization-bit"),
        meaning="Bits of the frozen weights: 4 (nf4) or 8, trained through LoRA; 16 quantizes nothing.",
        settings=read.bits,
        placeholder="N",
        choices=("4", "8", "16"),
    ),
    _switch(
        "--double-quant --use-bnb-nested-quant --bnb-4bit-use-double-quant",
        "The constants of 4-bit weights are quantized too (nf4-double).",
        {TUNING: "lora", BITS: "4", "lora.quantization": "nf4-double"},
    ),
    FamiliarFlag(
        names=("--bf16",),
        meaning="Mixed precision in bf16 (the Trainer's --bf16): weights as stored; in bf16 under LoRA or inference.",
        settings=read.switch({AMP: "bf16"}, {f"{SOFT}{AMP}": "no"}),
        placeholder="true|false",
        value_optional=True,
        choices=("true", "false"),
    ),
    FamiliarFlag(
        names=("--fp16",),
        meaning="Mixed precision in fp16 (the Trainer's --fp16): weights as stored; in fp16 under LoRA or inference.",
        settings=read.switch({AMP: "fp16"}, {f"{SOFT}{AMP}": "no"}),
        placeholder="true|false",
        value_optional=True,
        choices=("true", "false"),
    ),
    FamiliarFlag(
        names=("--engine",),
        meaning="Generate text with transformers, vllm or sglang; the same as --inference --inference-engine.",
        settings=read.engine,
        placeholder="NAME",
        choices=("transformers", "vllm", "sglang"),
    ),
    *(
        _fixed(
            f"--{name.lower()}{' --serve' if name == 'vLLM' else ''}",
            f"{name} serves the model; the same as --engine {name.lower()}.",
            read.engine(name.lower()),
        )
        for name in ("vLLM", "SGLang")
    ),
    _fixed(
        "--fp8", "8-bit floating-point weights of a model that is not trained; in training: as --bf16.", {FP8: True}
    ),
    _fixed("--fp32", "fp32 weights and computation.", {"training.precision": "fp32"}),
    _fixed(
        "--pure-bf16", "Weights and computation in bf16; the same as --precision bf16.", {"training.precision": "bf16"}
    ),
    FamiliarFlag(
        names=("--mixed-precision",),
        meaning="Mixed precision as accelerate has it: no, bf16 or fp16; the same as --bf16, --fp16.",
        settings=read.named({kind: {AMP: kind} for kind in ("no", "bf16", "fp16")}),
        placeholder="TYPE",
        choices=("no", "bf16", "fp16"),
    ),
    FamiliarFlag(
        names=("--dtype", "--torch-dtype", "--model-dtype"),
        meaning="Type in which the weights are loaded: auto (as stored), bfloat16, float16 or float32.",
        settings=read.dtype,
        placeholder="TYPE",
        choices=("auto", "bfloat16", "float16", "float32"),
    ),
    FamiliarFlag(
        names=(
            *("--gradient-checkpointing", "--use-gradient-checkpointing", "--grad-checkpointing", "--recompute"),
            *("--gc", "--enable-activation-checkpointing", "--checkpoint-activations", "--recompute-granularity"),
        ),
        meaning="Recompute activations (--activation-checkpointing full); unsloth: and keep what is saved in CPU RAM.",
        settings=read.checkpointing,
        placeholder="true|false|unsloth",
        value_optional=True,
        choices=("true", "false", "full", "selective", "unsloth"),
    ),
    _fixed(
        "--recompute-activations",
        "Recompute attention only (--activation-checkpointing selective).",
        {"training.activation_checkpointing": "selective"},
    ),
    _switch(
        "--activation-offloading --enable-activation-offloading",
        "The same as --activation-offload.",
        {"training.activation_offload": True},
        {"training.activation_offload": False},
    ),
    FamiliarFlag(
        names=("--optim",),
        meaning="The optimizer by the Trainer's name, such as paged_adamw_8bit, or by that of --optimizer.",
        settings=read.optimizer,
        placeholder="NAME",
    ),
    _fixed(
        "--8bit-adam --use-8bit-adam --adam8bit",
        "The same as --optimizer adamw-8bit.",
        {"training.optimizer": "adamw-8bit"},
    ),
    FamiliarFlag(
        names=(
            *("--flash-attention", "--flash-attn", "--use-flash-attn", "--use-flash-attention-2"),
            *("--flash-attention-2", "--flash"),
        ),
        meaning="FlashAttention 2, or the version given.",
        settings=read.flash_attention,
        placeholder="2|3",
        value_optional=True,
        choices=("2", "3"),
    ),
    FamiliarFlag(
        names=("--attn-implementation", "--attn"),
        meaning="The same as --attention.",
        settings=read.attention,
        placeholder="NAME",
        choices=("sdpa", "eager", "flash_attention_2", "flash_attention_3"),
    ),
    _fixed("--sdpa --xformers", "Attention that does not store its scores (--attention sdpa).", {_ATTENTION: "sdpa"}),
    _fixed("--eager", "Attention that stores its scores (--attention eager).", {_ATTENTION: "eager"}),
    _switch(
        "--liger --use-liger-kernel --use-liger --enable-liger-kernel",
        "Liger-Kernel's loss, which does not store the logits (--loss fused-linear).",
        {_LOSS: "fused-linear"},
        {_LOSS: "full"},
    ),
    _switch("--torch-compile", "The same as --compile.", {"training.compile": True}, {"training.compile": False}),
    FamiliarFlag(
        names=("--fsdp",),
        meaning="FSDP2 over N GPUs (default: --gpus); with the Trainer's words, such as full_shard: FSDP1 over --gpus.",
        settings=read.fsdp,
        placeholder="N",
        value_optional=True,
    ),
    FamiliarFlag(
        names=("--fsdp-sharding-strategy",),
        meaning="FSDP1 over --gpus, as accelerate has it: FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, or its number.",
        settings=read.sharding_strategy,
        placeholder="NAME",
        choices=("full_shard", "shard_grad_op", "hybrid_shard", "no_shard"),
    ),
    FamiliarFlag(
        names=("--ddp",),
        meaning="A whole copy of the model on each of N GPUs (default: --gpus).",
        settings=read.ddp,
        placeholder="N",
        value_optional=True,
    ),
    FamiliarFlag(
        names=("--zero", "--zero-stage", "--deepspeed-stage"),
        meaning="DeepSpeed's ZeRO, stage 1, 2 or 3, over the GPUs of --gpus.",
        settings=read.zero,
        placeholder="STAGE",
        choices=("1", "2", "3"),
    ),
    FamiliarFlag(
        names=("--stage",),
        meaning="The same as --zero; LLaMA-Factory's words sft, dpo and kto are understood too.",
        settings=read.stage,
        placeholder="STAGE",
        choices=("1", "2", "3", "sft", "dpo", "kto"),
    ),
    *(
        _fixed(f"--zero{n} --zero-{n}", f"The same as --strategy zero{n}.", {"parallel.strategy": f"zero{n}"})
        for n in (1, 2, 3)
    ),
    FamiliarFlag(
        names=("--deepspeed",),
        meaning="The same as --zero; DeepSpeed's file is read from a whole launch line after --.",
        settings=read.deepspeed,
        placeholder="STAGE",
        choices=("1", "2", "3"),
    ),
    _number(
        "--num-processes --nproc-per-node --nproc --num-gpus --n-gpus --ngpus --world-size",
        "Processes, one per GPU, as torchrun and accelerate start them: DDP unless another strategy is given.",
        PROCESSES,
    ),
    _number("--nnodes --num-nodes --num-machines", "Machines with --nproc-per-node processes each.", NODES),
    _same("parallel.tensor", "--tp --tensor-parallel --tensor-parallel-size --tensor-model-parallel-size", "--tensor"),
    _same(
        "parallel.pipeline",
        "--pp --pipeline-parallel --pipeline-parallel-size --pipeline-model-parallel-size",
        "--pipeline",
    ),
    replace(
        _same("parallel.context", "--cp --context-parallel --context-parallel-size", "--context"),
        settings=read.context_ranks,
    ),
    _same("parallel.expert", "--ep --expert-parallel --expert-parallel-size --expert-model-parallel-size", "--expert"),
    FamiliarFlag(
        names=("--offload-optimizer", "--offload-optimizer-device"),
        meaning="Optimizer states in CPU RAM (--cpu-offload optimizer).",
        settings=read.offload("optimizer"),
        placeholder="cpu|none",
        value_optional=True,
        choices=("cpu", "none"),
    ),
    FamiliarFlag(
        names=("--offload-param", "--offload-param-device", "--fsdp-offload-params"),
        meaning="Weights and optimizer states in CPU RAM (--cpu-offload all).",
        settings=read.offload("all"),
        placeholder="cpu|none",
        value_optional=True,
        choices=("cpu", "none"),
    ),
    *(
        _fixed(f"--{name}", f"Train with TRL's {name.upper()}: its loss, and what its trainer holds.", {METHOD: name})
        for name in ("sft", "dpo", "grpo", "orpo", "kto")
    ),
    _number("--max-prompt-length", "Tokens of a prompt; with --max-completion-length: of a sequence.", PROMPT),
    _number("--max-completion-length --max-new-tokens", "Tokens of the longest completion.", COMPLETION),
    _fixed(
        "--inference",
        "Generate text rather than train; the same as --mode inference.",
        {"training.mode": "inference"},
    ),
    _of_engine("vllm", "--max-model-len", "sequence-length", read.tokens),
    _of_engine("vllm", "--max-num-seqs", "micro-batch", read.same_as("training.micro_batch")),
    _of_engine(
        "vllm",
        "--gpu-memory-utilization",
        "inference-gpu-memory-utilization",
        read.same_as("inference.gpu_memory_utilization"),
        "SHARE",
    ),
    _of_engine(
        "vllm", "--max-num-batched-tokens", "inference-prefill-tokens", read.same_as("inference.prefill_tokens")
    ),
    _of_engine("vllm", "--kv-cache-dtype", "inference-cache-dtype", read.cache_dtype, "TYPE"),
    _of_engine("vllm", "--quantization", "inference-weights", read.served_weights, "NAME"),
    _of_engine("sglang", "--max-running-requests", "micro-batch", read.same_as("training.micro_batch")),
    _of_engine(
        "sglang",
        "--mem-fraction-static",
        "inference-gpu-memory-utilization",
        read.same_as("inference.gpu_memory_utilization"),
        "SHARE",
    ),
    FamiliarFlag(
        names=("--enforce-eager",),
        meaning="vLLM's: no CUDA graphs (--inference-cuda-graphs false).",
        settings=read.of_engine("vllm", read.fixed({"inference.cuda_graphs": False})),
    ),
    _same("run.output_dir", "--output-dir", "--set run.output_dir=FOLDER", "FOLDER"),
    _same("run.logging_dir", "--logging-dir", "--set run.logging_dir=FOLDER", "FOLDER"),
    _same("run.save_total_limit", "--save-total-limit", "--set run.save_total_limit=N"),
)


# Flags that people copy along from other tools' command lines, on which the memory of a GPU does not depend.


IGNORED_SWITCHES = (
    *("--tf32", "--packing", "--group-by-length", "--do-train", "--do-eval", "--overwrite-output-dir", "--push-to-hub"),
)
"""Ignored flags that may stand without a value."""
IGNORED_FLAGS = (
    *("--learning-rate", "--lr", "--num-train-epochs", "--epochs", "--num-epochs", "--max-steps", "--warmup-steps"),
    *("--warmup-ratio", "--weight-decay", "--lr-scheduler-type", "--seed", "--logging-steps", "--save-steps"),
    *("--eval-steps", "--max-grad-norm", "--lora-alpha", "--quant-type", "--dataset"),
    *(
        "--num-generations",
        "--dataset-name",
        "--run-name",
        "--save-strategy",
        "--logging-strategy",
        "--dataloader-num-workers",
    ),
    *IGNORED_SWITCHES,
)
"""All ignored flags; a value follows each that is no switch."""


TRUST_KEY = "model.trust_remote_code"
"""The key whose flag is that of transformers' own scripts."""
_KEYS_WITHOUT_FLAG = ("name", "model.id", "model.config", "other_models", "target.gpu")
_TABLES_WITHOUT_FLAGS = ("software", "run", "unsure", "rollout", "saving", "zero")
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
_FAMILIAR_HEADING = "names that other tools have for these settings (with - or _)"
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
        alone = value_alone(key)
        groups[key.partition(".")[0]].add_argument(
            flag, action=FlagAction, key=key, nargs=None if alone is None else "?", dest=argparse.SUPPRESS
        )
    others = [flag for flag in FAMILIAR_FLAGS if flag not in usual]
    _add_familiar_flags(_rare(parser.add_argument_group(_FAMILIAR_HEADING)), others)
    for name in IGNORED_FLAGS:
        parser.add_argument(
            name,
            action=FlagAction,
            nargs="?" if name in IGNORED_SWITCHES else None,
            dest=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )


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


_SEVERAL = re.compile(r"(\d{1,7})\s*[x×*]\s*(.+)", re.IGNORECASE)
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
        several = _SEVERAL.fullmatch(str(values))
        namespace.gpu_type = several[2] if several else values
        if several:
            try:
                namespace.gpus = gpu_count(several[1])
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentError(self, str(error)) from None


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
        from vramtop.estimator.common.errors import InputError  # not at start-up
        from vramtop.estimator.job.gpu_catalogue import find_gpu

        super().__call__(parser, namespace, values, option)
        try:
            find_gpu(namespace.gpu_type)
        except InputError as error:
            raise InputError(f"--gpu {values}: {error.message}, or indices of GPUs here, like 0,1") from None


# The words of a command line as people type them: underscores in flags, flags whose value is left out.


_SWITCH_WORDS = ("true", "false", "yes", "no", "on", "off")
_FURTHER_WORDS = {
    "--fsdp": ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard"),
    "--flash-attention": ("fa2", "fa3", "auto", "disabled", "sdpa"),
    "--activation-checkpointing": ("none", "full", "selective"),
    "--cpu-offload": ("none", "optimizer", "all"),
}
"""Words that may follow a flag whose value is optional, by the first of its names."""


def normal_words(words: Sequence[str]) -> list[str]:
    """Return the words with dashes in the names of flags, and ``=`` between a flag and a value that is optional.

    Otherwise ``--lora llama-3.1-8b`` would read the model as the rank.
    """
    optional = dict(_optional_values())
    normal: list[str] = []
    waiting = list(words)
    while waiting:
        word = _dashed(waiting.pop(0))
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
    return f"{name.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


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
