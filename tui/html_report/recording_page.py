"""The report on a recording: GPUs, runs beside their budgets, explanations, jobs and events."""

import time
from xml.etree.ElementTree import Element

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.job.job_file.load_and_save import job_to_toml
from vramtop.monitor.sources.recorded import Recorded, RecordedRun

from ..draw.labels import format_duration
from ..draw.palette import COMPONENTS, STATUSES, Mark, component_mark
from .elements import Node, add, node, sentences, table
from .page import page, section
from .plots import clock_text, time_figure
from .recording_plots import EVENT_MARKS, gpu_plot, most_in_use, run_name, run_plot


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
    subtitle = f"Recording{host}, {span} ({zone})"
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
    found = section("Overview", sentences(lines), name="overview")
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
    return _sign(STATUSES[shown.status])


def _sign(mark: Mark) -> Element:
    return node("span", f"{mark.letter} {mark.word}", class_=f"sign {mark.colour_name}")


def _events(recorded: Recorded) -> Element:
    none = "No run started, ended, failed or left its budget, and every GPU could be read throughout."
    rows: list[tuple[Element | str, ...]] = []
    for number, event in enumerate(recorded.events, start=1):
        after = format_duration(max(0.0, event.time - recorded.recording.begin))
        times = (node("span", time, class_="nowrap") for time in (clock_text(event.time), after))
        rows.append((str(number), *times, node("span", _sign(EVENT_MARKS[event.kind]), f" {event.sentence}")))
    left_out = f"{recorded.events_left_out} more events are not listed." if recorded.events_left_out else None
    listed = table(("", "TIME", "AFTER", "EVENT"), rows, numbers=(0,)) if rows else node("p", none)
    return section("Events", listed, left_out, name="events")


def _gpus(recorded: Recorded) -> Element:
    found = section("GPUs", name="gpus")
    plots = node("div", class_="plots many" if len(recorded.gpus) > 2 else "plots")
    for gpu in recorded.gpus:
        title = f"GPU {gpu.label}, {(gpu.name or 'unknown model').removeprefix('NVIDIA ')}: {most_in_use(gpu)}"
        figure = time_figure(title, gpu_plot(gpu, recorded))
        if gpu.unknown_reason:
            add(figure, node("p", f"Not known at some time: {gpu.unknown_reason}", class_="note"))
        add(plots, figure)
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
    title = f"At most {format_gib(run.peak_bytes)} GiB on one GPU"
    add(found, time_figure(title, run_plot(run, recorded, number)))
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
