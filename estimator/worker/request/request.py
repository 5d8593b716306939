"""The job in the worker: the tables of a request as they were sent, with their keys as attributes.

The request states every key of a job file's tables (``trace_request`` of ``estimator.trace``), so that no default is
written here again; only what most requests leave out has one.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeVar

from .user_code import UserCode

_T = TypeVar("_T", bound=SimpleNamespace)


def changed(table: _T, **fields: Any) -> _T:
    """Return a table with other values of these fields."""
    return type(table)(**{**vars(table), **fields})


class Training(SimpleNamespace):
    """The job file's table ``training``."""

    @property
    def sequences(self) -> int:
        """Sequences of one forward pass."""
        return int(self.micro_batch * self.sequences_per_example)

    @property
    def mixed(self) -> bool:
        """True under autocast, with fp32 weights."""
        return bool(self.precision.endswith("-mixed"))


class Lora(SimpleNamespace):
    """The job file's table ``lora``, with the dtypes that framework and versions give adapters and weights."""

    dropout = 0.0
    quantization = "none"
    fp32_parameters = "none"
    """What k-bit preparation casts to fp32: ``all`` that is not quantized, ``norms`` or ``none``."""
    adapter_dtype: str | None = None
    """None: peft's choice."""
    autocast = False
    """Autocast is on although the weights have 16 bits."""


class Parallel(SimpleNamespace):
    """The job file's table ``parallel``."""

    @property
    def zero_stage(self) -> int:
        """Stage of DeepSpeed's ZeRO; 0: another strategy."""
        return int(self.strategy[-1]) if self.strategy.startswith("zero") else 0

    @property
    def megatron_fsdp(self) -> bool:
        """True if Megatron-FSDP runs the job: with one rank too, as it keeps gradients and weights in its own way."""
        return bool(self.strategy == "megatron-fsdp")

    @property
    def world_size(self) -> int:
        """Ranks of the dimensions that a trace applies."""
        own = self.zero_stage or self.megatron_fsdp
        return int(self.tensor * (1 if own else self.data_shard * self.copies))

    @property
    def copies(self) -> int:
        """Copies that a trace makes: two stand for any number, on which no rank's memory depends."""
        return 2 if self.flat_sharded and self.data_shard == 1 else min(self.data_replicate, 2)

    @property
    def sharded(self) -> bool:
        """True if FSDP2 shards the weights."""
        return bool(self.strategy == "fsdp2" and self.data_shard > 1)

    @property
    def flat_sharded(self) -> bool:
        """True if FSDP1 makes flat parameters, which hold a unit's parameters, sharded or not."""
        splits = self.data_shard * self.data_replicate > 1 or self.cpu_offload == "all"
        return bool(self.strategy == "fsdp1" and splits)

    @property
    def flat_whole(self) -> bool:
        """True if each rank holds FSDP1's flat parameters whole, as it does where one rank is to share them."""
        return self.flat_sharded and bool(self.sharding == "none" or self.data_shard == 1)


class OptimizerClass(SimpleNamespace):
    """An optimizer class of an installed library, ``path`` (``module:class``), and its ``options`` by keyword."""

    own = False
    """It is a class of the user's own, from the folder that the request's code names."""
    library: str | None = None
    """``module:class`` that ``path`` stands in for, which real steps on a GPU take; None: it is no stand-in."""


class Loop(SimpleNamespace):
    """How the training loop differs from the Trainer's (``loop_request`` of ``estimator.trace``)."""


class OlderVersions(SimpleNamespace):
    """What older versions that the job states do otherwise than those that are installed; false: as these."""


class Trainable(SimpleNamespace):
    """``rules`` for the parameters that train, and what ``otherwise`` holds.

    A rule is a regular expression that is searched in a parameter's name, whether such a parameter trains, and its
    pattern, which is empty if it may match no parameter.
    """


class Request(SimpleNamespace):
    """One job to trace or to measure."""

    config: dict[str, Any]
    task = "causal-lm"
    attention = "sdpa"
    training: Training
    parallel: Parallel
    loop: Loop
    older: OlderVersions
    optimizer: OptimizerClass | None = None
    """The class that ``training.optimizer`` stands for; None: no class can be traced, or the job takes no step."""
    lora: Lora | None = None
    trainable: Trainable | None = None
    """None: everything trains, or the adapters do."""
    checkpoints_units = False
    """Checkpointing calls FSDP's units, reentrantly; by default it is inside of them."""
    zero: dict[str, Any] | None = None
    """The job file's table ``zero``; None: DeepSpeed's defaults."""
    rollout = False
    """Text is generated during training."""
    cpu_kernels = False
    """Leave allocations as torch makes them on the CPU; by default CUDA's kernels are imitated."""
    allocator: dict[str, Any] | None = None
    """Settings and capacity for the replay through the allocator model."""
    code: UserCode | None = None
    """Code that the user allows to run; None: only the installed libraries."""
    device = "cpu"
    """Type of the device that holds the tensors: fake ones are on the CPU."""

    @property
    def autocasts(self) -> bool:
        """True under autocast, whatever the dtype of the weights."""
        return self.training.mixed or (self.lora is not None and self.lora.autocast)


_TABLES: dict[str, type[SimpleNamespace]] = {
    "training": Training,
    "parallel": Parallel,
    "lora": Lora,
    "optimizer": OptimizerClass,
    "loop": Loop,
    "older": OlderVersions,
    "trainable": Trainable,
}


def read_request(message: dict[str, Any]) -> Request:
    """Return a worker's message as a request."""
    tables = {name: kind(**message[name]) for name, kind in _TABLES.items() if message.get(name) is not None}
    request = Request(**{**message, **tables, "code": read_user_code(message)})
    training, parallel = request.training, request.parallel
    if parallel.megatron_fsdp and parallel.main_weights is None:
        parallel = changed(parallel, main_weights=training.mixed)
    if parallel.zero_stage or parallel.megatron_fsdp:  # their mixed precision is 16-bit weights, without autocast
        training = changed(training, precision=training.precision.partition("-")[0])
    return changed(request, training=training, parallel=parallel)


def read_user_code(message: dict[str, Any]) -> UserCode | None:
    """Return the code that a message allows to run, or None; before code can run, the libraries are imported."""
    if not message.get("code"):
        return None
    code = UserCode(**message["code"])
    code.prepare(("torch", "transformers", *(("peft",) if message.get("lora") else ())))
    return code
