"""The report on a recording, one HTML file: GPUs, runs beside their budgets, explanations, jobs and events.

It asks no server for anything and runs no script. Its Content-Security-Policy forbids both: only the one style sheet,
named by its digest, is allowed.
"""

import base64
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.job_file.load_and_save import job_to_toml
from vramtop.monitor.sources.recorded import Recorded, RecordedGpu, RecordedRun
from vramtop.monitor.sources.recorded_events import Event, EventKind

from ..draw.labels import format_duration, process_name
from ..draw.palette import COMPONENTS, STATUSES, Mark, colour_of, component_mark
from .elements import Node, add, node, sentences, table
from .plots import Line, Moment, Range, TimePlot, clock_text, time_figure


def recording_page(recorded: Recorded, *, made_by: str) -> str:
    """Return the report as HTML.

    Args:
        recorded: what the recording tells.
        made_by: the program and its version.
    """
    sections = [_overview(recorded), _events(recorded), _gpus(recorded)]
    sections += [_run(run, recorded, number) for number, run in enumerate(recorded.runs, start=1)]
    recording = recorded.recording
    host = f" of {recording.source.host}" if recording.source.host else ""
    span = f"{clock_text(recording.begin, date=True)} to {clock_text(recording.end, date=True)}"
    zone = time.strftime("%Z, UTC%z", time.localtime(recording.begin))
    title, subtitle = f"GPU memory: {recording.name}", f"Recording{host}, {span} ({zone})"
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    written = time.strftime("%Y-%m-%d %H:%M")
    body = node(
        "body",
        node("header", node("h1", title), node("p", subtitle, class_="subtitle")),
        node("main", *sections),
        node("footer", node("p", f"Written by {made_by}, {written}. This file loads nothing and runs no script.")),
    )
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=policy),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="color-scheme", content="light dark"),
        node("meta", name="referrer", content="no-referrer"),
        node("title", f"{title} - vramtop report"),
    )
    markup = tostring(node("html", head, body, lang="en"), encoding="unicode", method="html")
    return "<!DOCTYPE html>\n" + markup.replace("</head>", f"<style>{style}</style></head>", 1) + "\n"


def _section(heading: str, *children: Element | str | None, name: str) -> Element:
    """Return a part of the page with a heading.

    Args:
        heading: its heading.
        *children: its content; None is left out.
        name: by which links find it.
    """
    return node("section", node("h2", heading, id=name), *children)


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
    found = _section("Overview", sentences(lines), name="overview")
    rows = [_overview_row(run, at) for at, run in enumerate(recorded.runs, start=1) if run.job is not None]
    heads = ("RUN", "STATUS", "GPU", "SEEN GiB", "EXPECTED", "RANGE")
    none = "The jobs of the processes in this recording are unknown, so there are no budgets."
    add(found, table(heads, rows, numbers=(3, 4, 5)) if rows else node("p", none, class_="note"))
    return found


def _overview_row(run: RecordedRun, number: int) -> tuple[Element | str, ...]:
    peak = run.budget.peak if run.budget else None
    gpus = dict.fromkeys(process.row.gpu.label for process in run.processes)
    return (
        node("a", _run_name(run), href=f"#run-{number}"),
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
    return _sign(STATUSES[shown.status])


def _sign(mark: Mark) -> Element:
    return node("span", f"{mark.letter} {mark.word}", class_=f"sign {mark.colour_name}")


def _events(recorded: Recorded) -> Element:
    none = "No run started, ended, failed or left its budget, and every GPU could be read throughout."
    rows: list[tuple[Element | str, ...]] = []
    for number, event in enumerate(recorded.events, start=1):
        after = format_duration(max(0.0, event.time - recorded.recording.begin))
        times = (node("span", time, class_="nowrap") for time in (clock_text(event.time), after))
        rows.append((str(number), *times, node("span", _sign(_EVENT_MARKS[event.kind]), f" {event.sentence}")))
    left_out = f"{recorded.events_left_out} more events are not listed." if recorded.events_left_out else None
    listed = table(("", "TIME", "AFTER", "EVENT"), rows, numbers=(0,)) if rows else node("p", none)
    return _section("Events", listed, left_out, name="events")


def _gpus(recorded: Recorded) -> Element:
    found = _section("GPUs", name="gpus")
    plots = node("div", class_="plots many" if len(recorded.gpus) > 2 else "plots")
    for gpu in recorded.gpus:
        title = f"GPU {gpu.label}, {(gpu.name or 'unknown model').removeprefix('NVIDIA ')}: {_most_in_use(gpu)}"
        figure = time_figure(title, gpu_plot(gpu, recorded))
        if gpu.unknown_reason:
            add(figure, node("p", f"Not known at some time: {gpu.unknown_reason}", class_="note"))
        add(plots, figure)
    add(found, plots if recorded.gpus else node("p", "There was no GPU."))
    return found


def _run(run: RecordedRun, recorded: Recorded, number: int) -> Element:
    found = _section(f"Run {number}: {_run_name(run)}", name=f"run-{number}")
    row = run.processes[0].row if run.processes else None
    if row is not None:
        who = f", user {row.process.user}" if row.process.user else ""
        ranks = f"{len(run.processes)} processes" if len(run.processes) > 1 else f"pid {row.process.pid}"
        command = node("code", row.process.command) if row.process.command else None
        add(found, node("p", f"{ranks}{who} ", command, class_="note"))
    add(found, _explanation(run))
    title = f"At most {format_gib(run.peak_bytes)} GiB on one GPU"
    add(found, time_figure(title, _run_plot(run, recorded, number)))
    if run.budget is not None:
        add(found, _component_table(run, run.budget), _budget_notes(run.budget))
    if run.job is not None:
        text = job_to_toml(run.job, of_this_machine=False)
        add(found, node("details", node("summary", "The job, as a job file"), node("pre", text)))
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
    return sentences(lines or ["Only its memory is known."])


def _component_table(run: RecordedRun, budget: Budget) -> Element:
    """Return the predicted components of each phase, and what the rank with the highest memory held."""
    peak, columns = budget.peak, [*(phase.components for phase in budget.phases), budget.peak.components]
    sizes = [(component_mark(name, budget).word, [getattr(column, name) for column in columns]) for name in COMPONENTS]
    rows: list[tuple[Node, ...]] = [(word, *map(_gib, found)) for word, found in sizes if any(found)]
    rows.append(("all components", *(_gib(column.total_bytes) for column in columns)))
    blank = [""] * len(budget.phases)
    span = f"{_gib(peak.device_bytes)} ({format_gib(peak.low_bytes)} to {format_gib(peak.shown_high_bytes)})"
    rows.append(("with the allocator's slack", *blank, span))
    rows.append(("seen, highest", *blank, _gib(run.peak_bytes)))
    heads = ("GiB", *(phase.name.upper() for phase in budget.phases), f"PEAK, {peak.phase.upper()}")
    return table(heads, rows, numbers=tuple(range(1, len(heads))))


def _gib(size: int | None) -> str:
    return format_gib(size, digits=2)


def _budget_notes(budget: Budget) -> Element:
    method = "the closed form" if budget.method == "formula" else f"the method {budget.method}"
    notes = [f"The budget is an estimate by {method} for the job in the recording, made when this report was written."]
    notes += [f"Warning: {warning}" for warning in budget.warnings]
    summary = node("summary", f"{len(budget.assumptions)} assumptions of the estimate")
    return node("div", sentences(notes), node("details", summary, sentences(budget.assumptions)))


_EVENT_MARKS: dict[EventKind, Mark] = {
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
        summary=f"Memory in use on GPU {gpu.label} over time; {_most_in_use(gpu)}.",
        begin=recorded.recording.begin,
        end=recorded.recording.end,
        top_bytes=_top(gpu.total_bytes, gpu.used.high_bytes, gpu.expected.high_bytes),
        limit_bytes=gpu.total_bytes,
        lines=tuple(lines),
        moments=_moments(recorded.events, lambda event: not event.gpus or gpu.label in event.gpus),
    )


def _most_in_use(gpu: RecordedGpu) -> str:
    """Return the most memory in use that was seen on a GPU, in words."""
    high, total = gpu.used.high_bytes, f" of {format_gib(gpu.total_bytes)}" if gpu.total_bytes else ""
    return "memory unknown" if high is None else f"at most {format_gib(high)}{total} GiB in use"


def _run_plot(run: RecordedRun, recorded: Recorded, number: int) -> TimePlot:
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


def _run_name(run: RecordedRun) -> str:
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
            found.append(Moment(event.time, text, number, _EVENT_MARKS[event.kind].colour))
    return tuple(found)


_HEADROOM = 1.08


def _top(*sizes: int | None) -> int:
    return max(1, round(_HEADROOM * max((size for size in sizes if size is not None), default=1)))
