"""The advice of ``vramtop fit``: changes with which a job fits, and the largest batch and sequence that fit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.advice import (
    BoundedSearch,
    Edit,
    LargestFitting,
    Suggestion,
    Verdict,
    calibrated,
    confirm,
    find_largest,
    flag_edits,
    suggest,
    tool_edits,
)
from vramtop.estimator.budget import Budget
from vramtop.estimator.common import CannotTellError, format_gib, read_file
from vramtop.estimator.estimation import MethodChoice, estimate, quick_estimator
from vramtop.estimator.job import Gpu, Job, edit_job_file, unified_diff
from vramtop.estimator.learning import uncorrected
from vramtop.estimator.learning.carried import carried

from ...draw import VERDICTS, TextOutput
from ...job import LoadedJob
from ...job.flags import flags_by_key

if TYPE_CHECKING:
    from ..json_types import SuggestionJson

_MAX_SUGGESTIONS = 6
_VERDICT_WIDTH = len("! tight")
_HEADINGS: dict[Verdict, str] = {
    "fits": "ways to make it fit, least costly first:",
    "tight": "nothing makes it fit; ways to make it tight, least costly first:",
    "does_not_fit": "nothing makes it fit; what comes closest:",
    "unknown": "ways to make it smaller:",
}
"""Heading of the suggestions, by the verdict of the best one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Suggested changes, and the largest batch and sequence."""

    suggestions: tuple[Suggestion, ...] = ()
    """The best first; empty for a job that fits."""
    largest: LargestFitting | None = None
    """The largest batch and sequence that fit; None: the closed form does not know the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that estimates are made for."""

    gpu: Gpu | None
    memory_bytes: int | None
    gpus: int
    python: str | None = None


def advise(
    job: Job,
    budget: Budget,
    judge: Callable[[Budget], Verdict],
    machine: Machine,
    *,
    method: MethodChoice,
    keep_global_batch: bool = False,
    progress: Callable[[str], None] | None = None,
    correct: Callable[[Budget], Budget] = lambda budget: budget,
    change: Callable[[Mapping[str, Any]], Job] | None = None,
) -> Advice:
    """Search for changes with the closed form; those that are shown are estimated as the job itself was.

    Args:
        job: as it is.
        budget: of the job.
        judge: whether a budget fits.
        machine: the GPUs to fit on.
        method: as the user chose it.
        keep_global_batch: the largest micro-batch must allow some accumulation that keeps the sequences per step.
        progress: called with what is being done.
        correct: corrects a budget by measured runs; what is suggested is corrected by what was measured near it.
        change: returns the job with new values by key, as it is where they are pasted.
    """
    try:
        quick = quick_estimator(job, gpu=machine.gpu)
    except CannotTellError:
        return Advice()
    scaled = calibrated(job, uncorrected(budget), quick)
    if budget.learned is None:  # nothing was measured near it
        own = scaled
    else:

        def own(changed: Job) -> Budget:
            return correct(scaled(changed))

    # what a correction makes of the least that may be reserved is no lower bound
    bounded = BoundedSearch(scaled, judge) if budget.learned is None else None
    grown = find_largest(
        job,
        bounded or (lambda changed: judge(own(changed)) == "fits"),
        max_positions=quick.max_positions,
        keep_global_batch=keep_global_batch,
    )
    if job.is_served:
        grown = replace(grown, micro_batch=None)  # vLLM runs as many sequences as its cache holds
    if judge(budget) not in ("does_not_fit", "tight"):
        return Advice(largest=grown)
    searched = quick if budget.learned is None else lambda changed: carried(scaled(changed), budget)
    found = suggest(
        job, budget, searched, judge, gpus=machine.gpus, gpu=machine.gpu, most=_MAX_SUGGESTIONS, change=change
    )

    def as_pasted(changed: Job) -> Budget:
        found = estimate(
            changed, method=method, gpu=machine.gpu, memory_bytes=machine.memory_bytes, python=machine.python
        )
        return correct(found)

    return Advice(suggestions=confirm(found, as_pasted, judge, progress=progress), largest=grown)


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


def suggestions_json(advice: Advice, loaded: LoadedJob) -> "list[SuggestionJson]":
    """Return the JSON key ``suggestions``."""
    return [_suggestion_json(suggestion, loaded) for suggestion in advice.suggestions]


def _suggestion_json(suggestion: Suggestion, loaded: LoadedJob) -> "SuggestionJson":
    peak, diff = suggestion.budget.peak, suggestion_diff(loaded, suggestion)
    found: SuggestionJson = {
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
        "edits": [edit.to_json() for edit in suggestion_edits(loaded, suggestion)],
    }
    if diff:
        found["diff"] = diff
    return found


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
        yield from output.wrapped(_largest_line(advice.largest, loaded.job), further="  ")


def _suggestion_lines(suggestion: Suggestion, loaded: LoadedJob, output: TextOutput) -> Iterator[str]:
    mark, peak = VERDICTS[suggestion.verdict], suggestion.budget.peak
    plain = output.text(f"{mark.letter} {mark.word.lower()}".ljust(_VERDICT_WIDTH))
    need = f"{format_gib(peak.device_bytes):>6} GiB ({format_gib(peak.low_bytes)} - {format_gib(peak.high_bytes)})"
    traced = ", traced" if suggestion.budget.method == "traced" else ""
    first, *further = output.wrapped(f"{need}{traced}: {suggestion.why}", indent=f"  {plain} ", further=6 * " ")
    yield f"  {output.paint(plain, mark.colour)}{first[2 + len(plain) :]}"
    yield from further
    between = " " if loaded.reading is None else ", "  # vramtop's own flags can be copied as they are printed
    edits = between.join(edit.words for edit in suggestion_edits(loaded, suggestion))
    yield from output.wrapped(edits, indent=6 * " ")


def _largest_line(grown: LargestFitting, job: Job) -> str:
    training = job.training
    limit = ", the model's limit" if grown.at_model_limit else ""
    length = f"sequence length {grown.sequence_length:,}{limit}" if grown.sequence_length else "no sequence length fits"
    text = f"{length} (now {training.sequence_length:,})"
    if not job.is_served:
        batch = f"micro-batch {grown.micro_batch}" if grown.micro_batch else "no micro-batch fits"
        text = f"{batch} (now {training.micro_batch}); {text}"
    return f"largest that fits, all else unchanged: {text}"
