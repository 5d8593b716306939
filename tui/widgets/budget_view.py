"""A budget in figures and bars: pure text, for every screen that shows one."""

from collections.abc import Mapping, Sequence

from textual.content import Content

from vramtop.estimator.budget.budget import Budget, Method
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.effective_batch import effective_batch
from vramtop.monitor.fit.device_capacity import DeviceCapacity
from vramtop.monitor.fit.fit_result import DeviceVerdict, FitResult

from ..draw.bars import BarSegment, Cell, component_segments, draw_bar, mark_range
from ..draw.gpu_bars import SLACK, bar_content
from ..draw.labels import badge
from ..draw.palette import COMPONENTS, VERDICTS

METHOD_LABELS: Mapping[Method, str] = {
    "formula": "from the shape",
    "exact": "exact count",
    "traced": "traced step",
}
HELD = BarSegment(0, "█", "#788497")
COMMITTED = BarSegment(0, "▒", "#788497")
_EDGE = "│"
_PHASE_HEADS = {"optimizer step": "optimizer"}
_LABEL, _TAIL = 22, 20


def is_better_estimate(new: Budget, old: Budget | None) -> bool:
    """Whether a budget is worth more than the one before: another job's is, a quick one after an exact one is not."""
    return old is None or old.job != new.job or new.method != "formula" or old.method == "formula"


def verdict_line(fit: FitResult) -> Content:
    """The verdict: its sign and word in colour, and the sentence."""
    return Content.assemble(badge(VERDICTS[fit.verdict], fit.verdict), f" {fit.sentence}")


def peak_line(budget: Budget) -> Content:
    """The expected peak, its range, its phase, and how deep the estimate went."""
    peak = budget.peak
    return Content.assemble(
        "peak ",
        (f"{format_gib(peak.device_bytes)} GiB", "bold"),
        f" ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)}) in {peak.phase} · ",
        (METHOD_LABELS[budget.method], "bold" if budget.method != "formula" else "dim"),
    )


def model_lines(budget: Budget) -> list[Content]:
    """How large the model is, and how much data one optimizer step sees."""
    model, job = budget.model, budget.job
    sure = "" if model.count == "exact" else "about "
    trainable = "all trainable"
    if model.trainable_parameters != model.parameters:
        trainable = f"{short_count(model.trainable_parameters)} trainable"
    batch = effective_batch(job)
    lines = [Content(f"model {sure}{short_count(model.parameters)} parameters, {trainable}")]
    if batch is not None:
        lines.append(Content(f"batch {batch.describe()}"))
        if advice := batch.advice():
            lines.append(Content.styled(advice, "dim"))
    return lines


def short_count(count: int) -> str:
    """A count of parameters as people say it: ``8.03 B``."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:,}"


def phase_table(budget: Budget) -> list[Content]:
    """GiB by component (rows, which are the bar's legend too) and phase (columns); the peak's phase is marked."""
    heads = [_PHASE_HEADS.get(phase.name, phase.name) for phase in budget.phases]
    marked = [
        f"{head}◀" if phase.name == budget.peak.phase else head
        for head, phase in zip(heads, budget.phases, strict=True)
    ]
    lines = [Content.assemble((f"{'GiB':<17}" + "".join(f"{head:>11}" for head in marked), "dim"))]
    for name, mark in COMPONENTS.items():
        sizes = [getattr(phase.components, name) for phase in budget.phases]
        if any(sizes):
            figures = "".join(f"{format_gib(size, digits=2) if size else '·':>11}" for size in sizes)
            lines.append(Content.assemble((f"{mark.letter} ", f"bold {mark.colour}"), f"{mark.word:<15}", figures))
    totals = "".join(f"{format_gib(phase.components.total_bytes, digits=2):>11}" for phase in budget.phases)
    lines.append(Content.assemble((f"{'total':<17}{totals}", "bold")))
    return lines


def remark_lines(budget: Budget) -> list[Content]:
    """Warnings first, then what was taken for granted."""
    warnings = [Content.assemble(("! ", "bold #c96c04"), sentence) for sentence in budget.warnings]
    return warnings + [Content.assemble((f"- {sentence}", "dim")) for sentence in budget.assumptions]


def gpu_lines(fit: FitResult, budget: Budget, *, width: int, placed_only: bool = False) -> list[Content]:
    """A bar per GPU on the card's scale: held, committed, this job where it would go, free.

    Args:
        fit: the verdict.
        budget: the job's.
        width: cells of a line.
        placed_only: those that get no rank are told in one line, where they are several.
    """
    placed = [gpu for gpu in fit.gpus if gpu.device in fit.rank_devices]
    others = [gpu for gpu in fit.gpus if gpu not in placed]
    if not placed_only or len(others) < 2 or not placed:
        return [_gpu_line(gpu, budget, width=width, placed=gpu in placed) for gpu in fit.gpus]
    roomiest = max(others, key=lambda gpu: gpu.device.available_bytes or 0)
    most = format_gib(roomiest.device.available_bytes or 0)
    what = "others" if any(gpu.device.mig for gpu in others) else "other GPUs"
    rest = f"   {len(others)} {what}, at most {most} GiB free ({roomiest.device.label})"
    return [*(_gpu_line(gpu, budget, width=width, placed=True) for gpu in placed), Content.styled(rest, "dim")]


def gpu_legend() -> Content:
    """What the signs of ``gpu_lines`` mean, apart from the components' letters."""
    words = f"{HELD.char} held  {COMMITTED.char} committed  {SLACK.char} slack  ├─┤ range  letters: see below"
    return Content.styled(words, "dim")


def budget_segments(budget: Budget) -> list[BarSegment]:
    """The peak by component, and the allocator's slack."""
    slack = budget.peak.device_bytes - budget.peak.components.total_bytes
    return [*component_segments(budget.peak.components), BarSegment(slack, SLACK.char, SLACK.colour)]


def budget_bar(budget: Budget, *, scale_bytes: int, width: int) -> list[Cell]:
    """The peak by component with its range, on a scale."""
    peak = budget.peak
    cells = draw_bar(budget_segments(budget), scale_bytes=scale_bytes, width=width)
    return mark_range(cells, low_bytes=peak.low_bytes, high_bytes=peak.high_bytes, scale_bytes=scale_bytes)


def short_gpu_name(name: str | None) -> str:
    """A card's name without what all of them share."""
    return (name or "GPU").replace("NVIDIA ", "").replace("GeForce ", "")


def _gpu_line(gpu: DeviceVerdict, budget: Budget, *, width: int, placed: bool) -> Content:
    room = gpu.device
    label = f"{'▶' if placed else ' '}{room.index:>2} {_card_words(room)}"[: _LABEL - 1]
    room_for_bar = max(8, width - _LABEL - _TAIL - len(_EDGE) - 1)
    cells = _gpu_bar(gpu, budget, room_for_bar, placed=placed)
    return Content.assemble(
        (f"{label:<{_LABEL}}", "bold" if placed else ""), bar_content(cells), f"{_EDGE} ", _gpu_tail(gpu)
    )


def _card_words(room: DeviceCapacity) -> str:
    """``H100 80GB HBM3``, ``MIG 1g.10gb gi 3``, where there is no place for more ``1c.3g.40gb gi 3/1``."""
    if room.mig is None:
        return short_gpu_name(room.name)
    part = f"/{room.mig.compute_instance}" if room.mig.compute_instance else ""
    words = f"{room.mig.profile or ''} gi {room.mig.gpu_instance}{part}".strip()
    return f"MIG {words}" if len(words) <= _LABEL - 9 else words


def _gpu_bar(gpu: DeviceVerdict, budget: Budget, width: int, *, placed: bool) -> list[Cell]:
    room = gpu.device
    if room.total_bytes is None or room.free_bytes is None:
        return [Cell("?") for _ in range(width)]
    held = room.total_bytes - room.free_bytes
    taken: Sequence[BarSegment] = (
        BarSegment(held, HELD.char, HELD.colour),
        BarSegment(room.committed_bytes, COMMITTED.char, COMMITTED.colour),
    )
    job = budget_segments(budget) if placed else []
    cells = draw_bar([*taken, *job], scale_bytes=room.total_bytes, width=width)
    if not placed:
        return cells
    before = held + room.committed_bytes
    low, high = before + budget.peak.low_bytes, before + budget.peak.high_bytes
    return mark_range(cells, low_bytes=low, high_bytes=high, scale_bytes=room.total_bytes)


def _gpu_tail(gpu: DeviceVerdict) -> Content:
    mark = VERDICTS[gpu.verdict]
    words = {
        "fits": f"{format_gib(gpu.margin_bytes)} left",
        "tight": f"{format_gib(gpu.margin_bytes)} left, tight",
        "does_not_fit": "closed to programs"
        if gpu.device.unusable_reason
        else f"short {format_gib(gpu.shortfall_bytes)}",
        "unknown": "cannot tell",
    }
    return Content.assemble((f"{mark.letter} ", f"bold {mark.colour}"), words[gpu.verdict])
