"""Records of a failure of memory, as a log describes it."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from ..budget import PhaseName

FailureKind = Literal["gpu", "gpu library", "start", "host", "killed", "on chip", "not understood"]
"""``gpu``: torch's allocator raised, with its figures; ``gpu library``: another framework or library had no GPU
memory; ``start``: a server refused to start for lack of GPU memory; ``host``: an allocation of CPU RAM failed;
``killed``: a process was killed, by the kernel's out-of-memory killer, by a monitor, or by a signal that they send;
``on chip``: a kernel needs more shared memory or registers than the chip has; ``not understood``: the line says
that memory ran out, in a wording that is not known."""
_FURTHER_STEPS = 3
"""Ranks share a stream, so a bar or two may follow the failure of one; more steps mean that training went on."""


class OtherProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that torch names beside its own."""

    pid: int
    """Its process id."""
    used_bytes: int
    """GPU memory that it holds."""


class OutOfMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an out-of-memory message; None for what its wording does not say.

    Torch rounds them to two decimals of their unit.
    """

    backend: str
    """``CUDA``, ``HIP``, ``XPU``, ``NPU``; of another framework its name."""
    gpu: int | None
    """Index among the devices that the process sees."""
    tried_bytes: int | None = None
    """Size of the allocation that failed."""
    total_bytes: int | None = None
    """Capacity of the GPU, or of the MIG device."""
    free_bytes: int | None = None
    """Free as CUDA counts it."""
    allocated_bytes: int | None = None
    """Held by tensors; with memory pools of CUDA graphs also what is unused there."""
    unallocated_bytes: int | None = None
    """Reserved by torch's allocator, but not allocated."""
    private_pool_bytes: int | None = None
    """Unused in memory pools of CUDA graphs, a part of ``allocated_bytes``; None: there are none, or unknown."""
    process_bytes: int | None = None
    """Held by the process as NVML counts it, CUDA context included."""
    allowed_bytes: int | None = None
    """Limit that the program has set with ``set_per_process_memory_fraction``; None: none, or unknown."""
    others: tuple[OtherProcess, ...] = ()
    """Other processes on the GPU that torch names."""

    @property
    def reserved_bytes(self) -> int | None:
        """Bytes that torch's allocator holds."""
        if self.allocated_bytes is None or self.unallocated_bytes is None:
            return None
        return self.allocated_bytes + self.unallocated_bytes

    @property
    def outside_bytes(self) -> int | None:
        """Bytes that the process holds outside torch's allocator: CUDA context, libraries, NCCL."""
        if self.process_bytes is None or self.reserved_bytes is None:
            return None
        return max(0, self.process_bytes - self.reserved_bytes)

    @property
    def beside_bytes(self) -> int | None:
        """Bytes of other processes and of the driver. None: not known."""
        if self.process_bytes is None or self.total_bytes is None or self.free_bytes is None:
            return sum(other.used_bytes for other in self.others) or None
        rest = self.total_bytes - self.free_bytes - self.process_bytes
        return max(0, rest, sum(other.used_bytes for other in self.others))

    @property
    def unattributed_bytes(self) -> int | None:
        """Bytes in use that the allocator does not hold, where the message does not say whose they are."""
        total, free, reserved = self.total_bytes, self.free_bytes, self.reserved_bytes
        if self.process_bytes is not None or total is None or free is None or reserved is None:
            return None
        return total - free - reserved


class StackFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a traceback or of a recorded stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        """Return ``file:line function``, with the last folder of the file."""
        return f"{'/'.join(self.file.split('/')[-2:])}:{self.line} {self.function}"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure of memory in a log, or the one that a memory snapshot shows."""

    kind: FailureKind
    """`gpu`: torch's allocator raised, with its figures; `gpu library`: another framework or library had no GPU memory;
    `start`: a server refused to start for lack of GPU memory; `host`: an allocation of CPU RAM failed; `killed`: a
    process was killed; `on chip`: a kernel needs more shared memory or registers than the chip has; `not understood`:
    the line says that memory ran out, in a wording that is not known."""
    line: int
    """Number of its line in the log, from 1; 0: of a memory snapshot."""
    text: str
    """The line, shortened."""
    sure: bool = True
    """false: it may have other reasons than memory, such as SIGKILL or a cuDNN without an algorithm."""
    source: str | None = None
    """Framework, library or program that says it; null: torch, or unknown."""
    says: tuple[str, ...] = ()
    """What this wording means and what helps."""
    rank: int | None = None
    """Rank of the process; null: the log does not say it."""
    memory: OutOfMemory | None = None
    """Figures of the message; null: it has none."""
    phase: PhaseName | None = None
    """Part of the step in which it happened, by its traceback; null: unknown."""
    place: str | None = None
    """Innermost line of the traceback outside torch's own files: `file:line function`; null: unknown."""
    code: str | None = None
    """Source of that line, as the traceback prints it; null: unknown."""
    tried_host_bytes: int | None = None
    """CPU RAM that was asked for; null: unknown, or the failure is not of CPU RAM."""
    steps: int | None = None
    """Steps that a progress bar had counted before; null: none was seen."""
    caught: bool = False
    """true: the log says that the program caught it and went on, or that training came to its end later."""
    later_steps: int | None = None
    """Steps, or epochs, that the same stream counts after it; null: none was seen."""

    @property
    def survived(self) -> bool:
        """True if the log goes on after it: it was caught, or the run was started again."""
        return self.caught or (self.later_steps or 0) >= _FURTHER_STEPS


class CrashLog(msgspec.Struct, frozen=True, kw_only=True):
    """Failures of memory that a log reports."""

    failures: tuple[Failure, ...]
    """In their order, each once per rank."""
    lines: int
    unkept: int = 0
    """Failures beyond the maximum that is kept."""
    launch_line: str | None = None
    """The last command line that the log shows and that starts Python or a launcher; None: there is none."""

    @property
    def cause(self) -> Failure | None:
        """The failure to explain: the first that torch's allocator reports, else the first that is sure, else any.

        When one rank runs out of GPU memory, its launcher kills the others, so that a killed rank may come before it
        in a log only by its printing. What was survived did not end the run.
        """
        return min(self.failures, key=_order, default=None)


_RANKING = (("gpu", True), ("gpu library", True), ("start", True), ("host", True), ("gpu library", False))
"""Kinds of failures, and whether they are sure, in the order in which one is the cause of the others."""


def _order(failure: Failure) -> tuple[bool, bool, int]:
    """Return the key by which the failure to explain comes first."""
    kind = ("host" if failure.kind == "killed" and failure.sure else failure.kind, failure.sure)
    rank = _RANKING.index(kind) if kind in _RANKING else len(_RANKING)
    return failure.kind == "not understood", failure.survived, rank


_TORCH_FILES = ("/torch/", "torch/_", "<frozen", "/importlib/", "/runpy.py", "/threading.py", "/contextlib.py")
_RULES: tuple[tuple[PhaseName, tuple[str, ...], tuple[str, ...]], ...] = (
    # (phase, ends or parts of the file, functions; empty: any). The first rule with a frame decides.
    (
        "optimizer step",
        ("torch/optim/", "bitsandbytes/optim/", "deepspeed/ops/", "apex/optimizers/", "clip_grad.py"),
        (),
    ),
    (
        "optimizer step",
        ("accelerate/optimizer.py", "amp/grad_scaler.py", "runtime/zero/"),
        ("step", "_take_model_step"),
    ),
    ("backward", ("torch/autograd/graph.py",), ("_engine_run_backward",)),
    ("backward", ("torch/autograd/", "torch/_tensor.py", "deepspeed/runtime/", "accelerator.py"), ("backward", "grad")),
    ("backward", ("torch/utils/checkpoint.py",), ("backward", "unpack_hook", "recompute_fn")),
    ("generation", ("transformers/generation/", "/vllm/", "vllm_client"), ()),
    ("saving", ("transformers/modeling_utils.py", "trainer.py"), ("save_pretrained", "_save_checkpoint", "save_model")),
    ("saving", ("torch/distributed/checkpoint/", "state_dict.py"), ("save", "async_save", "get_state_dict")),
    ("loading", ("transformers/modeling_utils.py", "/auto_factory.py"), ("from_pretrained", "_load_pretrained_model")),
    ("loading", ("nn/modules/module.py",), ("to", "cuda", "_apply", "to_empty", "half", "bfloat16", "load_state_dict")),
    ("loading", ("sharded_data_parallel.py", "_fully_shard.py", "fsdp/_init_utils.py"), ("__init__", "fully_shard")),
    ("loading", ("torch/nn/parallel/distributed.py", "deepspeed/__init__.py"), ("__init__", "initialize")),
    ("loading", ("torch/serialization.py", "safetensors/torch.py"), ("load", "load_file", "_load")),
    ("evaluation", (), ("evaluation_loop", "prediction_step", "evaluate", "validate", "validation_step", "predict")),
    ("forward", ("torch/nn/modules/module.py",), ("_call_impl", "_wrapped_call_impl", "__call__")),
    ("forward", ("torch/nn/functional.py", "loss/loss_utils.py"), ()),
    ("forward", (), ("forward", "training_step", "compute_loss")),
)


def phase_of(frames: Iterable[StackFrame]) -> PhaseName | None:
    """Return the phase of the step in which a stack stands; None: nothing of it says so."""
    first = min((_rule(frame.file, frame.function) for frame in frames), default=len(_RULES))
    return _RULES[first][0] if first < len(_RULES) else None


@lru_cache(maxsize=16_384)
def _rule(file: str, function: str) -> int:
    """Return the first rule that a frame meets; the number of rules if none."""
    for at, (_, files, functions) in enumerate(_RULES):
        if (not files or any(part in file for part in files)) and (not functions or function in functions):
            return at
    return len(_RULES)


def own_frame(innermost_first: Sequence[StackFrame]) -> StackFrame | None:
    """Return the innermost frame outside torch's and Python's own files; None: there is none."""
    return next((frame for frame in innermost_first if not is_torch_file(frame.file)), None)


def is_torch_file(file: str) -> bool:
    """Return True for a file of torch, or of Python's own library."""
    path = file.replace("\\", "/")
    return any(part in path for part in _TORCH_FILES)
