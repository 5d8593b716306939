"""The report on a recording: GPUs, runs beside their budgets, explanations, jobs and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.estimator.common.sizes import format_gib

from ..draw.labels import format_duration, process_name
from ..draw.palette import COMPONENTS, STATUSES, Mark, colour_of, component_mark
from .page import (
    Band,
    Bar,
    BarPlot,
    Gap,
    Line,
    Moment,
    Segment,
    TimePlot,
    add,
    bar_plot,
    clock_text,
    component_parts,
    legend,
    node,
    page,
    section,
    slack_part,
    table,
    time_plot,
    zone_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from xml.etree.ElementTree import Element

    from vramtop.estimator.budget import Budget
    from vramtop.estimator.job.job import Job
    from vramtop.monitor.board.divergence import Status
    from vramtop.monitor.sources.recorded import Event, EventKind, Recorded, RecordedGpu, RecordedProcess, RecordedRun


# The plots of a recording: memory over time of each GPU and run, and predicted components beside what was seen.


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
_RANK_COLOURS = tuple(
    COMPONENTS[name].colour for name in ("weights", "activations", "optimizer", "gradients", "logits")
)
_HEADROOM = 1.08


def gpu_plot(gpu: RecordedGpu, recorded: Recorded) -> TimePlot:
    """Return the memory in use of a GPU over time, beside what its known jobs should hold together."""
    high = gpu.used.high_bytes
    total = f" of {format_gib(gpu.total_bytes)}" if gpu.total_bytes else ""
    most = "memory unknown" if high is None else f"at most {format_gib(high)}{total} GiB in use"
    lines = [Line("in use", colour_of("no_budget"), gpu.used.stretches(), "area")]
    if gpu.expected:
        expected = gpu.expected.stretches()
        lines.append(Line("expected of its jobs", colour_of("warning"), expected, "dashed"))
    sizes = (gpu.total_bytes, high, gpu.expected.high_bytes)
    return TimePlot(
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


def component_plot(run: RecordedRun, budget: Budget) -> BarPlot:
    """Return the predicted components of each phase, and below them what the rank with the highest memory held."""
    marks = {name: component_mark(name, budget) for name in COMPONENTS}
    bars = []
    for phase in budget.phases:
        figure = f"{format_gib(phase.components.total_bytes)} GiB"
        bars.append(Bar(f"predicted, {phase.name}", component_parts(phase.components, marks), figure))
    peak = budget.peak
    figure = f"{format_gib(peak.device_bytes)} GiB ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)})"
    parts = (*component_parts(peak.components, marks), slack_part(peak.device_bytes - peak.components.total_bytes))
    bars.append(Bar(f"predicted peak, {peak.phase}", parts, figure, peak.low_bytes, peak.high_bytes))
    seen = run.peak_bytes
    if seen is not None:
        bars.append(Bar("seen, highest", _seen(run, seen), f"{format_gib(seen)} GiB"))
    return BarPlot(
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


def _seen(run: RecordedRun, size: int) -> tuple[Segment, ...]:
    """Return the parts of the highest memory that was seen, as far as torch's counters divide it."""
    colour = colour_of("no_budget")
    highest = run.highest
    counters = highest.row.process.counters if highest else None
    if counters is None or counters.allocated_peak_bytes is None or counters.reserved_peak_bytes is None:
        return (Segment("seen", colour, size),)
    allocated, cached = counters.allocated_peak_bytes, counters.reserved_peak_bytes - counters.allocated_peak_bytes
    outside = size - counters.reserved_peak_bytes
    if min(cached, outside) < 0:  # of different moments
        return (Segment("seen", colour, size),)
    return (
        Segment("allocated by torch, at most", colour, allocated),
        slack_part(cached),
        Segment("outside of torch", COMPONENTS["context"].colour, outside),
    )


def _moments(
    events: Sequence[Event], *, gpu_label: str | None = None, run: RecordedRun | None = None
) -> tuple[Moment, ...]:
    found = []
    for number, event in enumerate(events, start=1):
        if run is not None:
            concerns = event.run == run.key or event.kind == "cut"
        else:
            concerns = not event.gpus or gpu_label in event.gpus
        if concerns and event.kind != "gap":
            found.append(Moment(event.time, number, EVENT_MARKS[event.kind].colour, event.sentence))
    return tuple(found)


def _gaps(events: Sequence[Event]) -> tuple[Gap, ...]:
    found = ((event.time, event.end) for event in events if event.kind == "gap" and event.end is not None)
    return tuple(Gap(begin, end, f"{clock_text(begin)} to {clock_text(end)}: no reading") for begin, end in found)


def _top(sizes: Sequence[int | None]) -> int:
    return max(1, round(_HEADROOM * max((size for size in sizes if size is not None), default=1)))


_MAX_LEGEND_RANKS = 8
_SIGN_CLASSES: dict[EventKind, str] = {
    **dict.fromkeys(("out_of_memory", "diverged", "gpu_lost"), "bad"),
    **dict.fromkeys(("gap", "cut"), "warning"),
    **dict.fromkeys(("back_in_budget", "gpu_back"), "good"),
}
"""Class of the style sheet for the sign of an event; others stand on no colour."""
_STATUS_CLASSES: dict[Status, str] = {
    **dict.fromkeys(("over", "growing", "out_of_memory"), "bad"),
    "under": "warning",
    "on_budget": "good",
}
"""Class of the style sheet for the sign of a status; others stand on no colour."""


def recording_page(recorded: Recorded, *, made_by: str) -> str:
    """Return the report as HTML.

    Args:
        recorded: what the recording tells.
        made_by: the program and its version.
    """
    sections = [_overview(recorded), _events(recorded), _gpus(recorded)]
    jobs = [(number, run) for number, run in enumerate(recorded.runs, start=1) if run.job is not None]
    others = [(number, run) for number, run in enumerate(recorded.runs, start=1) if run.job is None]
    sections += [_run(run, recorded, number) for number, run in jobs]
    if others:
        sections.append(_programs(others, recorded))
    recording = recorded.recording
    host = f" of {recording.source.host}" if recording.source.host else ""
    span = f"{clock_text(recording.begin, date=True)} to {clock_text(recording.end, date=True)}"
    subtitle = f"Recording{host}, {span} ({zone_text(recording.begin)})"
    return page(f"GPU memory: {recording.name}", subtitle, sections, made_by=made_by)


def _overview(recorded: Recorded) -> Element:
    recording = recorded.recording
    every = "" if recording.interval_seconds is None else f", one every {recording.interval_seconds:.1f} s"
    readings = "1 reading" if recording.readings == 1 else f"{recording.readings:,} readings"
    seconds = recording.end - recording.begin + (recording.interval_seconds or 0)  # 180 readings a second are 3 min
    lines = [f"{readings} over {format_duration(round(seconds))}{every}"]
    driver, cuda = recording.source.driver_version, recording.source.cuda_version
    if driver:
        lines.append(f"driver {driver}{f', CUDA {cuda}' if cuda else ''}")
    gaps = [event for event in recorded.events if event.kind == "gap"]
    if gaps:
        unread = sum((event.end or event.time) - event.time for event in gaps)
        count = f"{len(gaps)} gap{'' if len(gaps) == 1 else 's'}"
        lines.append(f"{count} without readings, {format_duration(unread)} in all; plots are empty there")
    lines += [f"fault: {fault}" for fault in recorded.faults]
    lines += [f"pending at the end: {sentence}" for sentence in recorded.pending]
    found = section("Overview", _list(lines), name="overview")
    rows = [_overview_row(run, at) for at, run in enumerate(recorded.runs, start=1) if run.job is not None]
    heads = ("RUN", "STATUS", "GPU", "SEEN GiB", "EXPECTED", "RANGE")
    none = "The jobs of the processes in this recording are unknown, so there are no budgets."
    add(found, table(heads, rows, numbers=(3, 4, 5)) if rows else node("p", none, class_="note"))
    return found


def _overview_row(run: RecordedRun, number: int) -> tuple[Element | str, ...]:
    peak = run.budget.peak if run.budget else None
    gpus = dict.fromkeys(process.row.gpu.label for process in run.processes)
    return (
        node("a", run_name(run), href=f"#run-{number}"),
        _status(run),
        ", ".join(gpus),
        format_gib(run.peak_bytes),
        format_gib(peak.device_bytes) if peak else "n/a",
        f"{format_gib(peak.low_bytes)} to {format_gib(peak.shown_high_bytes)}" if peak else "n/a",
    )


def _status(run: RecordedRun) -> Element:
    last = run.highest.row.comparison if run.highest else None
    shown = run.needs_attention or last
    if shown is None:
        return node("span", run.problem or "not compared")
    mark = STATUSES[shown.status]
    return node("span", f"{mark.letter} {mark.word}", class_=f"sign {_STATUS_CLASSES.get(shown.status, '')}".strip())


def _events(recorded: Recorded) -> Element:
    found = section("Events", name="events")
    if not recorded.events:
        none = "No run started, ended, failed or left its budget, and every GPU could be read throughout."
        add(found, node("p", none))
        return found
    rows = [_event_row(number, event, recorded) for number, event in enumerate(recorded.events, start=1)]
    add(found, table(("", "TIME", "AFTER", "EVENT"), rows, numbers=(0,)))
    if recorded.events_left_out:
        add(found, node("p", f"{recorded.events_left_out} more events are not listed.", class_="note"))
    return found


def _event_row(number: int, event: Event, recorded: Recorded) -> tuple[Element | str, ...]:
    after = format_duration(max(0.0, event.time - recorded.recording.begin))
    sign = f"{EVENT_MARKS[event.kind].letter} {EVENT_MARKS[event.kind].word}"
    mark = node("span", sign, class_=f"sign {_SIGN_CLASSES.get(event.kind, '')}".strip())
    time = node("span", clock_text(event.time), class_="nowrap")
    return (str(number), time, node("span", after, class_="nowrap"), node("span", mark, f" {event.sentence}"))


def _gpus(recorded: Recorded) -> Element:
    found = section("GPUs", name="gpus")
    expected = ("expected of its jobs", colour_of("warning"), "dashed")
    entries = [expected] if any(gpu.expected for gpu in recorded.gpus) else []
    add(found, legend({"in use": colour_of("no_budget")}, entries))
    plots = node("div", class_="plots many" if len(recorded.gpus) > 2 else "plots")
    for gpu in recorded.gpus:
        plot = gpu_plot(gpu, recorded)
        why = node("p", f"Not known at some time: {gpu.unknown_reason}", class_="note") if gpu.unknown_reason else None
        add(plots, node("figure", node("figcaption", plot.title), time_plot(plot), why))
    add(found, plots if recorded.gpus else node("p", "There was no GPU."))
    return found


def _run(run: RecordedRun, recorded: Recorded, number: int) -> Element:
    found = section(f"Run {number}: {run_name(run)}", name=f"run-{number}")
    row = run.processes[0].row if run.processes else None
    if row is not None:
        who = f", user {row.process.user}" if row.process.user else ""
        ranks = f"{len(run.processes)} processes" if len(run.processes) > 1 else f"pid {row.process.pid}"
        command = node("code", row.process.command) if row.process.command else None
        add(found, node("p", f"{ranks}{who} ", command, class_="note"))
    add(found, _explanation(run))
    plot = run_plot(run, recorded, number)
    add(found, node("figure", node("figcaption", plot.title), time_plot(plot), _run_legend(run)))
    if run.budget is not None:
        bars = component_plot(run, run.budget)
        add(found, node("figure", node("figcaption", bars.title), bar_plot(bars), legend(bars.legend)))
        add(found, _component_table(run, run.budget), _budget_notes(run, run.budget))
    if run.job is not None:
        add(found, _job(run.job))
    return found


def _explanation(run: RecordedRun) -> Element:
    lines: list[str] = []
    if run.problem:
        lines.append(f"This run has no budget: {run.problem}")
    if run.missing:
        lines.append(f"The budget guesses settings that vramtop could not read: {', '.join(run.missing)}")
    last = run.highest.row.comparison if run.highest else None
    if last is not None:
        lines.append(f"At the end {STATUSES[last.status].word}: {last.sentence}")
    worst = run.needs_attention
    if worst is not None and worst is not last:
        lines.append(f"Earlier {STATUSES[worst.status].word}: {worst.sentence}")
    if run.divergence is not None:
        lines.append(f"Why? {run.divergence.sentence}")
        lines += [line for line in run.divergence.lines if line not in run.divergence.sentence]
    return _list(lines or ["Only its memory is known."])


def _run_legend(run: RecordedRun) -> Element:
    entries = [(line.label, line.colour, "line") for line in process_lines(run)[:_MAX_LEGEND_RANKS]]
    squares = {}
    if run.budget is not None:
        word = "range of the budget (a guess)" if run.missing else "range of the budget"
        colour = STATUSES["incomplete" if run.missing else "on_budget"].colour
        squares[word] = colour
        entries.append(("expected between steps", colour, "dashed"))
    return legend(squares, entries)


def _component_table(run: RecordedRun, budget: Budget) -> Element:
    heads = ("GiB", *(phase.name.upper() for phase in budget.phases), "PEAK")
    rows: list[tuple[Element | str, ...]] = []
    for name, size in budget.peak.components.items():
        sizes = [getattr(phase.components, name) for phase in budget.phases]
        if size or any(sizes):
            cells = (format_gib(each, digits=2) for each in (*sizes, size))
            rows.append((component_mark(name, budget).word, *cells))
    totals = (phase.components.total_bytes for phase in budget.phases)
    rows.append(
        ("all components", *(format_gib(each, digits=2) for each in totals), _gib(budget.peak.components.total_bytes))
    )
    blank = [""] * len(budget.phases)
    rows.append(("with the allocator's slack", *blank, _gib(budget.peak.device_bytes)))
    rows.append(("seen, highest", *blank, _gib(run.peak_bytes)))
    return table(heads, rows, numbers=tuple(range(1, len(heads))))


def _budget_notes(run: RecordedRun, budget: Budget) -> Element | None:
    method = "the closed form" if budget.method == "formula" else f"the method {budget.method}"
    notes = [f"The budget is an estimate by {method} for the job in the recording, made when this report was written."]
    highest = run.highest
    usage = highest.row.comparison.peak_usage if highest and highest.row.comparison else None
    if usage is not None and usage.source == "seen" and usage.interval_seconds is not None:
        notes.append(
            f"The highest is that of readings every {usage.interval_seconds:.1f} s: a peak between two is missed."
        )
    notes += [f"Warning: {warning}" for warning in budget.warnings]
    found = node("div", _list(notes))
    if budget.assumptions:
        summary = node("summary", f"{len(budget.assumptions)} assumptions of the estimate")
        add(found, node("details", summary, _list(list(budget.assumptions))))
    return found


def _job(job: Job) -> Element:
    from vramtop.estimator.job.job_file.load_and_save import job_to_toml

    text = job_to_toml(job, of_this_machine=False)
    return node("details", node("summary", "The job, as a job file"), node("pre", text))


def _programs(others: list[tuple[int, RecordedRun]], recorded: Recorded) -> Element:
    found = section("Processes without a known job", name="programs")
    plots = node("div", class_="plots many" if len(others) > 2 else "plots")
    for number, run in others:
        plot = run_plot(run, recorded, number)
        row = run.processes[0].row
        who = f", user {row.process.user}" if row.process.user else ""
        heading = node("figcaption", f"{run_name(run)}: at most {format_gib(run.peak_bytes)} GiB")
        many = f"{len(run.processes)} processes" if len(run.processes) > 1 else process_label(run.processes[0])
        detail = node("p", f"{many}{who} ", node("code", row.process.command or ""), class_="note")
        add(plots, node("figure", heading, detail, time_plot(plot) if run.highest else "No reading has its memory."))
    add(found, plots)
    return found


def _list(lines: list[str]) -> Element:
    return node("ul", *(node("li", line) for line in lines), class_="lines")


def _gib(size: int | None) -> str:
    return format_gib(size, digits=2)
