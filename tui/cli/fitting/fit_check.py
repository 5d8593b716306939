"""A job judged on the GPUs of this machine or of one that is described, and its report."""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from vramtop.estimator.advice.setting_edits import Edit, edits_text, flag_edits, tool_edits
from vramtop.estimator.advice.suggestion_search import Suggestion
from vramtop.estimator.advice.suggestions import confirm
from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, ExitCode, Verdict
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.common.untrusted_files import read_file
from vramtop.estimator.estimation import MethodChoice, estimate, quick_estimator
from vramtop.estimator.job.gpu_catalogue import Gpu
from vramtop.estimator.job.job import REHEARSED, Job
from vramtop.estimator.job.job_file.edit import edit_job_file, unified_diff
from vramtop.estimator.learning.correction import carried
from vramtop.monitor.board.capacity import DeviceCapacity, count_devices
from vramtop.monitor.board.fit import check_fit, with_host_memory
from vramtop.monitor.board.fit_result import FitResult
from vramtop.monitor.host.available_ram import RANKS_OF_DESCRIBED_HOST, available_host_memory

from ...draw.palette import VERDICTS
from ...draw.text_output import TextOutput, detect_output
from ...job.advice import Advice, find_advice
from ...job.flags.job_flags import flags_by_key
from ...job.load_job import load_changed
from ...job.loaded_job import LoadedJob
from ...reports.budget_text import budget_lines, closing_lines, fit_lines, largest_line, need_text
from ..assumptions import assumed_lines
from ..json_text import json_text
from ..measured_runs import correction, estimate_job
from ..option_values import described_host
from ..progress import Progress
from ..rehearsing import is_open, offer_of, rehearsal_of, what_is_known
from .machine_gpus import gpus_here

_DECISIVE_SHARE = 0.25
"""Share of the range's width from which on its largest doubt is told beside the verdict."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that estimates are made for."""

    gpu: Gpu | None
    memory_bytes: int | None
    gpus: int
    python: str | None = None


def advise(
    budget: Budget,
    judge: Callable[[Budget], Verdict],
    machine: Machine,
    *,
    method: MethodChoice,
    progress: Callable[[str], None] | None = None,
    correct: Callable[[Budget], Budget] = lambda budget: budget,
    change: Callable[[Mapping[str, Any]], Job] | None = None,
) -> Advice:
    """Search for changes with the closed form; those that are shown are estimated as the job itself was.

    Args:
        budget: of the job.
        judge: whether a budget fits.
        machine: the GPUs to fit on.
        method: as the user chose it.
        progress: called with what is being done.
        correct: corrects a budget by measured runs of its own job; else the job's correction is carried over.
        change: see ``find_advice``.
    """
    try:
        quick = quick_estimator(budget.job, gpu=machine.gpu)
    except CannotTellError:
        return Advice(budget=budget)
    found = find_advice(budget, judge, quick, gpus=machine.gpus, gpu=machine.gpu, change=change)

    def as_pasted(changed: Job) -> Budget:
        found = estimate(
            changed, method=method, gpu=machine.gpu, memory_bytes=machine.memory_bytes, python=machine.python
        )
        return carried(correct(found), budget)

    return replace(found, suggestions=confirm(found.suggestions, as_pasted, judge, progress=progress))


def suggestion_edits(loaded: LoadedJob, suggestion: Suggestion) -> tuple[Edit, ...]:
    """Return the suggestion as edits of the file or command line that the job was loaded from."""
    if loaded.reading is not None:
        return tool_edits(loaded.reading, loaded.job, suggestion.changes, tool=loaded.tool, place=loaded.place)
    return flag_edits(loaded.job, suggestion.changes, flags_by_key())


def suggestion_diff(loaded: LoadedJob, suggestion: Suggestion) -> str | None:
    """Return the suggestion as a unified diff of the job file; None if there is no file, or it cannot be edited."""
    if loaded.file is None:
        return None
    before = read_file(Path(loaded.file)).decode()
    after = edit_job_file(before, suggestion.changes)
    return None if after is None else unified_diff(before, after, name=str(loaded.file))


def suggestion_json(suggestion: Suggestion, loaded: LoadedJob) -> dict[str, Any]:
    """Return an entry of the JSON key ``suggestions``."""
    peak, diff = suggestion.budget.peak, suggestion_diff(loaded, suggestion)
    found = {
        "changes": suggestion.changes,
        "device_bytes": peak.device_bytes,
        "low_bytes": peak.low_bytes,
        "high_bytes": peak.high_bytes,
        "verdict": suggestion.verdict,
        "method": suggestion.budget.method,
        "confirmed": suggestion.confirmed,
        "why": suggestion.why,
        "slowdown": round(sum(part.slowdown for part in suggestion.parts), 3),
        "quality": round(sum(part.quality for part in suggestion.parts), 3),
        "sources": list(suggestion.sources),
        "edits": [msgspec.to_builtins(edit) for edit in suggestion_edits(loaded, suggestion)],
    }
    if diff:
        found["diff"] = diff
    return found


_HEADINGS: dict[Verdict, str] = {
    "fits": "ways to make it fit, least costly first:",
    "tight": "nothing makes it fit; ways to make it tight, least costly first:",
    "does_not_fit": "nothing makes it fit; closest changes:",
    "unknown": "ways to make it smaller:",
}
"""Heading of the suggestions, by the verdict of the best one."""


def advice_lines(advice: Advice, loaded: LoadedJob, output: TextOutput) -> Iterator[str]:
    """Yield the suggestions with their edits, then the largest batch and sequence that fit."""
    if advice.suggestions:
        yield ""
        yield _HEADINGS[advice.suggestions[0].verdict]
        for suggestion in advice.suggestions:
            yield from _suggestion_lines(suggestion, loaded, output)
        diff = suggestion_diff(loaded, advice.suggestions[0])
        if diff:
            yield ""
            yield from (f"  {output.text(line)}" for line in diff.splitlines())
    if advice.largest is not None:
        yield ""
        yield from output.wrapped(largest_line(advice.largest, loaded.job), further="  ")


_VERDICT_WIDTH = len("! tight")


def _suggestion_lines(suggestion: Suggestion, loaded: LoadedJob, output: TextOutput) -> Iterator[str]:
    mark, peak = VERDICTS[suggestion.verdict], suggestion.budget.peak
    plain = output.text(f"{mark.letter} {mark.word.lower()}".ljust(_VERDICT_WIDTH))
    need = f"{format_gib(peak.device_bytes):>6} GiB ({format_gib(peak.low_bytes)} - {format_gib(peak.high_bytes)})"
    traced = ", traced" if suggestion.budget.method == "traced" else ""
    first, *further = output.wrapped(f"{need}{traced}: {suggestion.why}", indent=f"  {plain} ", further=6 * " ")
    yield f"  {output.paint(plain, mark.colour)}{first[2 + len(plain) :]}"
    yield from further
    between = " " if loaded.reading is None else ", "  # vramtop's own flags can be copied as they are printed
    edits = edits_text(suggestion_edits(loaded, suggestion), between)
    yield from output.wrapped(edits, indent=6 * " ")


EXIT_CODES: dict[Verdict, ExitCode] = {
    "fits": ExitCode.DONE,
    "does_not_fit": ExitCode.NO,
    "unknown": ExitCode.CANNOT_TELL,
    "tight": ExitCode.TIGHT,
}
Judge = Callable[[Budget], FitResult]


class FitCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A job with its budget, and the GPUs on which it is judged."""

    loaded: LoadedJob
    budget: Budget
    judge: Judge
    devices: tuple[DeviceCapacity, ...]
    machine: Machine
    """What the search for changes with which the job fits needs to know of the GPUs."""
    here: bool = True
    """The GPUs are those of this machine."""

    def is_open(self, *, waits: bool = False) -> bool:
        """Whether what was not read of a program could change the verdict, of today or of a job that waits."""
        verdict = "unknown" if waits else self.judge(self.budget).verdict
        return is_open(self.loaded, self.budget, verdict)


def check_here(options: argparse.Namespace, loaded: LoadedJob) -> FitCheck:
    """Estimate a job for the GPUs of this machine, and read what they have available.

    Raises:
        NoGpusError: there are none.
        InputError: what chooses the GPUs names none here, or the job is invalid.
        CannotTellError: no estimate can be made.
    """
    devices, notes = gpus_here(options.gpu, choice=loaded.devices)
    loaded = loaded.finding_gpus(count_devices(devices))
    return check_on(options, replace(loaded, notes=(*loaded.notes, *notes)), devices)


def check_on(
    options: argparse.Namespace,
    loaded: LoadedJob,
    devices: tuple[DeviceCapacity, ...],
    *,
    described: tuple[Gpu | None, int] | None = None,
    budget: Budget | None = None,
) -> FitCheck:
    """Return a job with what it is judged on.

    Args:
        options: of the command line.
        loaded: the job.
        devices: the GPUs.
        described: the type and total bytes of GPUs that the user describes; None: they are this machine's.
        budget: of the job; None: it is estimated.
    """
    gpu, memory_bytes = described or (
        next((device.gpu_type for device in devices if device.name), None),
        max((device.total_bytes for device in devices if device.total_bytes), default=None),
    )
    here = described is None
    budget = budget or estimate_job(options, loaded, gpu, memory_bytes, here=here)
    if loaded.reading is not None and loaded.reading.splits_batches:  # one process, perhaps over all GPUs
        from vramtop.estimator.uncertain_settings import widen_for_split_batches

        budget = widen_for_split_batches(budget, count_devices(devices))
    check = FitCheck(
        loaded=loaded,
        budget=budget,
        judge=judge_on(devices, options, here=here),
        devices=devices,
        machine=Machine(gpu=gpu, memory_bytes=memory_bytes, gpus=count_devices(devices)),
        here=here,
    )
    if loaded.program is None or not check.is_open(waits=options.command == "wait"):
        return check
    try:
        return _rehearsed(options, check, loaded.program)
    except CannotTellError as error:
        failed = f"The rehearsal has no result: {error.message.rstrip('.')}."
        return replace(check, loaded=replace(loaded, notes=(*loaded.notes, failed)))


def _rehearsed(options: argparse.Namespace, check: FitCheck, program: Job) -> FitCheck:
    """Return the check of the program's rehearsal, if one is kept or the user agrees to make it."""
    loaded, budget, machine = check.loaded, check.budget, check.machine
    known = what_is_known(loaded, budget, need_text(budget, len(budget.ranks)))
    found = rehearsal_of(options, program, machine.gpu, machine.memory_bytes, known=known)
    if found is None:
        return check
    budget = correction(options, program, machine.gpu, here=check.here)(found)
    kept = tuple(each for each in loaded.notes if each not in (loaded.reading.warnings if loaded.reading else ()))
    return replace(check, budget=budget, loaded=replace(loaded, job=program, notes=kept))


def report_fit(options: argparse.Namespace, check: FitCheck) -> int:
    """Print the verdict, what to change, and the budget; return the exit code."""
    budget, judge = check.budget, check.judge
    verdict = judge(budget)
    notes = (*check.loaded.notes, *_cuda_visible_devices_note(verdict))
    if budget.rehearsal is not None and verdict.verdict != "fits":
        notes = (*notes, f"No changes are suggested: {budget.job.label} {REHEARSED}.")
    offer = offer_of(options, check.loaded, budget)
    in_json = notes if offer is None else (*notes, offer)
    loaded = replace(check.loaded, job=budget.job, notes=in_json if options.json else notes)
    with Progress(quiet=options.json) as progress:
        advice = advise(
            budget,
            lambda changed: judge(changed).verdict,
            replace(check.machine, python=options.python),
            method=options.method,
            progress=progress,
            correct=correction(options, loaded.job, check.machine.gpu, here=check.here),
            change=partial(load_changed, options, loaded) if loaded.is_typed else None,
        )
    if options.json:
        print(json_text(fit_json(verdict, budget, advice, loaded)))
    else:
        output = detect_output(ascii_only=options.ascii)
        verdict_line, *further = fit_lines(verdict, budget, output)
        assumed = assumed_lines(budget, loaded, output)
        width = budget.peak.high_bytes - budget.peak.low_bytes
        decides = verdict.verdict in ("tight", "unknown") and budget.doubt_bytes > _DECISIVE_SHARE * width
        doubt = output.wrapped(budget.doubt or "", indent="  ") if decides else ()
        print("\n".join([verdict_line, *doubt, *assumed, *further, *advice_lines(advice, loaded, output)]))
        print()
        total = max((each.device.total_bytes or 0 for each in verdict.gpus), default=0)
        scale = total if total > budget.peak.device_bytes else None
        print("\n".join(budget_lines(budget, output, scale_bytes=scale)))
        print("\n".join(closing_lines(budget, loaded.notes, output, verbose=options.verbose)))
        if offer is not None:
            print("\n".join(output.wrapped(offer, further="  ")))
    return ExitCode.CANNOT_TELL if is_open(loaded, budget, verdict.verdict) else EXIT_CODES[verdict.verdict]


def _cuda_visible_devices_note(verdict: FitResult) -> tuple[str, ...]:
    """Return how to name the chosen devices to CUDA if some GPU is in MIG mode."""
    names = ",".join(verdict.cuda_devices)
    clear = not any(gpu.device.mig for gpu in verdict.gpus) or os.environ.get("CUDA_VISIBLE_DEVICES") == names
    if clear or verdict.verdict not in ("fits", "tight"):
        return ()
    return (
        f"CUDA gives a program either one MIG device or whole GPUs: start this job with CUDA_VISIBLE_DEVICES={names}.",
    )


def fit_json(verdict: FitResult, budget: Budget, advice: Advice, loaded: LoadedJob) -> dict[str, Any]:
    """Return the JSON of ``vramtop fit``."""
    return {
        "schema": 1,
        "budget": budget.to_json(),
        **verdict.to_json(),
        "sentence": verdict.sentence,
        "suggestions": [suggestion_json(each, loaded) for each in advice.suggestions],
        "largest": msgspec.to_builtins(advice.largest) if advice.largest else None,
        "cards": None,
        "notes": list(loaded.notes),
    }


def judge_on(devices: Sequence[DeviceCapacity], options: argparse.Namespace, *, here: bool) -> Judge:
    """Return a function that judges whether a budget fits these GPUs, and their host if its RAM is known.

    Args:
        devices: the GPUs.
        options: with ``--host-memory``.
        here: the GPUs are those of this machine.
    """
    host = described_host(options)
    if host is None and here:
        host = available_host_memory()

    def judge(budget: Budget) -> FitResult:
        verdict = check_fit(budget, devices)
        if host is None:
            return verdict
        most = count_devices(devices) if here else RANKS_OF_DESCRIBED_HOST
        return with_host_memory(verdict, budget, host, ranks=max(1, min(budget.job.parallel.processes, most)))

    return judge
