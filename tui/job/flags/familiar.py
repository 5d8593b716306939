"""Flags by the names that other tools give to settings: their meaning here, and the settings that they make.

Meanings are those of the tool that has the name: transformers' Trainer and TRL (``--per-device-train-batch-size``,
``--max-length``, ``--bf16``, ``--optim``), axolotl (``--sequence-len``), LLaMA-Factory (``--cutoff-len``),
torchtune, unsloth, DeepSpeed (``--train-batch-size``), Megatron-LM (``--global-batch-size``), torchrun and
accelerate (``--nproc-per-node``, ``--num-processes``), vLLM (``--max-model-len``).
"""

from collections.abc import Mapping

import msgspec

from .values import (
    AMP,
    BITS,
    COMPLETION,
    FP8,
    GLOBAL_BATCH,
    METHOD,
    METHODS,
    NODES,
    OF_INPUT,
    OF_METHOD,
    PROCESSES,
    PROMPT,
    RANDOM,
    SERVED,
    SOFT,
    TUNING,
    Reader,
    Settings,
    argument,
    attention,
    bits,
    cache_dtype,
    checkpointing,
    context_ranks,
    ddp,
    deepspeed,
    dtype,
    engine,
    fixed,
    flash_attention,
    fsdp,
    lora,
    lora_targets,
    named,
    number,
    of_input,
    offload,
    optimizer,
    qlora,
    same_as,
    served_weights,
    sharding_strategy,
    stage,
    switch,
    tokens,
    zero,
)


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


CHECKPOINTING, OFFLOAD = "training.activation_checkpointing", "training.activation_offload"
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
          "--ctx-size --n-ctx --num-ctx --context-len --context-size --context-window --max-len", "N", tokens,
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
    _flag("--recompute-activations", "", {CHECKPOINTING: "selective"},
          "Recompute attention only (--activation-checkpointing selective)."),
    _switch("--activation-offloading --enable-activation-offloading", "The same as --activation-offload.",
            {OFFLOAD: True}, {OFFLOAD: False}),
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
    _flag("--unsloth", "", {f"{SOFT}training.loss": "unsloth", f"{SOFT}{CHECKPOINTING}": "full",
                            f"{SOFT}{OFFLOAD}": True},
          "Unsloth's defaults: its loss (--loss unsloth), and --gradient-checkpointing unsloth.",
          remark=(
              "its loss, and checkpointing that offloads to CPU RAM, as in its CLI; adapters and 4-bit "
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
        for name in METHODS
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
