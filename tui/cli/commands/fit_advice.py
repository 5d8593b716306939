"""What to change so that a job fits, and how far it could grow: worked out for ``vramtop fit``, as text and JSON."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vramtop.estimator.advice.config_edits import Edit, flag_edits, tool_edits
from vramtop.estimator.advice.largest_batch import LargestFitting, find_largest
from vramtop.estimator.advice.suggestions import Suggestion, Verdict, calibrated, confirm, suggest
from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.common.untrusted_files import read_file
from vramtop.estimator.estimation import MethodChoice, estimate, quick_estimator
from vramtop.estimator.job.gpu_catalogue import Gpu
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file_edit import edit_job_file, unified_diff

from ...draw.palette import VERDICTS
from ...draw.text_output import TextOutput
from ...job.load_job import LoadedJob, job_flags

_SHOWN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to change, best first, and the largest that fits."""

    suggestions: tuple[Suggestion, ...] = ()
    largest: LargestFitting | None = None
    """None: the quick estimate has no rule for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a surer estimate has to know of the machine."""

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
) -> Advice:
    """Search with the quick estimate; where the job's own step was traced, so are the best few changes.

    Args:
        job: as it is.
        budget: its own.
        judge: whether a budget fits.
        machine: the card, and how many.
        method: as the user chose it.
        keep_global_batch: the largest micro-batch is one with which some accumulation keeps the sequences per step.
        progress: told what is going on.
    """
    try:
        quick = quick_estimator(job, gpu=machine.gpu)
    except CannotTellError:
        return Advice()
    surer = calibrated(job, budget, quick)
    grown = find_largest(
        job,
        lambda changed: judge(surer(changed)) == "fits",
        max_positions=quick.max_positions,
        keep_global_batch=keep_global_batch,
    )
    if job.served_by_vllm:
        grown = replace(grown, micro_batch=None)  # it runs as many as its cache holds
    if judge(budget) not in ("does_not_fit", "tight"):
        return Advice(largest=grown)
    found = suggest(job, budget, quick, judge, gpus=machine.gpus, most=_SHOWN)
    if budget.method == "traced" and method in ("auto", "traced"):

        def traced(changed: Job) -> Budget:
            return estimate(
                changed, method="traced", gpu=machine.gpu, memory_bytes=machine.memory_bytes, python=machine.python
            )

        found = confirm(found, traced, judge, progress=progress)
    return Advice(suggestions=found, largest=grown)


def edits_of(source: LoadedJob, suggestion: Suggestion) -> tuple[Edit, ...]:
    """The suggestion as edits of what the user wrote."""
    if source.reading is not None:
        return tool_edits(source.reading, source.job, suggestion.changes, tool=source.tool, place=source.place)
    return flag_edits(source.job, suggestion.changes, {key: flag for flag, key in job_flags().items()})


def diff_of(source: LoadedJob, suggestion: Suggestion) -> str | None:
    """The suggestion as a unified diff of the user's job file; None where there is none, or it cannot be edited."""
    if source.file is None:
        return None
    before = read_file(Path(source.file)).decode()
    after = edit_job_file(before, suggestion.changes)
    return None if after is None else unified_diff(before, after, name=str(source.file))


def advice_json(advice: Advice, source: LoadedJob) -> dict[str, Any]:
    """The contract's ``suggestions`` and ``largest``."""
    return {
        "suggestions": [_suggestion_json(s, source) for s in advice.suggestions],
        "largest": advice.largest.to_json() if advice.largest else None,
    }


def _suggestion_json(suggestion: Suggestion, source: LoadedJob) -> dict[str, Any]:
    peak, diff = suggestion.budget.peak, diff_of(source, suggestion)
    return {
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
        "edits": [edit.to_json() for edit in edits_of(source, suggestion)],
        **({"diff": diff} if diff else {}),
    }


def advice_lines(advice: Advice, source: LoadedJob, terminal: TextOutput) -> Iterator[str]:
    """Suggestions with their edits, then the largest that fits."""
    if advice.suggestions:
        yield ""
        yield _HEADINGS[advice.suggestions[0].verdict]
        for suggestion in advice.suggestions:
            yield from _suggestion_lines(suggestion, source, terminal)
        diff = diff_of(source, advice.suggestions[0])
        if diff:
            yield ""
            yield from (f"  {terminal.text(line)}" for line in diff.splitlines())
    if advice.largest is not None:
        yield ""
        yield terminal.text(_largest_words(advice.largest, source.job))


_HEADINGS: dict[Verdict, str] = {
    "fits": "what makes it fit, the cheapest first:",
    "tight": "nothing makes it fit; what makes it tight, the cheapest first:",
    "does_not_fit": "nothing makes it fit; what comes closest:",
    "unknown": "what makes it smaller:",
}


def _suggestion_lines(suggestion: Suggestion, source: LoadedJob, terminal: TextOutput) -> Iterator[str]:
    mark, peak = VERDICTS[suggestion.verdict], suggestion.budget.peak
    need = f"{format_gib(peak.device_bytes):>6} GiB ({format_gib(peak.low_bytes)} - {format_gib(peak.high_bytes)})"
    traced = ", traced" if suggestion.confirmed else ""
    verdict = terminal.paint(f"{mark.letter} {mark.word.lower()}", mark.colour)
    yield f"  {verdict}" + terminal.text(f" {need}{traced}: {suggestion.why}")
    words = ", ".join(edit.words for edit in edits_of(source, suggestion))
    yield from terminal.wrapped(words, indent=6 * " ")


def _largest_words(grown: LargestFitting, job: Job) -> str:
    training = job.training
    limit = ", the model's limit" if grown.at_model_limit else ""
    length = f"{grown.sequence_length:,} tokens{limit}" if grown.sequence_length else "not even 64 tokens"
    words = f"sequences of {length} (now {training.sequence_length:,})"
    if not job.served_by_vllm:
        batch = f"micro-batch {grown.micro_batch}" if grown.micro_batch else "not even micro-batch 1"
        words = f"{batch} (now {training.micro_batch}); {words}"
    return f"largest that fits, all else as it is: {words}"
