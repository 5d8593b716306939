"""Explains a failure of memory: what filled the GPU, why the allocation failed, and at which point of the step."""

import math
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from ..budget import Budget
from ..common.errors import VramtopError
from ..common.sizes import GIB, MIB, UNSEEN_BYTES, format_apart, format_gib, size_text
from ..model.find_config import built_in_models, resolve_model
from .records import Failure, OutOfMemory
from .snapshot.records import MemorySnapshot

_MAX_OTHERS = 4
_LARGEST_CONTEXT = 5 * GIB // 2
"""A CUDA context with NCCL's buffers takes less."""
_ROUNDED = 0.006
"""Figures of a message may be off by so much of themselves: torch prints two decimals, of a unit."""
_ROUNDING = 2 * MIB
"""PyTorch's allocator rounds large segments up to a multiple of this (``kRoundLarge`` in CUDACachingAllocator)."""
_WORDS = {2: "16-bit", 4: "fp32"}
_OF_LOGITS = re.compile(r"\blogits\b|\blm_head\b|\blog_softmax\b|\bcross_entropy\b")
_LEAST_LOGITS = 256 * MIB
_EXACT = 0.0013
"""Rounding, as a share of a size, up to which it rarely fits one of forty vocabularies by chance (5 to 10 %)."""
_FUSED_LOSS = (
    "A fused loss never holds them: use_liger_kernel=True in Trainer's and TRL's arguments, or cut-cross-entropy. "
    "Fewer tokens per micro-batch also make them smaller."
)
_MORE_HOST_MEMORY = (
    "Ask the scheduler for more memory (Slurm: --mem; Kubernetes: resources.limits.memory), or start fewer ranks or "
    "DataLoader workers on this host."
)


def failure_findings(failure: Failure, snapshot: MemorySnapshot | None) -> Iterator[str]:
    """Yield what a failure says by itself, the cause first."""
    if failure.survived:
        yield "The program caught the error and continued, or was started again: it did not end the run."
    if failure.kind == "killed" and failure.source is None:
        yield from _killed_findings(failure)
        return
    yield from failure.says
    if failure.kind == "gpu" and failure.memory is not None:
        found = tuple(_memory_findings(failure.memory, snapshot))
        yield from found or _too_large(failure.memory)
        yield from _history_findings(failure, snapshot)
    elif failure.says:
        return
    elif failure.kind == "not understood":
        yield (
            "vramtop does not know this wording and cannot tell what ran out, if anything: read the lines around it."
        )
    elif failure.kind == "gpu library":
        yield (
            "A library or the driver found no free GPU memory. In a PyTorch program, CUDA, cuBLAS, cuDNN and NCCL "
            "allocate outside its allocator and cannot make it release its cache. The message has no figures."
        )
        yield (
            "Leave them memory: use a smaller job, or in PyTorch torch.cuda.set_per_process_memory_fraction(0.95), "
            "which makes it release its cache earlier. If several processes share the GPU, check it with vramtop."
        )
    else:
        size = f" of {size_text(failure.tried_host_bytes)}" if failure.tried_host_bytes else ""
        yield f"CPU RAM ran out, not GPU memory: an allocation{size} on the host failed."
        if "shm" in failure.text or "shared memory" in failure.text:
            yield "Shared memory ran out: /dev/shm is full; in a container, make it larger (docker run --shm-size 8g)."
        yield _MORE_HOST_MEMORY


def _killed_findings(failure: Failure) -> Iterator[str]:
    if failure.sure:
        yield (
            "The host ran out of memory: the kernel's OOM killer, or the scheduler, killed a process because CPU RAM "
            "or the job's RAM limit was used up; GPU memory was not the cause."
        )
        yield from failure.says
        yield _MORE_HOST_MEMORY
    else:
        yield (
            "A process was killed by SIGKILL (exit code -9), which GPU memory never causes. It is usually a host "
            "out-of-memory kill, but the log does not say who sent it (a scheduler at its time limit or a launcher "
            "after another rank's failure also sends it)."
        )
        yield (
            "To find out: dmesg -T | grep -i oom, or on Slurm: sacct -j JOBID --format=JobID,State,MaxRSS,ReqMem; "
            "OUT_OF_MEMORY means a host out-of-memory kill, TIMEOUT the time limit."
        )


def _memory_findings(memory: OutOfMemory, snapshot: MemorySnapshot | None) -> Iterator[str]:
    tried, total, free = memory.tried_bytes, memory.total_bytes, memory.free_bytes
    if tried is not None and total is not None and tried > total:
        yield (
            f"A single allocation of {size_text(tried)} is larger than the whole GPU ({format_gib(total)} GiB). Other "
            "processes do not matter; that tensor must become smaller."
        )
        return
    if memory.allowed_bytes is not None and free is not None and tried is not None and free >= tried:
        yield (
            f"The program limits itself to {format_gib(memory.allowed_bytes)} GiB (set_per_process_memory_fraction), "
            f"while {format_gib(free)} GiB of the GPU were free."
        )
    elif total is not None and (held := _more_than_the_gpu(memory, total)) is not None:
        yield from _paged(held, total, free or 0, tried)
        return
    elif free is not None and tried is not None and _has_room(memory, free, tried):
        yield (
            f"The GPU had room: {size_text(free)} were free, and {size_text(tried)} were requested. Another limit was "
            "reached: the commit limit of Windows or WSL (RAM and paging file), the quota of a vGPU, of MPS or of a "
            "container, or a memory fraction set by the program; or another process freed memory in between."
        )
        return
    yield from _other_processes(memory)
    yield from _fragmentation(memory, snapshot)
    if memory.private_pool_bytes and memory.private_pool_bytes > GIB // 4:
        yield (
            f"{format_gib(memory.private_pool_bytes)} GiB are unused in memory pools of CUDA graphs, which other "
            "allocations cannot use."
        )
    allocated = memory.allocated_bytes
    if total and allocated is not None and allocated > 0.75 * total:
        yield (
            f"Tensors of this process fill {100 * allocated / total:.0f} % of the GPU: make the job smaller, or use a "
            "larger or another GPU."
        )


def _too_large(memory: OutOfMemory) -> Iterator[str]:
    """Yield what helps where nothing but the size of the job is to blame."""
    tried, total = memory.tried_bytes, memory.total_bytes
    if tried and total and tried > total // 2:
        yield (
            f"The request alone is {100 * tried / total:.0f} % of the GPU: that tensor must become smaller, by a "
            "smaller batch or image or shorter sequences. Attention without a fused kernel makes such tensors: its "
            "scores grow with the square of the length."
        )
    else:
        yield "Make the job smaller (batch, length, resolution, checkpointing), or use a larger or another GPU."


def _has_room(memory: OutOfMemory, free: int, tried: int) -> bool:
    """Return True if far more was free than was asked for; the last hundredth of a GPU may be unusable pieces."""
    return free > max(tried + max(_ROUNDING, _ROUNDED * free), (memory.total_bytes or 0) // 100)


def _more_than_the_gpu(memory: OutOfMemory, total: int) -> int | None:
    """Return what the process had allocated or reserved, if that and what is free are more than the GPU has."""
    free = memory.free_bytes or 0 if memory.tried_bytes is not None else 0  # of another moment where nothing was tried
    held = (size for size in (memory.allocated_bytes, memory.reserved_bytes) if size is not None)
    return next((size for size in held if size + free > 1.01 * total), None)


def _paged(held: int, total: int, free: int, tried: int | None) -> Iterator[str]:
    """Yield what it means that more is held than the GPU has, as drivers of Windows and WSL let it happen."""
    beside = f" that had {size_text(free)} free" if free >= MIB else ""
    yield (
        f"PyTorch held {size_text(held)} on a GPU of {size_text(total)}{beside}: the driver of Windows or WSL has "
        f"moved at least {size_text(held + free - total)} to CPU RAM (CUDA's sysmem fallback policy), which is much "
        "slower. The driver does not report what each process holds."
    )
    yield (
        f"The job needs more than {size_text(held + (tried or 0))}: make it smaller, or use a larger GPU. With the "
        "policy set to 'Prefer No Sysmem Fallback' the job fails at the GPU's size instead of becoming slow."
    )


def _other_processes(memory: OutOfMemory) -> Iterator[str]:
    beside, tried, free = memory.beside_bytes, memory.tried_bytes, memory.free_bytes
    if not beside and (memory.unattributed_bytes or 0) > _LARGEST_CONTEXT:
        yield (
            f"{format_gib(memory.unattributed_bytes)} GiB of the GPU are not PyTorch's, more than its CUDA context "
            "takes: other processes hold them, or a library in this one. Look at the GPU with vramtop or nvidia-smi."
        )
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
        yield f"{text}; even without them there would have been too little memory."


def _fragmentation(memory: OutOfMemory, snapshot: MemorySnapshot | None) -> Iterator[str]:
    unused, tried, free = memory.unallocated_bytes, memory.tried_bytes, memory.free_bytes
    if unused is None or tried is None or unused < max(64 * MIB, tried // 4):
        return
    platform = memory.backend if memory.backend in ("HIP", "NPU") else "CUDA"
    pieces, remedy = "", f"Set PYTORCH_{platform}_ALLOC_CONF=expandable_segments:True."
    if snapshot is not None:
        largest = size_text(snapshot.largest_free_bytes)
        pieces = f", in {snapshot.free_blocks:,} free blocks, the largest of {largest}"
        if snapshot.expandable_segments:
            remedy = (
                "Expandable segments are already on; the unused memory is in pools of other streams or of CUDA graphs."
            )
    if unused >= tried:
        yield (
            f"Fragmentation: {size_text(unused)} are reserved and unused, more than the {size_text(tried)} "
            f"requested{pieces}, but not in one piece. {remedy}"
        )
    elif free is not None and free + unused >= tried:
        yield (
            f"Fragmentation adds to it: {size_text(unused)} are reserved and unused{pieces}; with the free memory "
            f"they would have been enough for the {size_text(tried)} requested. {remedy}"
        )


def logits_findings(failure: Failure) -> Iterator[str]:
    """Yield that the logits were asked for, by the line that failed, or by the size that was asked for."""
    if failure.kind != "gpu":
        return
    tried = failure.memory.tried_bytes if failure.memory else None
    place = failure.place or ""
    in_loss = any(part in place for part in ("loss/loss_utils.py:", "cross_entropy.py:"))
    in_model = in_loss or any(part in place for part in ("/modeling_", "transformers/", "generation/", "trainer/"))
    size = _size_of_logits(tried, loose=in_model) if tried is not None and (in_model or not place) else None
    if failure.code is not None and _OF_LOGITS.search(failure.code):
        where = f"The line that failed, `{failure.code}`, works on the logits"
    elif in_loss:
        where = "The program failed in the loss, which works on the logits"
    elif size is not None and failure.phase in ("forward", "backward", None):
        yield f"The {size_text(tried)} requested may be the logits in fp32: {size}. {_FUSED_LOSS}"
        return
    else:
        return
    asked = f"; {size_text(tried)} were requested" if tried else ""
    yield f"{where} (tokens x vocabulary){asked}{f': {size}' if size else ''}. {_FUSED_LOSS}"


def _size_of_logits(tried: int, *, loose: bool) -> str | None:
    """Return a number of tokens and a known vocabulary whose logits in fp32 have this size; None: there is none.

    Tokens are a power of two, as batches mostly are; other numbers would fit any size.

    Args:
        tried: bytes that were asked for, as torch rounds them to two decimals.
        loose: it failed in a language model, so three times a power of two counts too, and a size that is less exact.
    """
    rounded = GIB // 200 if tried >= GIB else MIB // 200
    if tried < _LEAST_LOGITS or not (loose or rounded <= _EXACT * tried):
        return None
    for model in built_in_models():
        vocabulary = model.config.get("vocab_size")
        if type(vocabulary) is not int or vocabulary <= 0 or _is_round(vocabulary):
            continue
        tokens = tried / (4 * vocabulary)
        for odd in (1, 3) if loose else (1,):
            count = odd << round(math.log2(max(1.0, tokens / odd)))
            size = -(-count * vocabulary * 4 // _ROUNDING) * _ROUNDING
            if abs(size - tried) <= rounded:
                return f"{count:,} tokens x {vocabulary:,} words x 4 bytes, the vocabulary of {model.label}"
    return None


def _is_round(vocabulary: int) -> bool:
    """Return True for nearly a power of two or a small multiple of one: hidden states have such sizes too."""
    exponents = [math.log2(vocabulary / odd) for odd in (1, 3, 5, 7)]
    return any(abs(each - round(each)) < 0.005 for each in exponents) or vocabulary & -vocabulary > vocabulary // 64


def _history_findings(failure: Failure, snapshot: MemorySnapshot | None) -> Iterator[str]:
    if failure.phase == "evaluation":
        yield (
            "It ran out in evaluation, which keeps the predictions of all batches on the GPU unless the program moves "
            "them (Trainer: eval_accumulation_steps, preprocess_logits_for_metrics). Its batch size is set apart too."
        )
    elif failure.steps is not None and failure.steps >= 3:
        yield (
            f"{failure.steps:,} steps succeeded before: a later batch was longer or larger, something rare ran "
            "(evaluation, saving, generation), or memory grows from step to step."
        )
    if snapshot is not None and not snapshot.has_stacks:
        yield (
            "The snapshot has no stacks, so its tensors cannot be identified: record stacks with vramtop run "
            "--snapshot-on-oom, or torch.cuda.memory._record_memory_history()."
        )


def job_findings(
    failure: Failure, budget: Budget, snapshot: MemorySnapshot | None, *, least_bytes: int | None
) -> Iterator[str]:
    """Yield what a failure says beside the budget of its job."""
    memory, peak = failure.memory, budget.peak
    span = f"({format_gib(peak.low_bytes)} - {format_gib(peak.high_bytes)})"
    if failure.kind in ("host", "killed", "on chip"):
        if failure.kind != "on chip" and budget.host is not None:
            ranks = min(8, len(budget.ranks))
            loading, steady = budget.host.loading_bytes(ranks), budget.host.steady_bytes(ranks)
            yield (
                f"Predicted CPU RAM of {ranks} process{'es' if ranks > 1 else ''} on one host: "
                f"{format_gib(loading)} GiB while loading, {format_gib(steady)} GiB after that."
            )
        return
    total = memory.total_bytes if memory is not None else None
    if total is None:
        yield f"The job is predicted to need {format_gib(peak.device_bytes)} GiB {span} on each GPU."
    if memory is None:
        return
    usable = total - (memory.beside_bytes or 0) if total is not None else None
    if usable is not None:
        yield _verdict(span, budget, usable, memory)
    if memory.tried_bytes is not None and (tensor := _known_tensor(memory.tried_bytes, budget)):
        yield f"The {size_text(memory.tried_bytes)} requested are the size of {tensor}."
    phase = budget.phase(failure.phase) if failure.phase else None
    if phase is not None and memory.allocated_bytes is not None:
        held = memory.allocated_bytes + (memory.tried_bytes or 0)
        relation = "more" if held > phase.allocated_bytes else "less"
        yield (
            f"In the {phase.name} phase, {format_gib(held)} GiB were allocated or requested, {relation} than its "
            f"predicted peak of {format_gib(phase.allocated_bytes)} GiB."
        )
    if least_bytes is not None and least_bytes > peak.high_bytes:
        yield (
            f"The program needs more than the given job: at least {format_gib(least_bytes)} GiB (its tensors, the "
            "failed allocation, and memory outside PyTorch). Compare the settings: batch, length, optimizer, "
            "checkpointing, sharding."
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
        return f"The failure was expected: the job is predicted to need {predicted}, more than {room}."
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


PartName = Literal[
    "this process", "tensors", "unused by tensors", "outside the allocator", "others", "not the allocator's", "free"
]


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of a failure of memory."""

    failure: Failure
    """The failure that is explained."""
    parts: dict[PartName, int]
    """Bytes that filled the GPU, by what held them; all parts together are the GPU, or more than it where a driver
    moves memory to CPU RAM. Empty: the failure comes without figures."""
    findings: tuple[str, ...]
    """Sentences that follow from the failure alone, the most important first."""
    compared: tuple[str, ...]
    """Sentences that compare the failure with the job's budget; empty without a job."""
    least_bytes: int | None
    """Bytes that the process needed at least, as NVML counts it, without unused memory; null: unknown."""
    snapshot: MemorySnapshot | None = None
    """Contents of the memory snapshot; null: the failure is from a log."""


def explain_failure(
    failure: Failure, *, budget: Budget | None = None, snapshot: MemorySnapshot | None = None
) -> Explanation:
    """Explain a failure of memory.

    Args:
        failure: of a log, or ``failure_of_snapshot``.
        budget: of the job that failed; None: it is not known.
        snapshot: of the process that failed.
    """
    memory = failure.memory
    least = _least_bytes(memory, budget)
    return Explanation(
        failure=failure,
        parts=dict(_parts(memory)) if memory and failure.kind == "gpu" else {},
        findings=(*failure_findings(failure, snapshot), *(logits_findings(failure) if budget is None else ())),
        compared=tuple(job_findings(failure, budget, snapshot, least_bytes=least)) if budget else (),
        least_bytes=least,
        snapshot=snapshot,
    )


def failure_of_snapshot(snapshot: MemorySnapshot) -> Failure | None:
    """Return the failure that a snapshot's history has; None: the process had not run out of memory."""
    failed = snapshot.failed
    if failed is None:
        return None
    memory = OutOfMemory(
        backend="CUDA",
        gpu=snapshot.device,
        tried_bytes=failed.tried_bytes,
        total_bytes=snapshot.total_bytes,
        free_bytes=failed.free_bytes,
        allocated_bytes=snapshot.allocated_bytes + snapshot.waiting_bytes,
        unallocated_bytes=snapshot.unallocated_bytes,
        allowed_bytes=snapshot.allowed_bytes,
    )
    return Failure(kind="gpu", line=0, text="memory snapshot", memory=memory, phase=failed.phase, place=failed.place)


def _parts(memory: OutOfMemory) -> Iterator[tuple[PartName, int]]:
    """Yield what filled the card."""
    free, unattributed = memory.free_bytes, memory.unattributed_bytes
    if memory.allocated_bytes is not None:
        yield "tensors", memory.allocated_bytes
    elif memory.process_bytes is not None:
        yield "this process", memory.process_bytes
    if memory.unallocated_bytes is not None:
        yield "unused by tensors", memory.unallocated_bytes
    if memory.outside_bytes is not None:
        yield "outside the allocator", memory.outside_bytes
    if memory.process_bytes is not None and memory.beside_bytes:
        yield "others", memory.beside_bytes
    elif unattributed is not None and unattributed > UNSEEN_BYTES:
        yield "not the allocator's", unattributed
    if free is not None:
        yield "free", free


def _least_bytes(memory: OutOfMemory | None, budget: Budget | None) -> int | None:
    if memory is None or memory.allocated_bytes is None or memory.tried_bytes is None:
        return None
    outside = memory.outside_bytes
    if outside is None and budget is not None:
        outside = budget.peak.device_bytes - budget.peak.reserved_bytes
    return None if outside is None else memory.allocated_bytes + memory.tried_bytes + outside
