"""The words for a correction: where, how often and when the job or one near it was measured, and what follows."""

import time
from collections.abc import Sequence

from ..budget import Peak
from ..common import format_gib
from .evidence import Evidence
from .kinship import OUTSIDE, differences, kinship
from .subject import Subject

_NAMES = {
    "model.shape": "another model of its family",
    "training.micro_batch": "micro-batch {}",
    "training.sequence_length": "sequence length {}",
    "training.gradient_accumulation": "gradient accumulation {}",
    "training.optimizer": "optimizer {}",
    "lora.rank": "LoRA rank {}",
    "lora.targets": "other LoRA targets",
    "parallel.data_shard": "{} shards",
    "parallel.data_replicate": "{} replicas",
}
_MOST_NAMED = 3


def correction_words(evidence: Sequence[Evidence], subject: Subject, peak: Peak, before: Peak) -> str:
    """Return the sentence that goes with a corrected figure.

    Args:
        evidence: what it rests on, the nearest first.
        subject: what is estimated.
        peak: the corrected peak.
        before: the uncorrected peak.
    """
    first = evidence[0]
    figure = f"{format_gib(peak.device_bytes)} ({format_gib(peak.low_bytes)} to {format_gib(peak.high_bytes)})"
    rest = f"; uncorrected {format_gib(before.device_bytes)}"
    seen, expected = (
        _seen(first),
        "expected" if first.runs[0].observed.device_bytes is not None else "expected on the GPU",
    )
    others = len(evidence) - 1
    also = f", and {others} other {'job' if others == 1 else 'jobs'}" if others else ""
    if first.same:
        return f"{_times(first, subject)}: {seen}{also}; {expected} {figure}{rest}"
    shares = kinship(first.subject, subject)
    said = {name for error in first.errors for name in error.mechanisms if shares[name] > 0}
    if said and said.issubset(OUTSIDE):
        return f"a job on this card was {_times(first, subject)}{also}: its CUDA context counts here; {figure}{rest}"
    if not others and len(first.runs) == 1 and _width(peak) > _width(before):
        rest += "; a wider range, from one run"
    return f"{_times(first, subject)}: {seen} {_at(first, subject)}{also}; this job scaled from it: {figure}{rest}"


def _width(peak: Peak) -> int:
    return peak.high_bytes - peak.low_bytes


def _times(evidence: Evidence, subject: Subject) -> str:
    here = (
        "here" if evidence.subject.machine and evidence.subject.machine == subject.machine else "on this kind of card"
    )
    count, day = len(evidence.runs), time.strftime("%Y-%m-%d", time.localtime(evidence.time))
    if count == 1:
        return f"measured {here} once, on {day}"
    return f"measured {here} {count} times, last on {day}"


def _seen(evidence: Evidence) -> str:
    """Return the highest figure of the newest run."""
    observed = evidence.runs[0].observed
    for size, name in (
        (observed.device_bytes, ""),
        (observed.reserved_bytes, " reserved"),
        (observed.allocated_bytes, " allocated"),
    ):
        if size is not None:
            return f"{format_gib(size)} GiB{name}"
    return "n/a"


def _at(evidence: Evidence, subject: Subject) -> str:
    """Return in what the measured job differs."""
    changes = differences(evidence.subject, subject)
    named = [_NAMES[name].format(value) for name, value in changes.items() if name in _NAMES and value is not None]
    if not named:
        return "with other settings" if changes else "by the same settings"
    return (
        f"at {', '.join(named[:_MOST_NAMED])}"
        if not named[0].startswith("another")
        else f"by {', '.join(named[:_MOST_NAMED])}"
    )
