"""Budgets and verdicts as text for a terminal, as ``estimate``, ``fit`` and ``attach`` print them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB, MIB, format_gib
from vramtop.estimator.job.effective_batch import effective_batch
from vramtop.estimator.job.resolved_job import resolve_job
from vramtop.estimator.job.rules.library_defaults import AUTO
from vramtop.estimator.job.rules.strategies import HALF
from vramtop.estimator.job.trainable import describe_trained

from ..draw.bars import BarSegment, component_segments, draw_bar, memory_segment
from ..draw.palette import COMPONENTS, VERDICTS, colour_of, component_mark, peak_place
from ..draw.text_output import format_table, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from vramtop.estimator.advice.largest_fitting import LargestFitting
    from vramtop.estimator.budget import Budget, LargeTensor, Span
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.board.capacity import DeviceCapacity
    from vramtop.monitor.board.fit_result import DeviceVerdict, FitResult

    from ..draw.text_output import TextOutput


def budget_lines(
    budget: Budget, output: TextOutput, *, scale_bytes: int | None = None, assumed: Iterable[str] = ()
) -> Iterator[str]:
    """Yield a budget: headline, bar, table by phase and component.

    Args:
        budget: of a job.
        output: what the output can show.
        assumed: lines below the headline.
        scale_bytes: bytes of the bar's full width, such as a GPU's total; None: the upper bound of the budget.
    """
    peak = budget.peak
    model = replace(budget.job, name=None).label
    known = model in budget.job.label or budget.job.program is not None or model == "job"
    name = budget.job.label if known else f"{budget.job.label} ({model})"
    head = output.wrapped(f"{name}: {_job_line(budget)}", further="  ")
    yield from (output.paint(line, None, bold=True) for line in head)
    yield from assumed
    yield from output.wrapped(_model_line(budget), further="  ")
    if budget.serving is not None:
        each, cache = format_gib(budget.serving.sequence_bytes, digits=2), peak.components.activations
        yield output.text(
            f"{budget.serving.engine}: {each} GiB of cache for each sequence of {budget.serving.length:,} tokens"
        )
        if cache > budget.serving.sequence_bytes:
            yield output.text(f"KV cache of {format_gib(cache)} GiB: {budget.serving.describe_cache(cache)}")
    if budget.host is not None:
        loading, steady = (format_gib(size) for size in (budget.host.loading_bytes(1), budget.host.steady_bytes(1)))
        saving = f", {format_gib(budget.host.saving_bytes(1))} GiB while saving" if budget.host.saving else ""
        yield output.text(f"CPU RAM per process: {loading} GiB while loading, then {steady} GiB{saving}")
    batch = effective_batch(budget.job)
    if batch is not None:
        advice = batch.advice()
        yield from output.wrapped(f"{batch.describe()}{f' ({advice})' if advice else ''}", further="  ")
    yield ""
    scale = scale_bytes or round(peak.high_bytes * 1.05)
    width = output.width - 12
    cells = draw_bar(
        component_segments(peak.components, budget=budget),
        scale_bytes=scale,
        width=width,
        marked=(peak.low_bytes, peak.high_bytes),
        outlined=output.colour_depth == "none",
    )
    yield f"{output.bar(cells)} {format_gib(scale):>6} GiB"
    yield from output.wrapped(
        f"peak {format_gib(peak.device_bytes, digits=2)} GiB on the device "
        f"{peak_place(budget)}"
        f" ({format_gib(peak.low_bytes)} - {format_gib(peak.high_bytes)});"
        f" torch{_torch_figures(budget)}",
        further="  ",
    )
    yield ""
    yield from _phase_table(budget, output)
    yield from _tensor_table(budget, output)


def need_text(budget: Budget, ranks: int) -> str:
    """Return what a job takes on the GPUs of its ranks, with the range of one: ``8 × 62.1 GiB (58.0 - 66.3)``."""
    peak = budget.peak
    times = f"{ranks:,} × " if ranks > 1 else ""
    if peak.says_nothing:
        low, high = format_gib(peak.low_bytes), format_gib(peak.high_bytes)
        each = f" on each of {ranks:,} GPUs" if ranks > 1 else ""
        return f"{low} to {high} GiB{each}; the warnings below explain the difference"
    return f"{times}{format_gib(peak.device_bytes)} GiB ({format_gib(peak.low_bytes)} - {format_gib(peak.high_bytes)})"


def _span(span: Span | None, text: Callable[[int], str]) -> str:
    return f" ({text(span.low_bytes)} - {text(span.high_bytes)})" if span is not None else ""


def closing_lines(budget: Budget, notes: Sequence[str], output: TextOutput, *, verbose: bool = False) -> Iterator[str]:
    """Yield the correction, the warnings, the notes, and the assumptions: their number, or with ``verbose`` each."""
    learned = (budget.learned.sentence,) if budget.learned else ()
    for title, sentences in (("corrected", learned), ("warning", budget.warnings), ("note", notes)):
        for sentence in sentences:
            yield from output.wrapped(f"{title}: {sentence}", further="  ")
    if budget.not_counted:
        yield output.text(budget.not_counted)
    count = len(budget.assumptions)
    if verbose:
        for sentence in budget.assumptions:
            yield from output.wrapped(f"assumed: {sentence}", further="  ")
    elif count:
        yield f"{count} assumption{'s' if count > 1 else ''}: -v lists {'them' if count > 1 else 'it'}"


def fit_lines(result: FitResult, budget: Budget, output: TextOutput) -> Iterator[str]:
    """Yield a verdict: its sentence, a bar for each GPU, and the host."""
    mark = VERDICTS[result.verdict]
    yield output.paint(f"{mark.letter} {mark.word}", mark.colour, bold=True) + output.text(f"  {result.sentence}")
    if budget.learned is not None:
        yield from output.wrapped(f"with the correction: {budget.learned.sentence}", indent="  ", further="  ")
    yield ""
    alike: dict[tuple[object, ...], list[DeviceVerdict]] = {}
    for gpu in result.gpus:
        alike.setdefault(_look(gpu, result), []).append(gpu)
    for gpus in alike.values():
        yield from _gpu_lines(gpus, budget, result, output)
    if result.host is not None:
        yield output.text(f"  host: {result.host.sentence}")


def largest_line(grown: LargestFitting, job: Job) -> str:
    """Return the largest micro-batch and sequence that fit, beside those of the job."""
    training = job.training
    limit = ", the model's limit" if grown.at_model_limit else ""
    length = f"sequence length {grown.sequence_length:,}{limit}" if grown.sequence_length else "no sequence length fits"
    text = f"{length} (now {training.sequence_length:,})"
    if not job.is_served:
        batch = f"micro-batch {grown.micro_batch}" if grown.micro_batch else "no micro-batch fits"
        text = f"{batch} (now {training.micro_batch}); {text}"
    return f"largest that fits, all else unchanged: {text}"


def _look(gpu: DeviceVerdict, result: FitResult) -> tuple[object, ...]:
    """Return what the lines of a GPU show, by which those that look alike share them; a MIG device has its own."""
    device = gpu.device
    sizes = (device.total_bytes, device.available_bytes, device.committed_bytes, gpu.shortfall_bytes)
    return (
        *(device.name, gpu.verdict, device in result.rank_devices, device.unusable_reason, device.unread_reason),
        *(format_gib(size) for size in sizes),
        device.uuid if device.mig else None,
    )


def _gpu_lines(alike: Sequence[DeviceVerdict], budget: Budget, result: FitResult, output: TextOutput) -> Iterator[str]:
    """Yield what GPUs that look alike have available, and the budget on them."""
    gpu = alike[0]
    device, mark = gpu.device, VERDICTS[gpu.verdict]
    name = _gpu_name([each.device for each in alike])
    each = " each" if len(alike) > 1 or device.count > 1 else ""
    chosen = "*" if device in result.rank_devices else " "
    short = f", {format_gib(gpu.shortfall_bytes)} GiB short" if gpu.shortfall_bytes else ""
    if device.unusable_reason:
        yield output.text(f"{chosen}{name} {device.unusable_reason}")
        return
    size = f"{format_gib(device.available_bytes)} GiB available of {format_gib(device.total_bytes)}"
    verdict = output.paint(f"{mark.letter} {mark.word.lower()}", mark.colour)
    yield output.text(f"{chosen}{name}: {size}{each}: ") + verdict + short
    if device.unread_reason:
        yield from output.wrapped(device.unread_reason, indent="  ", further="  ")
    if device.total_bytes is None or device.free_bytes is None:
        return
    held, committed = device.total_bytes - device.free_bytes, device.committed_bytes
    labels = (f"committed {format_gib(committed)}", "committed", "c")
    taken = [memory_segment("held", held), BarSegment(size_bytes=committed, colour=colour_of("neutral"), labels=labels)]
    before = held + committed
    cells = draw_bar(
        [*taken, *component_segments(budget.peak.components, budget=budget)],
        scale_bytes=device.total_bytes,
        width=output.width - 2,
        empty=".",
        marked=(before + budget.peak.low_bytes, before + budget.peak.high_bytes),
        outlined=output.colour_depth == "none",
    )
    yield "  " + output.bar(cells)


def _gpu_name(devices: Sequence[DeviceCapacity]) -> str:
    """Return indices and name of GPUs that look alike: ``GPU 0-7: 8 x H100 80GB``."""
    from vramtop.monitor.host.plain_text import gpu_list

    first, count = devices[0], sum(device.count for device in devices)
    if first.mig:
        return first.label
    times = f": {count} × " if count > 1 else " "
    return f"GPU {gpu_list(device.indices for device in devices)}{times}{first.name or 'unknown GPU'}"


def _job_line(budget: Budget) -> str:
    job = budget.job
    training, parallel = job.training, job.parallel
    if job.program is not None:
        ranks = f", one of {parallel.world_size:,} ranks" if parallel.world_size > 1 else ""
        return f"{job.program.command}{ranks}"
    every = budget.model.trainable_parameters == budget.model.parameters
    tuning = "full fine-tuning" if every else "partial fine-tuning"
    if training.mode == "inference":
        weights = job.inference.weights if job.inference is not None else AUTO
        stored = "" if weights == AUTO else f" over {weights} weights"
        tuning = f"{f'served by {job.engine_name}' if job.is_served else 'inference'}{stored}"
    if job.lora:
        quantized = "" if job.lora.quantization == "none" else f" over {job.lora.quantization}"
        targets = "all linear layers" if job.lora.targets == "all-linear" else ", ".join(job.lora.targets)
        tuning = f"LoRA rank {job.lora.rank} on {targets}{quantized}"
    pairs = f" x {training.sequences_per_example}" if training.sequences_per_example > 1 else ""
    batch = f"{training.micro_batch}{pairs}"
    most = "up to " if job.is_served else ""
    to_targets = job.model.task == "seq2seq-lm" and training.loss_length is not None
    targets = f" (targets {training.loss_length})" if to_targets else ""
    parts = [tuning, precision_word(job), f"{most}{batch} x {training.sequence_length} tokens{targets}"]
    if training.mode == "train":
        parts.append(training.optimizer)
    if training.activation_checkpointing != "none":
        parts.append(f"checkpointing {training.activation_checkpointing}")
    if parallel.world_size > 1:
        sizes = {"tensor": parallel.tensor, "pipeline": parallel.pipeline, "context": parallel.context}
        kinds = [parallel.strategy] if parallel.strategy != "none" else []
        kinds += [f"{kind} {size}" for kind, size in sizes.items() if size > 1]
        if parallel.device_map is not None:
            kinds = [f"device map {parallel.device_map if isinstance(parallel.device_map, str) else 'of its own'}"]
        split = "split" if job.is_served or not kinds else " x ".join(kinds)
        parts.append(f"{split} over {parallel.world_size:,} GPUs, each")
    return ", ".join(parts)


_METHOD_TEXTS = {
    "formula": "closed form, parameters counted from the config",
    "exact": "closed form, parameters counted on the built model",
    "traced": "two steps of the script that it stands for (vramtop program), rehearsed",
    "rehearsed": "the program rehearsed",
}


def _model_line(budget: Budget) -> str:
    facts = budget.model
    count = "" if facts.count == "exact" else " (approximate)"
    trainable, patterns = f"{facts.trainable_parameters:,} trainable", budget.job.training.trainable
    if patterns and budget.job.training.mode == "train":
        adapters = "adapters, " if budget.job.lora else ""
        which = adapters + describe_trained(patterns)
        if which == "nothing" and facts.trainable_parameters:
            which = "the program's own layers"
        trainable = f"{facts.trainable_parameters:,} trained ({which})"
    return f"{facts.parameters:,} parameters{count}, {trainable}; {_METHOD_TEXTS[budget.method]}"


_MAX_TENSORS = 6
_MAX_LINE, _MAX_MODULE = 24, 20


def _tensor_table(budget: Budget, output: TextOutput) -> Iterator[str]:
    """Yield the largest tensors at the peak; there are none unless a step was traced."""
    if not budget.largest:
        return
    largest = budget.largest[:_MAX_TENSORS]
    unit, text = _unit(budget, largest[0].bytes)
    yield f"largest at the peak ({budget.peak.phase}), {unit}"
    rows = list[tuple[str, ...]](tensor_rows(largest, text))
    if budget.rehearsal is not None:
        rows = [
            (letter, size, *_places(each, largest), shortened(module, _MAX_MODULE), *further)
            for each, (letter, size, module, *further) in zip(largest, rows, strict=True)
        ]
    yield from (output.text(line[: output.width]) for line in format_table(rows, "<><<<<<"[: len(rows[0])]))
    yield ""


def _places(tensor: LargeTensor, largest: Sequence[LargeTensor]) -> Iterator[str]:
    """Yield the program's line that made a tensor and, where one of them was made by a library's, the library's."""
    yield shortened(line_text(tensor.own_line or tensor.line), _MAX_LINE)
    if any(each.own_line for each in largest):
        yield shortened(line_text(tensor.line), _MAX_LINE) if tensor.own_line else ""


_GIB = partial(format_gib, digits=2)


def _unit(budget: Budget, largest_bytes: int) -> tuple[str, Callable[[int], str]]:
    """Return the unit of figures, and what writes them: MiB where a rehearsed program has less than one GiB."""
    if budget.rehearsal is not None and largest_bytes < GIB:
        return "MiB", lambda size: f"{size / MIB:,.1f}"
    return "GiB", _GIB


def _torch_figures(budget: Budget) -> str:
    """Return what torch allocates and reserves at the peak; without the unit where it is that of the device's."""
    peak = budget.peak
    unit, text = _unit(budget, peak.reserved_bytes)
    ends = format_gib if unit == "GiB" else text
    return (
        f"{'' if unit == 'GiB' else f' ({unit})'}: {text(peak.allocated_bytes)} allocated"
        f"{_span(peak.allocated_range, ends)}, {text(peak.reserved_bytes)} reserved{_span(peak.reserved_range, ends)}"
    )


def _phase_table(budget: Budget, output: TextOutput) -> Iterator[str]:
    names = [name for name in COMPONENTS if any(getattr(phase.components, name) for phase in budget.phases)]
    serves = budget.serving is not None
    unit, text = _unit(budget, budget.peak.allocated_bytes)
    head = (unit, *("serving" if serves and phase.name == "forward" else phase.name for phase in budget.phases))
    rows = [head]
    for name in names:
        letter, word = COMPONENTS[name].letter, component_mark(name, budget).word
        figures = (text(getattr(phase.components, name)) for phase in budget.phases)
        rows.append((f"{letter} {word}", *figures))
    rows.append(("  allocated", *(text(phase.allocated_bytes) for phase in budget.phases)))
    rows.append(("  total", *(text(phase.components.total_bytes) for phase in budget.phases)))
    yield from (output.text(line) for line in format_table(rows, "<" + ">" * len(budget.phases)))
    yield ""


def line_text(line: str) -> str:
    """Return a file and line of a rehearsed program: its path below the current folder, else its last two parts."""
    file, _, number = line.rpartition(":")
    shown = PurePath(os.path.relpath(file)) if file else PurePath("?")
    if ".." in shown.parts or "site-packages" in shown.parts:
        shown = PurePath(*PurePath(file).parts[-2:])
    return printable(f"{shown}:{number}")


def shortened(text: str, width: int) -> str:
    """Return the end of a text that is too long."""
    return text if len(text) <= width else f"…{text[1 - width :]}"


def tensor_rows(
    tensors: Sequence[LargeTensor], text: Callable[[int], str] = _GIB
) -> list[tuple[str, str, str, str, str]]:
    """Return (letter, size, module, dtype, shape) of each tensor; the size in GiB, or as ``text`` writes it."""
    return [
        (
            COMPONENTS[tensor.component].letter,
            text(tensor.bytes),
            printable(tensor.module) or "(no module)",
            tensor.dtype,
            " x ".join(str(size) for size in tensor.shape) or "scalar",
        )
        for tensor in tensors
    ]


_PLAIN = ("none", "ddp")
"""Strategies under which the Trainer runs the model itself, with or without autocast."""


def precision_word(job: Job) -> str:
    """Return the precision; of adapters over 16-bit weights with autocast or pure, on which their inputs depend."""
    name = job.training.precision
    if job.lora is None or name not in HALF or job.training.mode != "train":
        return name
    resolved = resolve_job(job)
    if not resolved.framework.fp32_adapters or resolved.adapters.dtype is not None:
        return name
    if resolved.widths.autocast:  # over prepared weights, which it hardly changes, it may not have been asked for
        return f"{name} autocast" if job.lora.autocast else name
    return f"pure {name}" if resolved.strategy.name in _PLAIN else name
