"""Corrections over the published rows: each is estimated as if the other jobs of its source had been measured here.

``python tests/accuracy/learning.py`` prints the errors and the coverage before and after.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from accuracy_cases import Case
from predictions import Result, predict_all

from vramtop.estimator.job.job_file.changes import job_to_mapping
from vramtop.estimator.learning.correction import corrected
from vramtop.estimator.learning.measurement import Measurement, Observed, Predicted, PrivateJob, digest, private_job
from vramtop.estimator.learning.offsets import Subject
from vramtop.estimator.model.find_config import resolve_model

NOW = 1_800_000_000.0
_DAY = 86_400.0
_FIGURES = ("allocated", "reserved", "device")


@dataclass(frozen=True, slots=True)
class CorrectedRow:
    """A row with and without what the other jobs of its source say."""

    before: Result
    after: Result

    @property
    def was_corrected(self) -> bool:
        """True if some other job was near it."""
        return self.after.budget.learned is not None

    @property
    def held(self) -> tuple[bool, bool]:
        """Whether the range held the figure, before and after."""
        return _holds(self.before), _holds(self.after)


def correct_by_other_rows(results: Sequence[Result]) -> tuple[CorrectedRow, ...]:
    """Return each row corrected by the jobs of its source other than its own; components are left out."""
    rows = [result for result in results if result.case.figure in _FIGURES]
    facts = {result.case.id: _facts(result.case) for result in rows}
    by_job: dict[tuple[str, str], list[Result]] = {}
    for result in rows:
        by_job.setdefault((result.case.repository, _key(result.case)), []).append(result)
    found = []
    for result in rows:
        others = [
            _measurement(each, facts[each[0].case.id])
            for (source, key), each in by_job.items()
            if source == result.case.repository and key != _key(result.case)
        ]
        budget = corrected(result.budget, _subject(result, facts[result.case.id]), others, version="1")
        found.append(CorrectedRow(result, Result(case=result.case, budget=budget)))
    return tuple(found)


def _key(case: Case) -> str:
    return repr((job_to_mapping(case.job), case.card))


def _facts(case: Case) -> PrivateJob:
    return private_job(case.job, resolve_model(case.job.model).config)


def _subject(result: Result, facts: PrivateJob) -> Subject:
    return Subject.of_job(facts, card=result.case.card or "h100-80gb", machine=digest(result.case.repository))


def _measurement(results: Sequence[Result], facts: PrivateJob) -> Measurement:
    """Return one job of a source as if it had been measured."""
    seen = {f"{result.case.figure}_bytes": result.case.measured_bytes - result.case.waiting_bytes for result in results}
    subject = _subject(results[0], facts)
    return Measurement(
        run=results[0].case.id,
        job=facts.job,
        model=facts.model,
        shape=facts.shape,
        hidden=facts.hidden,
        predicted=(Predicted.of(results[0].budget, "1"),),
        observed=Observed(
            **seen, allocator_source="probe", device_source="readings" if "device_bytes" in seen else None
        ),
        state="ended",
        card=subject.card,
        machine=subject.machine,
        versions=subject.versions,
        time=NOW - _DAY,
    )


def _holds(result: Result) -> bool:
    span = result.span
    return span is None or span.low_bytes <= result.case.measured_bytes <= span.high_bytes


def main() -> None:
    """Print errors and coverage, by figure and over all."""
    results, _ = predict_all("formula")
    found = [row for row in correct_by_other_rows(results) if row.was_corrected]
    for name in (*_FIGURES, "all"):
        rows = [row for row in found if name in ("all", row.before.case.figure)]
        if not rows:
            continue
        before, after = (
            [abs(each.error) for each in side] for side in zip(*((r.before, r.after) for r in rows), strict=True)
        )
        held = [fmean(each) for each in zip(*(row.held for row in rows), strict=True)]
        worse = max(b - a for a, b in zip(before, after, strict=True))
        print(
            f"{name:>10}: {len(rows):4} rows, mean error {fmean(before):.1%} -> {fmean(after):.1%}, "
            f"median {median(before):.1%} -> {median(after):.1%}, in range {held[0]:.0%} -> {held[1]:.0%}, "
            f"largest change for the worse {worse:.1%}"
        )
        width = fmean(_width(row.after) / max(1, _width(row.before)) for row in rows)
        print(f"{'':>10}  range {width:.2f} times as wide")


def _width(result: Result) -> int:
    span = result.span
    return span.high_bytes - span.low_bytes if span else 0


if __name__ == "__main__":
    main()
