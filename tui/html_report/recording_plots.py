"""The plots of a recording: memory over time of each GPU and run, and predicted components beside what was seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vramtop.estimator.common import format_gib

from ..draw import COMPONENTS, STATUSES, Mark, colour_of, component_mark, process_name
from .plots import Band, Bar, BarPlot, Gap, Line, Moment, Segment, TimePlot
from .scale import clock_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramtop.estimator.budget import Budget, Components
    from vramtop.monitor.sources.recorded import Event, EventKind, Recorded, RecordedGpu, RecordedProcess, RecordedRun

    from .plots import Plot

EVENT_MARKS: dict[EventKind, Mark] = {
    "started": Mark("▸", "started", "neutral"),
    "ended": STATUSES["ended"],
    "out_of_memory": STATUSES["out_of_memory"],
    "diverged": Mark(STATUSES["over"].letter, "diverged", "bad"),
    "back_in_budget": Mark(STATUSES["on_budget"].letter, "in budget", "on_budget"),
    "gpu_lost": Mark("✗", "GPU lost", "bad"),
    "gpu_back": Mark("✓", "GPU back", "on_budget"),
    "gap": Mark("…", "no reading", "warning"),
    "cut": Mark("…", "cut off", "warning"),
}
_RANK_COLOURS = tuple(
    COMPONENTS[name].colour for name in ("weights", "activations", "optimizer", "gradients", "logits")
)
_HEADROOM = 1.08


def recording_plots(recorded: Recorded) -> list[Plot]:
    """Return all plots, in the order of the page."""
    found: list[Plot] = [gpu_plot(gpu, recorded) for gpu in recorded.gpus]
    for number, run in enumerate(recorded.runs, start=1):
        found.append(run_plot(run, recorded, number))
        if run.budget is not None:
            found.append(component_plot(run, run.budget, number))
    return found


def gpu_plot(gpu: RecordedGpu, recorded: Recorded) -> TimePlot:
    """Return the memory in use of a GPU over time, beside what its known jobs should hold together."""
    high = gpu.used.high_bytes
    total = f" of {format_gib(gpu.total_bytes)}" if gpu.total_bytes else ""
    most = "memory unknown" if high is None else f"at most {format_gib(high)}{total} GiB in use"
    lines = [Line(label="in use", colour=colour_of("no_budget"), stretches=gpu.used.stretches(), style="area")]
    if gpu.expected:
        expected = gpu.expected.stretches()
        lines.append(
            Line(label="expected of its jobs", colour=colour_of("warning"), stretches=expected, style="dashed")
        )
    sizes = (gpu.total_bytes, high, gpu.expected.high_bytes)
    return TimePlot(
        name=f"gpu-{gpu.label.replace(':', '-')}",
        title=f"GPU {gpu.label}, {(gpu.name or 'unknown model').removeprefix('NVIDIA ')}: {most}",
        summary=f"Memory in use on GPU {gpu.label} over time; {most}.",
        begin=recorded.recording.begin,
        end=recorded.recording.end,
        top_bytes=_top(sizes),
        limit_bytes=gpu.total_bytes,
        lines=tuple(lines),
        moments=_moments(recorded.events, gpu_label=gpu.label),
        gaps=_gaps(recorded.events),
    )


def run_plot(run: RecordedRun, recorded: Recorded, number: int) -> TimePlot:
    """Return the memory of each process of a run over time, with the range of its budget."""
    lines = sorted(process_lines(run), key=lambda line: line.style == "line")  # the highest is drawn last
    band = None
    if run.budget is not None:
        peak, guess = run.budget.peak, bool(run.missing)
        band = Band(
            label="budget, with guessed settings" if guess else "budget",
            colour=colour_of("uncertain") if guess else STATUSES["on_budget"].colour,
            low_bytes=peak.low_bytes,
            expected_bytes=run.budget.steady_device_bytes,
            high_bytes=peak.shown_high_bytes,
        )
    seen = format_gib(run.peak_bytes)
    return TimePlot(
        name=f"run-{number}",
        title=f"{run_name(run)}: at most {seen} GiB on one GPU",
        summary=f"Memory of run {number} over time; at most {seen} GiB on one GPU.",
        begin=recorded.recording.begin,
        end=recorded.recording.end,
        top_bytes=_top((run.peak_bytes, band.high_bytes if band else None)),
        lines=tuple(lines),
        band=band,
        moments=_moments(recorded.events, run=run),
        gaps=_gaps(recorded.events),
    )


def process_lines(run: RecordedRun) -> list[Line]:
    """Return a line for each process of a run, by rank."""
    highest, few = run.highest, len(run.processes) <= len(_RANK_COLOURS)
    return [
        Line(
            label=process_label(process),
            colour=_RANK_COLOURS[at % len(_RANK_COLOURS)] if len(run.processes) > 1 else colour_of("no_budget"),
            stretches=process.used.stretches(),
            style="line" if few or process is highest else "thin",
        )
        for at, process in enumerate(run.processes)
        if process.used
    ]


def component_plot(run: RecordedRun, budget: Budget, number: int) -> BarPlot:
    """Return the predicted components of each phase, and below them what the rank with the highest memory held."""
    bars = [
        Bar(
            label=f"predicted, {phase.name}",
            segments=_segments(budget, phase.components),
            figure=_gib(phase.components),
        )
        for phase in budget.phases
    ]
    peak = budget.peak
    figure = f"{format_gib(peak.device_bytes)} GiB ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)})"
    slack = max(0, peak.device_bytes - peak.components.total_bytes)
    segments = (
        *_segments(budget, peak.components),
        Segment(label="allocator slack", colour=colour_of("neutral"), bytes=slack),
    )
    bars.append(
        Bar(
            label=f"predicted peak, {peak.phase}",
            segments=segments,
            figure=figure,
            low_bytes=peak.low_bytes,
            high_bytes=peak.high_bytes,
        )
    )
    seen = run.peak_bytes
    if seen is not None:
        bars.append(Bar(label="seen, highest", segments=_seen(run, seen), figure=f"{format_gib(seen)} GiB"))
    return BarPlot(
        name=f"run-{number}-components",
        title=f"{run_name(run)}: predicted components, and what was seen",
        summary=f"Predicted peak {figure}; seen at most {format_gib(seen)} GiB.",
        bars=tuple(bars),
    )


def run_name(run: RecordedRun) -> str:
    """Return the label of a run's job, or the name of the program."""
    if run.job is not None:
        return run.job.label
    return process_name(run.processes[0].row.process) if run.processes else "?"


def process_label(process: RecordedProcess) -> str:
    """Return GPU and pid of a process."""
    return f"GPU {process.row.gpu.label}, pid {process.row.process.pid}"


def _segments(budget: Budget, components: Components) -> tuple[Segment, ...]:
    parts = ((component_mark(name, budget), size) for name, size in components.items())
    return tuple(Segment(label=mark.word, colour=mark.colour, bytes=size) for mark, size in parts)


def _gib(components: Components) -> str:
    return f"{format_gib(components.total_bytes)} GiB"


def _seen(run: RecordedRun, size: int) -> tuple[Segment, ...]:
    """Return the parts of the highest memory that was seen, as far as torch's counters divide it."""
    whole = Segment(label="seen", colour=colour_of("no_budget"), bytes=size)
    highest = run.highest
    counters = highest.row.process.counters if highest else None
    if counters is None or counters.allocated_peak_bytes is None or counters.reserved_peak_bytes is None:
        return (whole,)
    allocated, cached = counters.allocated_peak_bytes, counters.reserved_peak_bytes - counters.allocated_peak_bytes
    outside = size - counters.reserved_peak_bytes
    if min(cached, outside) < 0:  # of different moments
        return (whole,)
    return (
        Segment(label="allocated by torch, at most", colour=colour_of("no_budget"), bytes=allocated),
        Segment(label="allocator slack", colour=colour_of("neutral"), bytes=cached),
        replace(whole, label="outside of torch", colour=COMPONENTS["context"].colour, bytes=outside),
    )


def _moments(
    events: Sequence[Event], *, gpu_label: str | None = None, run: RecordedRun | None = None
) -> tuple[Moment, ...]:
    found = []
    for number, event in enumerate(events, start=1):
        if event.kind == "gap":
            continue
        if run is not None:
            concerns = event.run == run.key or event.kind == "cut"
        else:
            concerns = not event.gpus or gpu_label in event.gpus
        if concerns:
            colour = EVENT_MARKS[event.kind].colour
            found.append(Moment(time=event.time, number=number, colour=colour, text=event.sentence))
    return tuple(found)


def _gaps(events: Sequence[Event]) -> tuple[Gap, ...]:
    return tuple(
        Gap(
            begin=event.time,
            end=event.end,
            text=f"{clock_text(event.time)} to {clock_text(event.end)}: no reading",
        )
        for event in events
        if event.kind == "gap" and event.end is not None
    )


def _top(sizes: Sequence[int | None]) -> int:
    return max(1, round(_HEADROOM * max((size for size in sizes if size is not None), default=1)))
