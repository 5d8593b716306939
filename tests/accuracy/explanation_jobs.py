"""The jobs that ``explanations.py`` simulates, and the plausible causes for which each may diverge from its settings.

The causes are written independently of those that the estimator searches. Numeric settings that can take any value
differ from the values that the estimator tries.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vramtop.estimator.budget import Budget
from vramtop.estimator.formula.process_memory import nccl_bytes
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping

Estimate = Callable[[Job], Budget]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueCause:
    """The true cause of a divergence: settings and memory in which a run differs from its job."""

    name: str
    """Name that the estimator gives this cause."""
    changes: Mapping[str, Any]
    allocated_bytes: int = 0
    """Additional bytes in torch's allocator."""


def _job(model: str, batch: int, length: int, *more: str, task: str = "causal-lm") -> Job:
    """Return a job with settings such as ``training.precision=bf16``; values are parsed as int, bool or str."""
    tables: dict[str, Any] = {"model": {"id": model, "task": task}}
    tables["training"] = {"micro_batch": batch, "sequence_length": length}
    for setting in more:
        dotted, _, value = setting.partition("=")
        table, _, key = dotted.partition(".")
        booleans: dict[str, Any] = {"true": True, "false": False}
        tables.setdefault(table, {})[key] = int(value) if value.isdigit() else booleans.get(value, value)
    return job_from_mapping(tables, where=model)


LLAMA, QWEN, MISTRAL = "meta-llama/Llama-3.1-8B", "Qwen/Qwen2.5-7B", "mistralai/Mistral-7B-v0.3"
CHECKPOINTED = "training.activation_checkpointing=full"
FUSED, BF16, MIXED = "training.optimizer=adamw-fused", "training.precision=bf16", "training.precision=bf16-mixed"
LORA, NF4 = "lora.targets=all-linear", "lora.quantization=nf4-double"
H100, A100, L4, RTX = "target.gpu=h100-80gb", "target.gpu=a100-40gb", "target.gpu=l4", "target.gpu=rtx-4090"


DDP = ("parallel.strategy=ddp", "parallel.data_replicate=8")


def _shard(strategy: str, ranks: int, copies: int = 1) -> tuple[str, ...]:
    return (
        f"parallel.strategy={strategy}",
        f"parallel.data_shard={ranks}",
        f"parallel.data_replicate={copies}",
    )


JOBS: tuple[Job, ...] = (
    _job(LLAMA, 2, 4096, MIXED, FUSED, CHECKPOINTED, H100, *_shard("fsdp2", 8)),
    _job(LLAMA, 1, 8192, MIXED, FUSED, CHECKPOINTED, H100, *_shard("fsdp1", 16)),
    _job(LLAMA, 4, 2048, BF16, FUSED, H100, *_shard("fsdp2", 8)),
    _job(LLAMA, 2, 4096, MIXED, FUSED, CHECKPOINTED, A100, *_shard("zero3", 8)),
    _job(LLAMA, 1, 4096, MIXED, FUSED, CHECKPOINTED, H100, *_shard("zero2", 8)),
    _job(LLAMA, 1, 2048, BF16, "training.optimizer=adamw-8bit", CHECKPOINTED, H100),
    _job(LLAMA, 2, 2048, BF16, FUSED, LORA, CHECKPOINTED, A100),
    _job(LLAMA, 4, 1024, BF16, FUSED, LORA, NF4, CHECKPOINTED, RTX, "training.optimizer=paged-adamw-8bit"),
    _job(QWEN, 4, 2048, BF16, FUSED, LORA, CHECKPOINTED, H100),
    _job(QWEN, 8, 1024, MIXED, FUSED, LORA, NF4, CHECKPOINTED, A100),
    _job(QWEN, 2, 8192, MIXED, FUSED, CHECKPOINTED, H100, *_shard("fsdp2", 8, 2)),
    _job(MISTRAL, 2, 4096, BF16, FUSED, "lora.rank=64", LORA, H100),
    _job(MISTRAL, 1, 2048, BF16, FUSED, LORA, "lora.quantization=int8", L4, CHECKPOINTED),
    _job("meta-llama/Llama-2-13b-hf", 4, 4096, MIXED, FUSED, CHECKPOINTED, H100, *_shard("fsdp1", 8)),
    _job("meta-llama/Llama-3.1-70B", 1, 4096, MIXED, FUSED, CHECKPOINTED, H100, *_shard("fsdp2", 32)),
    _job("meta-llama/Llama-3.1-70B", 1, 2048, BF16, FUSED, LORA, NF4, CHECKPOINTED, H100),
    _job("meta-llama/Llama-3.2-1B", 8, 2048, MIXED, H100),
    _job("meta-llama/Llama-3.2-1B", 4, 1024, BF16, FUSED, CHECKPOINTED, RTX),
    _job("meta-llama/Llama-3.2-3B", 2, 4096, MIXED, CHECKPOINTED, H100, *_shard("zero2", 4)),
    _job("Qwen/Qwen2.5-0.5B", 16, 1024, MIXED, FUSED, A100, *DDP),
    _job("Qwen/Qwen2.5-1.5B", 4, 2048, BF16, FUSED, RTX, CHECKPOINTED),
    _job("Qwen/Qwen2.5-1.5B", 4, 4096, MIXED, H100, "parallel.strategy=ddp", "parallel.data_replicate=4"),
    _job("Qwen/Qwen3-0.6B", 8, 2048, MIXED, FUSED, A100, "training.loss=fused-linear"),
    _job("Qwen/Qwen3-8B", 2, 4096, BF16, FUSED, CHECKPOINTED, H100, *_shard("fsdp2", 8), "training.loss=fused-linear"),
    _job("Qwen/Qwen3-30B-A3B", 1, 4096, BF16, FUSED, CHECKPOINTED, H100, *_shard("fsdp2", 16)),
    _job("google/gemma-2-9b", 1, 4096, BF16, FUSED, LORA, "model.attention=eager", CHECKPOINTED, H100),
    _job("google/gemma-3-1b-it", 4, 2048, MIXED, FUSED, H100),
    _job("openai-community/gpt2-large", 8, 1024, MIXED, A100),
    _job("openai-community/gpt2", 32, 512, "training.precision=fp32", L4),
    _job("microsoft/phi-4", 1, 4096, MIXED, FUSED, CHECKPOINTED, H100, *_shard("zero3", 8), "parallel.cpu_offload=all"),
    _job("google-bert/bert-base-uncased", 64, 256, MIXED, L4, task="masked-lm"),
    _job("google-bert/bert-large-uncased", 32, 512, "training.precision=fp16-mixed", A100, task="masked-lm"),
    _job("google-bert/bert-base-uncased", 32, 128, "training.precision=fp32", RTX, task="sequence-classification"),
    _job("HuggingFaceTB/SmolLM2-360M", 16, 2048, MIXED, FUSED, RTX, CHECKPOINTED),
    _job("HuggingFaceTB/SmolLM2-1.7B", 4, 2048, BF16, FUSED, A100, *DDP),
    _job("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 8, 2048, MIXED, FUSED, CHECKPOINTED, A100),
    _job(LLAMA, 2, 8192, BF16, FUSED, "training.framework=torchtitan", "training.activation_checkpointing=selective",
         H100, *_shard("fsdp2", 8)),
    _job(LLAMA, 4, 4096, BF16, FUSED, "training.framework=torchtune", CHECKPOINTED, "training.loss=chunked", A100,
         *_shard("fsdp2", 8)),
    _job(MISTRAL, 2, 2048, BF16, FUSED, "training.framework=litgpt", LORA, H100),
    _job(LLAMA, 2, 4096, MIXED, FUSED, "training.framework=megatron", "parallel.tensor=2", CHECKPOINTED, H100,
         *_shard("zero1", 4)),
)  # fmt: skip


def plausible_causes(job: Job, estimate: Estimate) -> Iterator[TrueCause]:
    """Yield every plausible cause of a divergence of this job."""
    yield from _activation_causes(job)
    yield from _batch_causes(job)
    yield from _model_state_causes(job, estimate(job))
    yield from _parallelism_causes(job, estimate(job))


def combine(one: TrueCause, other: TrueCause) -> TrueCause | None:
    """Return the combination of two causes; None if they change the same setting."""
    if one.name == other.name or one.changes.keys() & other.changes.keys():
        return None
    return TrueCause(
        name=f"{one.name} + {other.name}",
        changes={**one.changes, **other.changes},
        allocated_bytes=one.allocated_bytes + other.allocated_bytes,
    )


def _activation_causes(job: Job) -> Iterator[TrueCause]:
    training, attention = job.training, job.model.attention
    checkpointing = "training.activation_checkpointing"
    if training.activation_checkpointing == "none":
        yield TrueCause(name="checkpointing on", changes={checkpointing: "full"})
    else:
        yield TrueCause(name="checkpointing off", changes={checkpointing: "none"})
    if attention == "eager":
        yield TrueCause(name="attention fused", changes={"model.attention": "sdpa"})
    else:
        yield TrueCause(name="attention eager", changes={"model.attention": "eager"})
    if job.model.task == "causal-lm":
        full = training.loss == "full"
        loss = "fused-linear" if full else "full"
        yield TrueCause(name="loss fused" if full else "loss full", changes={"training.loss": loss})


def _batch_causes(job: Job) -> Iterator[TrueCause]:
    batch, length = job.training.micro_batch, job.training.sequence_length
    if batch % 2 == 0:
        yield TrueCause(name="batch smaller", changes={"training.micro_batch": batch // 2})
    yield TrueCause(name="batch larger", changes={"training.micro_batch": batch * 2})
    for share in (0.3, 0.55, 0.8):
        yield TrueCause(name="shorter sequences", changes={"training.sequence_length": round(length * share)})
    yield TrueCause(name="longer sequences", changes={"training.sequence_length": 2 * length})


def _model_state_causes(job: Job, budget: Budget) -> Iterator[TrueCause]:
    optimizer, precision = job.training.optimizer, job.training.precision
    step = budget.phase("optimizer step")
    others = {"adamw": "adamw-fused", "adamw-fused": "adamw", "paged-adamw-8bit": "adamw-8bit", "adamw-8bit": "adamw"}
    for other in sorted({others[optimizer], "adamw-8bit"} - {optimizer}):
        yield TrueCause(name=f"optimizer {other}", changes={"training.optimizer": other})
    half = precision.removesuffix("-mixed") if precision != "fp32" else "bf16"
    for other in sorted({half, f"{half}-mixed", "fp32"} - {precision}):
        yield TrueCause(name=f"precision {other.replace(half, '16')}", changes={"training.precision": other})
    if job.lora is None:
        yield TrueCause(name="adapters alone", changes={"lora.rank": 32, "lora.targets": "all-linear"})
    else:
        yield TrueCause(name="all weights trained", changes={"lora": None})
    if job.lora is not None and job.lora.quantization == "none":
        yield TrueCause(name="quantization nf4", changes={"lora.quantization": "nf4"})
    elif job.lora is not None:
        yield TrueCause(name="quantization off", changes={"lora.quantization": "none"})
    if job.model.task == "causal-lm" and job.lora is None and step is not None:
        yield TrueCause(name="second model", changes={}, allocated_bytes=step.components.weights)


def _parallelism_causes(job: Job, budget: Budget) -> Iterator[TrueCause]:
    parallel, step = job.parallel, budget.phase("optimizer step")
    if parallel.strategy not in ("none", "ddp"):
        whole = {"parallel.strategy": "ddp", "parallel.data_shard": 1, "parallel.data_replicate": parallel.data_ranks}
        yield TrueCause(name="sharding off", changes={**whole, "parallel.cpu_offload": "none"})
    if parallel.strategy in ("zero2", "zero3"):
        other = "zero3" if parallel.strategy == "zero2" else "zero2"
        yield TrueCause(name=f"stage {other[-1]}", changes={"parallel.strategy": other})
    if parallel.strategy in ("fsdp1", "fsdp2"):
        other = "fsdp1" if parallel.strategy == "fsdp2" else "fsdp2"
        yield TrueCause(name="other FSDP", changes={"parallel.strategy": other})
        yield TrueCause(name="kept gathered", changes={"parallel.reshard_after_forward": False})
    if parallel.data_shard > 8:
        copies = parallel.data_ranks // 8
        changes = {"parallel.data_shard": 8, "parallel.data_replicate": copies}
        yield TrueCause(name="sharded by node", changes=changes)
    if parallel.cpu_offload != "none":
        yield TrueCause(name="offload off", changes={"parallel.cpu_offload": "none"})
    elif parallel.strategy in ("fsdp1", "fsdp2", "zero2", "zero3"):
        yield TrueCause(name="offload optimizer", changes={"parallel.cpu_offload": "optimizer"})
    if parallel.strategy == "ddp" and step is not None:
        bucket = step.components.communication - nccl_bytes(job.parallel)
        yield TrueCause(name="bucket views", changes={}, allocated_bytes=-bucket)
