"""The plots of a recording: memory over time of each GPU and run, and predicted components beside what was seen."""

from collections.abc import Callable, Sequence

from vramtop.estimator.common.sizes import format_gib
from vramtop.monitor.sources.recorded import Recorded, RecordedGpu, RecordedRun
from vramtop.monitor.sources.recorded_events import Event, EventKind

from ..draw.labels import process_name
from ..draw.palette import COMPONENTS, STATUSES, Mark, colour_of
from .plots import Line, Moment, Range, TimePlot, clock_text

EVENT_MARKS: dict[EventKind, Mark] = {
    "started": Mark("▸", "started", "neutral"),
    "ended": STATUSES["ended"],
    "out_of_memory": STATUSES["out_of_memory"],
    "diverged": Mark(STATUSES["over"].letter, "diverged", "bad"),
    "back_in_budget": Mark(STATUSES["on_budget"].letter, "in budget", "good"),
    "gpu_lost": Mark("✗", "GPU lost", "bad"),
    "gpu_back": Mark("✓", "GPU back", "good"),
    "gap": Mark("…", "no reading", "warning"),
    "cut": Mark("…", "cut off", "warning"),
}


def gpu_plot(gpu: RecordedGpu, recorded: Recorded) -> TimePlot:
    """Return the memory in use of a GPU over time, beside what its known jobs should hold together."""
    lines = [Line("in use", colour_of("no_budget"), gpu.used.stretches(), "area")]
    if gpu.expected:
        lines.append(Line("expected of its jobs", colour_of("warning"), gpu.expected.stretches(), "dashed"))
    return TimePlot(
        summary=f"Memory in use on GPU {gpu.label} over time; {most_in_use(gpu)}.",
        begin=recorded.recording.begin,
        end=recorded.recording.end,
        top_bytes=_top(gpu.total_bytes, gpu.used.high_bytes, gpu.expected.high_bytes),
        limit_bytes=gpu.total_bytes,
        lines=tuple(lines),
        moments=_moments(recorded.events, lambda event: not event.gpus or gpu.label in event.gpus),
    )


def most_in_use(gpu: RecordedGpu) -> str:
    """Return the most memory in use that was seen on a GPU, in words."""
    high, total = gpu.used.high_bytes, f" of {format_gib(gpu.total_bytes)}" if gpu.total_bytes else ""
    return "memory unknown" if high is None else f"at most {format_gib(high)}{total} GiB in use"


def run_plot(run: RecordedRun, recorded: Recorded, number: int) -> TimePlot:
    """Return the memory of each process of a run over time, with the range of its budget."""
    band = None
    if run.budget is not None:
        peak, guess = run.budget.peak, bool(run.missing)
        label = "budget, with guessed settings" if guess else "budget"
        colour = STATUSES["incomplete" if guess else "on_budget"].colour
        band = Range(label, colour, run.budget.steady_device_bytes, peak.low_bytes, peak.shown_high_bytes)
    return TimePlot(
        summary=f"Memory of run {number} over time; at most {format_gib(run.peak_bytes)} GiB on one GPU.",
        begin=recorded.recording.begin,
        end=recorded.recording.end,
        top_bytes=_top(run.peak_bytes, band.high_bytes if band else None),
        lines=tuple(sorted(_process_lines(run), key=lambda line: line.style == "line")),  # the highest is drawn last
        band=band,
        moments=_moments(recorded.events, lambda event: event.run == run.key or event.kind == "cut"),
    )


_RANK_COLOURS = tuple(
    COMPONENTS[name].colour for name in ("weights", "activations", "optimizer", "gradients", "logits")
)


def _process_lines(run: RecordedRun) -> list[Line]:
    """Return a line for each process of a run, by rank."""
    highest, few = run.highest, len(run.processes) <= len(_RANK_COLOURS)
    return [
        Line(
            label=f"GPU {process.row.gpu.label}, pid {process.row.process.pid}",
            colour=_RANK_COLOURS[at % len(_RANK_COLOURS)] if len(run.processes) > 1 else colour_of("no_budget"),
            stretches=process.used.stretches(),
            style="line" if few or process is highest else "thin",
        )
        for at, process in enumerate(run.processes)
        if process.used
    ]


def run_name(run: RecordedRun) -> str:
    """Return the label of a run's job, or the name of the program."""
    if run.job is not None:
        return run.job.label
    return process_name(run.processes[0].row.process) if run.processes else "?"


def _moments(events: Sequence[Event], concerns: Callable[[Event], bool]) -> tuple[Moment, ...]:
    """Return the events that concern a plot, and all times without readings."""
    found = []
    for number, event in enumerate(events, start=1):
        if event.kind == "gap" and event.end is not None:
            text = f"{clock_text(event.time)} to {clock_text(event.end)}: no reading"
            found.append(Moment(event.time, text, end=event.end))
        elif event.kind != "gap" and concerns(event):
            text = f"{clock_text(event.time)} {event.sentence}"
            found.append(Moment(event.time, text, number, EVENT_MARKS[event.kind].colour))
    return tuple(found)


_HEADROOM = 1.08


def _top(*sizes: int | None) -> int:
    return max(1, round(_HEADROOM * max((size for size in sizes if size is not None), default=1)))
