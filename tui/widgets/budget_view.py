"""A budget in figures and bars, as lines of content for every screen that shows one."""

from collections.abc import Mapping, Sequence
from functools import lru_cache

from textual.content import Content

from vramtop.estimator.budget import Budget, Method
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.effective_batch import effective_batch
from vramtop.estimator.job.gpu_catalogue import match_nvml_name
from vramtop.monitor.board.capacity import DeviceCapacity, count_devices
from vramtop.monitor.board.fit_result import DeviceVerdict, FitResult

from ..draw.bars import BarSegment, Cell, component_segments, draw_bar, memory_segment
from ..draw.gpu_bars import bar_content
from ..draw.labels import MUTED, badge, warning
from ..draw.palette import COMPONENTS, OTHER_MEMORY, VERDICTS, MemoryKind, component_mark, peak_place

METHOD_LABELS: Mapping[Method, str] = {
    "formula": "closed form",
    "exact": "closed form, exact count",
    "traced": "traced step",
    "rehearsed": "rehearsed program",
}


def is_better_estimate(new: Budget, old: Budget | None) -> bool:
    """Return True if a budget should replace another: it is of another job, or its method is at least as accurate."""
    return old is None or old.job != new.job or new.method != "formula" or old.method == "formula"


def verdict_line(fit: FitResult) -> Content:
    """Return the verdict: its sign and word in colour, and its sentence."""
    return Content.assemble(badge(VERDICTS[fit.verdict], fit.verdict), f" {fit.sentence}")


def peak_line(budget: Budget) -> Content:
    """Return the expected peak, its range, its phase, and the method of the estimate."""
    peak, learned = budget.peak, budget.learned
    corrected = f" · corrected, was {format_gib(learned.uncorrected.device_bytes)}" if learned else ""
    return Content.assemble(
        "peak ",
        (f"{format_gib(peak.device_bytes)} GiB", "bold"),
        f" ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)}) {peak_place(budget)} · ",
        (METHOD_LABELS[budget.method], "bold" if budget.method != "formula" else "dim"),
        (corrected, "bold"),
    )


def model_lines(budget: Budget) -> list[Content]:
    """Return the size of the model, and the batch of one optimizer step."""
    model, job = budget.model, budget.job
    about = "" if model.count == "exact" else "about "
    trainable = "all trainable"
    if model.trainable_parameters != model.parameters:
        trainable = f"{short_count(model.trainable_parameters)} trainable"
    batch = effective_batch(job)
    if budget.serving is not None:
        cache = budget.peak.components.activations
        held = f"KV cache {format_gib(cache)} GiB: {budget.serving.describe_cache(cache)}"
        return [Content(f"model {about}{short_count(model.parameters)} parameters"), Content(held)]
    lines = [Content(f"model {about}{short_count(model.parameters)} parameters, {trainable}")]
    if batch is not None:
        lines.append(Content(f"batch {batch.describe()}"))
        if advice := batch.advice():
            lines.append(Content.styled(advice, "dim"))
    return lines


def short_count(count: int) -> str:
    """Format a count of parameters: ``8.03 B``."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:,}"


_PHASE_HEADS = {"optimizer step": "optimizer"}
_SHORT_PHASE_HEADS = {"optimizer step": "step", "generation": "generate", "evaluation": "evaluate"}
"""Where a fifth phase makes the columns narrower."""
_SERVER_PHASE_HEADS = {"forward": "serving"}


def phase_table(budget: Budget) -> list[Content]:
    """Return GiB by component (rows, also the bar's legend) and phase (columns); the peak's phase is marked."""
    many = len(budget.phases) > 4
    words, width = (_SHORT_PHASE_HEADS, 10) if many else (_PHASE_HEADS, 11)
    words = _SERVER_PHASE_HEADS if budget.serving else words
    heads = [words.get(phase.name, phase.name) for phase in budget.phases]
    marked = [
        f"{head}◀" if phase.name == budget.peak.phase else head
        for head, phase in zip(heads, budget.phases, strict=True)
    ]
    lines = [Content.assemble((f"{'GiB':<17}" + "".join(f"{head:>{width}}" for head in marked), "dim"))]
    for name in COMPONENTS:
        mark = component_mark(name, budget)
        sizes = [getattr(phase.components, name) for phase in budget.phases]
        if any(sizes):
            figures = "".join(f"{format_gib(size, digits=2) if size else '·':>{width}}" for size in sizes)
            lines.append(Content.assemble((f"{mark.letter} ", f"bold {mark.colour}"), f"{mark.word:<15}", figures))
    totals = "".join(f"{format_gib(phase.components.total_bytes, digits=2):>{width}}" for phase in budget.phases)
    lines.append(Content.assemble((f"{'total':<17}{totals}", "bold")))
    return lines


def remark_lines(budget: Budget) -> list[Content]:
    """Return the correction by measured runs, the warnings, what is not counted, then the assumptions."""
    learned = [Content.assemble(("= ", "bold"), budget.learned.sentence)] if budget.learned else []
    warnings = map(warning, budget.warnings)
    dim = filter(None, (budget.not_counted, *budget.assumptions))
    return [*learned, *warnings, *(Content.styled(f"- {sentence}", "dim") for sentence in dim)]


def gpu_lines(fit: FitResult, budget: Budget, *, width: int, placed_only: bool = False) -> list[Content]:
    """Return a bar for each GPU, on the scale of its memory: held, committed, this job where it is placed, free.

    Args:
        fit: the verdict.
        budget: of the job.
        width: of a line, in cells.
        placed_only: sum up several GPUs without a rank in one line.
    """
    placed = fit.chosen
    others = [gpu for gpu in fit.gpus if gpu not in placed]
    if not placed_only or count_devices(gpu.device for gpu in others) < 2 or not placed:
        return [line for alike in _alike(fit.gpus, placed) for line in _lines_of_alike(alike, placed, budget, width)]
    lines = [line for alike in _alike(placed, placed) for line in _lines_of_alike(alike, placed, budget, width)]
    if len(_alike(others, placed)) == 1:
        return [*lines, Content.styled(f"  {_alike_text(others)}", MUTED)]
    roomiest = max(others, key=lambda gpu: gpu.device.available_bytes or 0)
    most = format_gib(roomiest.device.available_bytes or 0)
    what = "others" if any(gpu.device.mig for gpu in others) else "other GPUs"
    number = count_devices(gpu.device for gpu in others)
    rest = f"   {number:,} {what}, at most {most} GiB free ({roomiest.device.label})"
    return [*lines, Content.styled(rest, MUTED)]


def _alike(gpus: Sequence[DeviceVerdict], placed: Sequence[DeviceVerdict]) -> list[list[DeviceVerdict]]:
    """Return the GPUs in groups whose lines would be the same, in the order of their first members."""
    groups: dict[object, list[DeviceVerdict]] = {}
    for gpu in gpus:
        device = gpu.device
        same = (device.name, device.total_bytes, format_gib(device.available_bytes), gpu.verdict)
        alone = device.index if device.mig or device.available_bytes is None or device.unusable_reason else None
        groups.setdefault((*same, gpu in placed, alone, device.mig), []).append(gpu)
    return list(groups.values())


def _lines_of_alike(
    gpus: Sequence[DeviceVerdict], on_which_ranks: Sequence[DeviceVerdict], budget: Budget, width: int
) -> list[Content]:
    """Return the line of one GPU; of several, their number and free memory, and one bar for all on which ranks are."""
    placed = gpus[0] in on_which_ranks
    if count_devices(gpu.device for gpu in gpus) == 1:
        return [_gpu_line(gpus[0], budget, width=width, placed=placed)]
    head = Content.styled(f"{'▶' if placed else ' '} {_alike_text(gpus)}", "bold" if placed else MUTED)
    return [head, _gpu_line(gpus[0], budget, width=width, placed=True, label="  on each")] if placed else [head]


def _alike_text(gpus: Sequence[DeviceVerdict]) -> str:
    """Return ``16 x V100 32GB: 10.5 GiB free each``."""
    device, count = gpus[0].device, count_devices(gpu.device for gpu in gpus)
    free = format_gib(device.available_bytes)
    return f"{count:,} x {_model_name(device.name, device.total_bytes)}: {free} GiB free each"


@lru_cache(maxsize=32)
def _model_name(name: str | None, total_bytes: int | None) -> str:
    """Return a GPU's name in the catalogue; of others, a short form of the driver's."""
    gpu = match_nvml_name(name, total_bytes) if name else None
    return gpu.label if gpu else short_gpu_name(name)


_GPU_LEGEND: tuple[MemoryKind, ...] = ("held", "committed", "slack")


def gpu_legend() -> Content:
    """Return the meaning of the signs in ``gpu_lines``, except for the letters of components."""
    marks = "  ".join(f"{mark.letter} {mark.word}" for mark in map(OTHER_MEMORY.__getitem__, _GPU_LEGEND))
    return Content.styled(f"{marks}  ├─┤ range", "dim")


def budget_segments(budget: Budget, *, uncertain: bool = False) -> list[BarSegment]:
    """Return the peak by component, and the allocator's slack; ``uncertain``: settings of the job are guessed."""
    slack = budget.peak.device_bytes - budget.peak.components.total_bytes
    return [
        *component_segments(budget.peak.components, budget=budget, uncertain=uncertain),
        memory_segment("slack", slack),
    ]


def budget_bar(budget: Budget, *, scale_bytes: int, width: int, uncertain: bool = False) -> list[Cell]:
    """Draw the peak by component with its range, on a scale; ``uncertain``: settings of the job are guessed."""
    segments, peak = budget_segments(budget, uncertain=uncertain), budget.peak
    return draw_bar(segments, scale_bytes=scale_bytes, width=width, marked=(peak.low_bytes, peak.high_bytes))


def short_gpu_name(name: str | None) -> str:
    """Return a GPU's name without the words that most names share."""
    return (name or "GPU").replace("NVIDIA ", "").replace("GeForce ", "")


_EDGE = "│"
_LABEL_WIDTH, _TAIL_WIDTH = 22, 20


def _gpu_line(gpu: DeviceVerdict, budget: Budget, *, width: int, placed: bool, label: str = "") -> Content:
    device = gpu.device
    label = label or f"{'▶' if placed else ' '}{device.numbers:>2} {_gpu_label(device)}"[: _LABEL_WIDTH - 1]
    room_for_bar = max(8, width - _LABEL_WIDTH - _TAIL_WIDTH - len(_EDGE) - 1)
    bar = bar_content(_gpu_bar(gpu, budget, room_for_bar, placed=placed))
    mark = VERDICTS[gpu.verdict]
    tail = {
        "fits": f"{format_gib(gpu.margin_bytes)} left",
        "tight": f"{format_gib(gpu.margin_bytes)} left, tight",
        "does_not_fit": "not usable" if device.unusable_reason else f"short {format_gib(gpu.shortfall_bytes)}",
        "unknown": "cannot tell",
    }[gpu.verdict]
    head = (f"{label:<{_LABEL_WIDTH}}", "bold" if placed else "")
    return Content.assemble(head, bar, f"{_EDGE} ", (f"{mark.letter} ", f"bold {mark.colour}"), tail)


def _gpu_label(device: DeviceCapacity) -> str:
    """``H100 80GB HBM3``, ``MIG 1g.10gb gi 3``, or if that is too long ``1c.3g.40gb gi 3/1``."""
    if device.mig is None:
        return _model_name(device.name, device.total_bytes)
    part = f"/{device.mig.compute_instance}" if device.mig.compute_instance else ""
    name = f"{device.mig.profile or ''} gi {device.mig.gpu_instance}{part}".strip()
    return f"MIG {name}" if len(name) <= _LABEL_WIDTH - 9 else name


def _gpu_bar(gpu: DeviceVerdict, budget: Budget, width: int, *, placed: bool) -> list[Cell]:
    device = gpu.device
    if device.total_bytes is None or device.free_bytes is None:
        return [Cell("?") for _ in range(width)]
    held = device.total_bytes - device.free_bytes
    taken: Sequence[BarSegment] = (
        memory_segment("held", held),
        memory_segment("committed", device.committed_bytes),
    )
    if not placed:
        return draw_bar(taken, scale_bytes=device.total_bytes, width=width)
    before = held + device.committed_bytes
    span = before + budget.peak.low_bytes, before + budget.peak.high_bytes
    return draw_bar([*taken, *budget_segments(budget)], scale_bytes=device.total_bytes, width=width, marked=span)
