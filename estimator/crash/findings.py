"""Sentences on a failure of memory: what it says by itself, and what it says beside the job's budget."""

from collections.abc import Iterator

from ..budget import Budget
from ..common import GIB, MIB, VramtopError, format_apart, format_gib
from ..model import resolve_model
from .records import Failure, OutOfMemory
from .snapshot import MemorySnapshot

ALLOCATOR_SETTING = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_MAX_OTHERS = 4
_ROUNDED = 0.006
"""Figures of a message may be off by so much of themselves: torch prints two decimals, of a unit."""
_WORDS = {2: "16-bit", 4: "fp32"}
_MORE_HOST_MEMORY = (
    "Ask the scheduler for more memory (--mem), or start fewer ranks or DataLoader workers on this host."
)


def failure_findings(failure: Failure, snapshot: MemorySnapshot | None) -> Iterator[str]:
    """Yield what a failure says by itself, the cause first."""
    if failure.kind == "gpu" and failure.memory is not None:
        yield from _memory_findings(failure.memory, snapshot)
        yield from _history_findings(failure, snapshot)
    elif failure.kind == "gpu library":
        yield (
            "A library or the driver found no GPU memory: CUDA, cuBLAS, cuDNN or NCCL allocate outside PyTorch's "
            "allocator and do not make it give back its cache. The message has no figures."
        )
        yield (
            "Leave them room: a smaller job, or torch.cuda.set_per_process_memory_fraction(0.95), with which PyTorch "
            "gives back its cache earlier. If several processes share the GPU, look at it with vramtop."
        )
    elif failure.kind == "host":
        size = f" of {size_text(failure.tried_host_bytes)}" if failure.tried_host_bytes else ""
        yield f"CPU RAM ran out, not GPU memory: an allocation{size} on the host failed."
        if "shm" in failure.text or "shared memory" in failure.text:
            yield "It was shared memory: /dev/shm is full; in a container give it more (docker run --shm-size 8g)."
        yield _MORE_HOST_MEMORY
    else:
        yield from _killed_findings(failure)


def _killed_findings(failure: Failure) -> Iterator[str]:
    if failure.sure:
        yield (
            "The host ran out of memory: the kernel's OOM killer, or the scheduler, ended a process because CPU RAM or "
            "the job's limit of it was used up; GPU memory was not the cause."
        )
        yield _MORE_HOST_MEMORY
    else:
        yield (
            "A process was ended by SIGKILL (exit code -9), which GPU memory never causes: usually a host "
            "out-of-memory kill, but the log does not say who sent it (a scheduler at its time limit, or a launcher "
            "after another rank had failed, sends it too)."
        )
        yield (
            "Find out: dmesg -T | grep -i oom, or on Slurm: sacct -j JOBID --format=JobID,State,MaxRSS,ReqMem; "
            "OUT_OF_MEMORY means a host out-of-memory kill, TIMEOUT the time limit."
        )


def _memory_findings(memory: OutOfMemory, snapshot: MemorySnapshot | None) -> Iterator[str]:
    tried, total, free = memory.tried_bytes, memory.total_bytes, memory.free_bytes
    if tried is not None and total is not None and tried > total:
        yield (
            f"A single allocation of {size_text(tried)} is larger than the whole GPU ({format_gib(total)} GiB): "
            "nothing else that runs there matters, one tensor must become smaller."
        )
        return
    if memory.allowed_bytes is not None and free is not None and tried is not None and free >= tried:
        yield (
            f"The program limits itself to {format_gib(memory.allowed_bytes)} GiB (set_per_process_memory_fraction), "
            f"although {format_gib(free)} GiB of the GPU were free."
        )
    yield from _other_processes(memory)
    yield from _fragmentation(memory, snapshot)
    if memory.private_pool_bytes and memory.private_pool_bytes > GIB // 4:
        yield (
            f"{format_gib(memory.private_pool_bytes)} GiB lie unused in memory pools of CUDA graphs, which other "
            "allocations may not use."
        )
    allocated = memory.allocated_bytes
    if total and allocated is not None and allocated > 0.75 * total:
        yield (
            f"Tensors of this process fill {100 * allocated / total:.0f} % of the GPU: it needs a smaller job, or a "
            "larger or another GPU."
        )


def _other_processes(memory: OutOfMemory) -> Iterator[str]:
    beside, tried, free = memory.beside_bytes, memory.tried_bytes, memory.free_bytes
    if not beside or beside < GIB // 2:
        return
    named = sorted(memory.others, key=lambda other: -other.used_bytes)[:_MAX_OTHERS]
    which = ", ".join(f"process {other.pid}: {format_gib(other.used_bytes)} GiB" for other in named)
    text = f"Other processes and the driver hold {format_gib(beside)} GiB of the GPU" + (f" ({which})" if which else "")
    others = sum(other.used_bytes for other in memory.others) or beside
    if tried is None or free is None:
        yield f"{text}."
    elif free + others >= tried:
        yield f"{text}: without them the allocation would have succeeded."
    else:
        yield f"{text}; even without them there would have been too little."


def _fragmentation(memory: OutOfMemory, snapshot: MemorySnapshot | None) -> Iterator[str]:
    unused, tried, free = memory.unallocated_bytes, memory.tried_bytes, memory.free_bytes
    if unused is None or tried is None or unused < max(64 * MIB, tried // 4):
        return
    pieces, remedy = "", f"Set {ALLOCATOR_SETTING}."
    if snapshot is not None:
        largest = size_text(snapshot.largest_free_bytes)
        pieces = f", in {snapshot.free_blocks:,} free blocks of which the largest has {largest}"
        if snapshot.expandable:
            remedy = "Expandable segments are on already; what is left are pools of other streams or of CUDA graphs."
    if unused >= tried:
        yield (
            f"Fragmentation: {size_text(unused)} are reserved and unused, more than the {size_text(tried)} asked for"
            f"{pieces}, but not in one piece. {remedy}"
        )
    elif free is not None and free + unused >= tried:
        yield (
            f"Fragmentation adds to it: {size_text(unused)} are reserved and unused{pieces}; with what was free they "
            f"would have been enough for the {size_text(tried)} asked for. {remedy}"
        )


def _history_findings(failure: Failure, snapshot: MemorySnapshot | None) -> Iterator[str]:
    if failure.steps is not None and failure.steps >= 3:
        yield (
            f"{failure.steps:,} steps had gone well before: later a batch was longer or larger, something ran that "
            "runs only now and then (evaluation, saving, generation), or memory grows from step to step."
        )
    if snapshot is not None and not snapshot.has_stacks:
        yield (
            "The snapshot has no stacks, so what its tensors are is not known: record them with "
            "vramtop run --snapshot-on-oom, or torch.cuda.memory._record_memory_history()."
        )


def job_findings(
    failure: Failure, budget: Budget, snapshot: MemorySnapshot | None, *, least_bytes: int | None
) -> Iterator[str]:
    """Yield what a failure says beside the budget of its job."""
    memory, peak = failure.memory, budget.peak
    span = f"({format_gib(peak.low_bytes)} - {format_gib(peak.high_bytes)})"
    if failure.kind in ("host", "killed"):
        if budget.host is not None:
            ranks = min(8, len(budget.ranks))
            loading, steady = budget.host.loading_bytes(ranks), budget.host.steady_bytes(ranks)
            yield (
                f"Predicted CPU RAM of {ranks} process{'es' if ranks > 1 else ''} on one host: "
                f"{format_gib(loading)} GiB while loading, {format_gib(steady)} GiB after that."
            )
        return
    if memory is None:
        yield f"The job is predicted to need {format_gib(peak.device_bytes)} GiB {span} on each GPU."
        return
    total = memory.total_bytes
    usable = total - (memory.beside_bytes or 0) if total is not None else None
    if usable is not None:
        yield _verdict(span, budget, usable, memory)
    if memory.tried_bytes is not None and (tensor := _known_tensor(memory.tried_bytes, budget)):
        yield f"The {size_text(memory.tried_bytes)} asked for are the size of {tensor}."
    if least_bytes is not None and least_bytes > peak.high_bytes:
        yield (
            f"What ran needs more than the job that was given: at least {format_gib(least_bytes)} GiB (its tensors, "
            "the allocation that failed, and what lies outside PyTorch). Compare its settings: batch, length, "
            "optimizer, checkpointing, sharding."
        )
    if snapshot is not None and snapshot.has_stacks:
        yield from _components_beside(snapshot, budget, failure)


def _verdict(span: str, budget: Budget, usable: int, memory: OutOfMemory) -> str:
    peak = budget.peak
    need, room = format_apart(peak.device_bytes, usable)
    predicted, room = f"{need} GiB {span}", f"the {room} GiB that this process could use"
    if memory.beside_bytes and memory.total_bytes:
        room += f" of the GPU's {format_gib(memory.total_bytes)}"
    if peak.low_bytes > usable:
        return f"The failure was to be expected: the job is predicted to need {predicted}, more than {room}."
    if peak.high_bytes > usable:
        return f"It was tight: the job is predicted to need {predicted} of {room}."
    return f"By its budget the job fits: {predicted} of {room}."


def _known_tensor(tried: int, budget: Budget) -> str | None:
    """Return which tensor of the job has the size of the allocation that failed; None: none that is known."""
    for tensor in budget.largest:
        if tensor.bytes and abs(tensor.bytes - tried) <= _ROUNDED * tried and tensor.bytes >= MIB:
            shape = " x ".join(map(str, tensor.shape))
            where = f" of {tensor.module}" if tensor.module else ""
            return f"a tensor{where} ({shape}, {tensor.dtype}; {tensor.component})"
    job = budget.job
    try:
        vocabulary = resolve_model(job.model).config.get("vocab_size")
    except VramtopError:
        return None
    if type(vocabulary) is not int or vocabulary <= 0:
        return None
    tokens = job.training.micro_batch * job.training.sequence_length
    for width, word in _WORDS.items():
        if abs(tokens * vocabulary * width - tried) <= _ROUNDED * tried:
            return f"the logits in {word}: {tokens:,} tokens x {vocabulary:,} words"
    return None


def _components_beside(snapshot: MemorySnapshot, budget: Budget, failure: Failure) -> Iterator[str]:
    """Yield the component that exceeds its prediction most, if it explains anything."""
    phase = budget.phase(failure.phase) if failure.phase else None
    predicted = phase.components if phase else budget.peak.components
    excess = {
        name: held - getattr(predicted, name)
        for name, held in snapshot.components.items()
        if name not in ("unknown", "gradients or temporary")
    }
    name = max(excess, key=lambda each: excess[each], default=None)
    if name is not None and excess[name] > max(GIB // 2, 0.05 * budget.peak.device_bytes):
        yield (
            f"{name.capitalize()} hold {format_gib(snapshot.components[name])} GiB, {format_gib(excess[name])} GiB "
            f"more than predicted {'for that phase' if phase else 'at the peak'}."
        )


def size_text(size: int | None) -> str:
    """Return a size with its unit, in MiB below one GiB."""
    if size is None:
        return "an unknown size"
    return f"{size / MIB:,.0f} MiB" if size < GIB else f"{format_gib(size, digits=2)} GiB"
