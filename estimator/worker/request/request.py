"""A trace's request: the tables of a job file, with the same names, meaning and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .user_code import Code


@dataclass(frozen=True)
class Training:
    """How a step is taken."""

    framework: str = "transformers"
    micro_batch: int = 1
    sequence_length: int = 2048
    gradient_accumulation: int = 1
    precision: str = "bf16-mixed"
    optimizer: str = "adamw"
    activation_checkpointing: str = "none"
    activation_offload: bool = False
    optimizer_in_backward: bool = False
    compile: bool = False
    loss: str = "full"
    mode: str = "train"

    @property
    def mixed(self) -> bool:
        """Under autocast, with fp32 weights."""
        return self.precision.endswith("-mixed")


@dataclass(frozen=True)
class Lora:
    """Adapters."""

    rank: int = 16
    targets: list[str] | str = field(default_factory=lambda: ["q_proj", "v_proj"])
    quantization: str = "none"


@dataclass(frozen=True)
class Parallel:
    """Over what the job is spread."""

    strategy: str = "none"
    data_shard: int = 1
    data_replicate: int = 1
    tensor: int = 1
    sequence_parallel: bool = False
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    reshard_after_forward: bool = True
    reduce_dtype: str = "fp32"
    cpu_offload: str = "none"
    sharding: str = "full"
    double_buffer: bool = False
    load_on_rank_zero: bool = False
    tensor_plan: str | None = None

    @property
    def world(self) -> int:
        """Ranks of the dimensions that a trace applies."""
        return self.data_shard * self.data_replicate * self.tensor

    @property
    def sharded(self) -> bool:
        """FSDP2 splits the weights."""
        return self.strategy == "fsdp2" and self.data_shard > 1


@dataclass(frozen=True)
class Request:
    """One job to trace."""

    config: dict[str, Any]
    task: str = "causal-lm"
    attention: str = "sdpa"
    training: Training = field(default_factory=Training)
    lora: Lora | None = None
    parallel: Parallel = field(default_factory=Parallel)
    as_is: bool = False
    """What torch does on the CPU is left as it is; else it is corrected to what CUDA would do."""
    allocator: dict[str, Any] | None = None
    """Settings and capacity for the replay through the allocator's model."""
    code: Code | None = None
    """Code that the user asked to be run; None: only the installed libraries' own."""


def read_request(message: dict[str, Any]) -> Request:
    """A worker's message as a request.

    Raises:
        TypeError: it has a field that job files do not have.
    """
    lora = message.get("lora")
    return Request(
        config=message.get("config") or {},
        task=message.get("task", "causal-lm"),
        attention=message.get("attention", "sdpa"),
        training=Training(**message.get("training") or {}),
        lora=None if lora is None else Lora(**lora),
        parallel=Parallel(**message.get("parallel") or {}),
        as_is=bool(message.get("as_is")),
        allocator=message.get("allocator"),
        code=read_code(message),
    )


def read_code(message: dict[str, Any]) -> Code | None:
    """The code that a message allows to be run."""
    code = message.get("code")
    return Code(**code) if code else None
