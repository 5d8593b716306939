"""A failure of memory as text for a terminal, as ``vramtop explain`` prints it."""

from collections.abc import Iterator

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import GIB, format_gib, size_text
from vramtop.estimator.crash.explanation import Explanation
from vramtop.estimator.crash.records import CrashLog, Failure
from vramtop.estimator.crash.snapshot.records import MemorySnapshot

from ..draw.palette import COMPONENTS, PHASE_PLACES
from ..draw.text_output import TextOutput, format_table

_LEAST_SHOWN = GIB // 200
"""Bytes that a table with two decimals of a GiB shows as more than nothing."""


def explanation_lines(
    explanation: Explanation, output: TextOutput, *, budget: Budget | None = None, log: CrashLog | None = None
) -> Iterator[str]:
    """Yield an explanation: the failure, what filled the card, why, and what it says beside the job's budget.

    Args:
        explanation: of a failure.
        output: what the output can show.
        budget: of the job, for the components that were predicted.
        log: where the failure stands, for the others in it.
    """
    failure = explanation.failure
    yield from (output.paint(line, None, bold=True) for line in output.wrapped(_headline(failure), further="  "))
    if log is not None:
        yield from _other_failures(log, failure, output)
    if failure.kind != "gpu":
        line = f"line {failure.line:,}: " if failure.line else ""
        yield from output.wrapped(f"{line}{failure.text}", indent="  ")
    yield from _part_lines(explanation, output)
    if explanation.snapshot is not None:
        yield from snapshot_lines(explanation.snapshot, output, budget=budget, failure=failure)
    if explanation.findings:
        yield ""
    for sentence in explanation.findings:
        yield from output.wrapped(sentence, indent="- ", further="  ")
    if explanation.compared and budget is not None:
        yield ""
        corrected = ", corrected by measured runs" if budget.learned else ""
        yield output.text(f"beside the budget of {budget.job.label} ({budget.method}{corrected}):")
        for sentence in explanation.compared:
            yield from output.wrapped(sentence, indent="- ", further="  ")


def snapshot_lines(
    snapshot: MemorySnapshot, output: TextOutput, *, budget: Budget | None = None, failure: Failure | None = None
) -> Iterator[str]:
    """Yield what a snapshot holds, by component beside the prediction, and by place; first that nothing had failed."""
    if failure is None:
        known = "no allocation failed before this snapshot was written"
        if not snapshot.has_history:
            known = "the snapshot has no allocation history, so it is unknown whether an allocation failed"
        yield from output.wrapped(f"GPU {snapshot.device}: {known}", further="  ")
    yield ""
    phase = budget.phase(failure.phase) if budget and failure and failure.phase else None
    predicted = phase.components if phase else budget.peak.components if budget else None
    head = ["TENSORS", "HELD GIB"]
    if predicted is not None:
        head.append(f"PREDICTED, {phase.name.upper()}" if phase else "PREDICTED AT THE PEAK")
    rows = [head]
    for name in dict.fromkeys([*snapshot.components, *(COMPONENTS if predicted is not None else ())]):
        held = snapshot.components.get(name, 0)
        expected = getattr(predicted, name, None) if predicted is not None else None
        if name == "context" or (held < _LEAST_SHOWN and not expected):
            continue
        unknown = not snapshot.has_stacks and name != "unknown"  # without stacks tensors belong to no component
        row = [name, format_gib(None if unknown else held, digits=2)]
        if predicted is not None:
            row.append("" if expected is None else format_gib(expected, digits=2))
        rows.append(row)
        parts = snapshot.parts.get(name, {})
        if len(parts) > 1:
            others = held - sum(parts.values())
            named = [*parts.items(), *([("elsewhere", others)] if others else [])]
            rows += [[f"  {part}", format_gib(size, digits=2), ""][: len(head)] for part, size in named]
    yield from (output.text(line) for line in format_table(rows, "<>>"[: len(head)]))
    yield from output.wrapped(_space_sentence(snapshot))
    yield from _place_lines(snapshot, output)


_MAX_PLACES = 8


def _place_lines(snapshot: MemorySnapshot, output: TextOutput) -> Iterator[str]:
    """Yield where the largest tensors were allocated: in which module, and at which line."""
    groups = [group for group in snapshot.groups if group.place is not None or group.module is not None][:_MAX_PLACES]
    if not groups:
        return
    yield ""
    table = [("GIB", "COUNT", "WHAT", "MODULE", "ALLOCATED AT")]
    for group in groups:
        module = group.module or group.module_class or ""
        table.append(
            (format_gib(group.bytes, digits=2), f"{group.blocks:,}", group.component, module, group.place or "")
        )
    shown = table if any(row[3] for row in table[1:]) else [(*row[:3], row[4]) for row in table]
    lines = format_table(shown, ">><<<"[: len(shown[0])])
    if max(map(len, lines)) <= output.width:
        yield from (output.text(line) for line in lines)
        return
    named = [(*row[:3], row[3] or row[4]) for row in table]
    named[0] = (*table[0][:3], "MODULE, ALLOCATED AT")
    for line, row in zip(format_table(named, ">><<"), table, strict=True):
        yield output.text(line)
        if row[3] and row[4] and row is not table[0]:
            yield from output.wrapped(row[4], indent=" " * 15, further=" " * 15)


def _space_sentence(snapshot: MemorySnapshot) -> str:
    private = f", {size_text(snapshot.private_free_bytes)} in private pools" if snapshot.private_free_bytes else ""
    blocks = f"{snapshot.free_blocks:,} free block{'' if snapshot.free_blocks == 1 else 's'}"
    segments = f"{snapshot.segments:,} segment{'' if snapshot.segments == 1 else 's'}"
    return (
        f"{size_text(snapshot.reserved_bytes)} reserved in {segments}, {size_text(snapshot.unallocated_bytes)} "
        f"unused{private}: {blocks}, the largest {size_text(snapshot.largest_free_bytes)}"
    )


def _headline(failure: Failure) -> str:
    memory = failure.memory
    words = [_head(failure)]
    where = [failure.source] if failure.source else []
    where += [f"rank {failure.rank}"] if failure.rank is not None else []
    if memory is not None:
        where += [f"GPU {memory.gpu}"] if memory.gpu is not None else []
        where += [f"line {failure.line:,}"] if failure.line else []
        known = [f"{size_text(memory.tried_bytes)} requested"] if memory.tried_bytes is not None else []
        known += [f"{size_text(memory.free_bytes)} free"] if memory.free_bytes is not None else []
        words.append(f" ({', '.join(where)})" if where else "")
        words.append(f": {', '.join(known)}" if known else "")
    elif where:
        words.append(f" ({', '.join(where)})")
    if failure.tried_host_bytes is not None:
        words.append(f": {size_text(failure.tried_host_bytes)} requested")
    step = [PHASE_PLACES[failure.phase] if failure.phase else "", f"at {failure.place}" if failure.place else ""]
    place = ", ".join(word for word in step if word)
    return "".join(words) + (f"; {place}" if place else "")


_HEADS = {
    "gpu": "GPU memory ran out",
    "gpu library": "GPU memory ran out",
    "start": "Too little GPU memory to start the server",
    "host": "CPU RAM ran out",
    "killed": "A process was killed",
    "on chip": "A kernel needs more memory on the chip than the GPU has",
    "not understood": "Not understood: a line that may be an out-of-memory error",
}
_MAYBE = {
    "gpu library": "Possible: GPU memory may have run out",
    "start": "The server did not start",
    "host": "Possible: CPU RAM or shared memory may have run out",
    "killed": "A process was killed (SIGKILL)",
}
"""Heads of failures that have other causes too."""


def _head(failure: Failure) -> str:
    """Return the first words on a failure."""
    head = _HEADS[failure.kind] if failure.sure else _MAYBE.get(failure.kind, _HEADS[failure.kind])
    return f"{head}, and the program continued" if failure.survived else head


_MAX_FAILURES = 6


def _other_failures(log: CrashLog, shown: Failure, output: TextOutput) -> Iterator[str]:
    others = [
        each for each in log.failures if (each.line, each.kind, each.rank) != (shown.line, shown.kind, shown.rank)
    ]
    others.sort(key=lambda failure: failure.kind == "not understood")
    for failure in others[:_MAX_FAILURES]:
        rank = f"rank {failure.rank}: " if failure.rank is not None else ""
        head = _head(failure)
        head = head if head[1:2].isupper() else head[0].lower() + head[1:]  # it begins with GPU or CPU
        what = f"not understood: {failure.text}" if failure.kind == "not understood" else head
        by = f" ({failure.source})" if failure.source else ""
        yield from output.wrapped(f"also line {failure.line:,}: {rank}{what}{by}", indent="  ", further="    ")
    left = len(others) - _MAX_FAILURES + log.unkept
    if left > 0:
        yield output.text(f"  and {left:,} more")


_PARTS = {
    "this process": "this process",
    "tensors": "tensors",
    "unused by tensors": "reserved by PyTorch, unused",
    "outside the allocator": "outside PyTorch: CUDA context, libraries, NCCL",
    "others": "other processes and the driver",
    "not the allocator's": "not PyTorch's: CUDA context, other processes",
    "free": "free",
}
_BAR_WIDTH = 24


def _part_lines(explanation: Explanation, output: TextOutput) -> Iterator[str]:
    parts = explanation.parts
    if not parts:
        return
    memory = explanation.failure.memory
    total = memory.total_bytes if memory else None
    yield ""
    held = sum(parts.values())
    what = "memory on the GPU" if total is None or held <= 1.01 * total else "memory in use, more than the GPU has"
    yield output.text(f"{what}{f', {format_gib(total)} GiB' if total else ''}:")
    scale = max(total or 0, held)
    width = max(len(_PARTS[name]) for name in parts)
    room = min(_BAR_WIDTH, output.width - width - 17)
    for name, size in parts.items():
        cells = round(room * size / scale) if scale else 0
        bar = "█" * min(room, cells)
        line = f"  {_PARTS[name]:<{width}} {format_gib(size, digits=2):>8} GiB  {bar}"
        yield output.text(line.rstrip())
