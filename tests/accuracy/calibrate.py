"""Derive the calibration of ranges from the accuracy table (``python tests/accuracy/calibrate.py``).

A range rests on shares by which the bytes in doubt may be wrong (``estimator/formula/calibration``). For a row, the
share that a source of doubt needs is the one with which the measured figure lies just within the range, the other
shares being known: steps first, from allocated bytes; then the allocator, from reserved bytes and the device's. The
share of a source of doubt is the quantile of what its rows need. Every repository that published figures counts alike,
however many, since its rows share their errors. The share of the CUDA context follows from the contexts that were
observed; that of NCCL's buffers is a judgment (``NCCL_SHARE`` in calibration.py).
"""

import argparse
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import sqrt
from typing import TypeVar

from accuracy_cases import Figure
from predictions import Result, predict_all

from vramtop.estimator.budget import Phase, Span
from vramtop.estimator.common.records import replace
from vramtop.estimator.formula.calibration import COUNT_SHARE, FORMULA, SMALL_BYTES, TRACED, Calibration
from vramtop.estimator.formula.doubts import Doubts, doubts_of, longest_first_doubt
from vramtop.estimator.formula.ranges import DoubtfulBytes, allocated_span, figure_ranges
from vramtop.estimator.job.resolved_job import resolve_job

LEVEL = 0.9
"""Share of the figures that ranges should hold."""
_BARE_CONTEXTS = (("a100-80gb", 481, 480), ("rtx-5090", 635, 640), ("not stated", 274, 480))
"""CUDA contexts before any kernel is loaded, in MiB, where kernels are loaded lazily: observed, and the catalogue's.

Sources: stas00/ml-engineering (torch 2.1), pjordanandrsn/loggetta (torch 2.8 to 2.14), pytorch/pytorch#86509 (CUDA
11.7, whose card is not stated; an A100's is expected of it).
"""
PRIOR = Calibration(
    step={"checked": 0.05, "adapters": 0.15, "framework": 0.1, "compiled": 0.2, "shape": 0.4, "recurrent": 3.0},
    allocator={"plain": 0.5, "fsdp2": 0.5, "fsdp1": 0.5, "other": 0.7},
    context=0.0,  # ``context_share``
    nccl=FORMULA.nccl,
)
"""No share is smaller: rows of a few repositories say little about another one's.

These are judgments. The closed form and traces differ on 26 jobs of usual kinds, of which no figure is published, nine
times in ten by less than 5 % of the bytes of a checked step, 7 % with adapters, and by 38 % of what the allocator keeps
on one stream, 33 % under FSDP1, 23 % under FSDP2, 18 % under ZeRO. That is after what the comparison found was
repaired, and both methods may be wrong in the same way, so the shares are larger. Families without rules: 20 decoders
differ from their shape's step by 37 % at most.
"""
TRACED_PRIOR = replace(
    PRIOR,
    step={**PRIOR.step, "shape": 0.05, "recurrent": 0.7},
    allocator={**PRIOR.allocator, "fsdp2": 0.6, "fsdp1": 0.6},
)
"""Likewise for traces, which run the code of any family, but recurrent blocks without their fused kernels, and today's
FSDP for any version of it."""
_NOT_PUBLISHED = {"shape", "recurrent"}
"""Sources of doubt that no published figure is about: rows of others say nothing of them."""
_Doubt = TypeVar("_Doubt", bound=Hashable)


def derive(results: Sequence[Result]) -> Calibration:
    """Return the calibration that rows yield, all of them traced or none."""
    prior = TRACED_PRIOR if any(result.budget.method == "traced" for result in results) else PRIOR
    prior = replace(prior, context=context_share())
    step = _shares(_of(results, "allocated"), prior.step, lambda r: _doubts(r).step, _needed_step)
    found = replace(prior, step=step)
    kept = _of(results, "reserved", "device")
    doubt = lambda r: _doubts(r).allocator  # noqa: E731
    return replace(found, allocator=_shares(kept, prior.allocator, doubt, lambda r: _needed_kept(r, found)))


def context_share() -> float:
    """Return the share by which the CUDA context may be wrong, from the contexts that were observed."""
    return round(quantile([(card, abs(seen - expected) / expected) for card, seen, expected in _BARE_CONTEXTS]), 3)


def leave_one_out(results: Sequence[Result]) -> dict[str, Span | None]:
    """Return the range of each row, by id, from a calibration without any figure of its repository."""
    spans: dict[str, Span | None] = {}
    for repository in sorted({result.case.repository for result in results}):
        calibration = derive([result for result in results if result.case.repository != repository])
        own = (result for result in results if result.case.repository == repository)
        spans |= {result.case.id: span_with(result, calibration) for result in own}
    return spans


def span_with(result: Result, calibration: Calibration) -> Span | None:
    """Return the range of the row's figure with another calibration: the stated one, moved by the difference."""
    before, after = (_span(result, each) for each in (_known(result), calibration))
    if result.span is None or before is None or after is None:
        return None
    return Span(
        max(0, result.span.low_bytes + after.low_bytes - before.low_bytes),
        result.span.high_bytes + after.high_bytes - before.high_bytes,
    )


def quantile(values: Iterable[tuple[Hashable, float]], level: float = LEVEL) -> float:
    """Return the quantile of values whose sources weigh alike, corrected for their number.

    With ``n`` values, a further one exceeds their ``level`` (n + 1) / n quantile as often as asked for (split conformal
    prediction); where they are too few to have that quantile, the largest is raised in the same proportion.
    """
    ordered = sorted(((value, source) for source, value in values), key=lambda each: each[0])
    sources = [source for _, source in ordered]
    wanted = level * (len(ordered) + 1) / len(ordered)
    weight = {source: 1 / sources.count(source) for source in set(sources)}
    total, reached = sum(weight[source] for source in sources), 0.0
    for value, source in ordered:
        reached += weight[source] / total
        if reached >= wanted - 1e-9:
            return value
    return ordered[-1][0] * max(1.0, wanted)


def _of(results: Iterable[Result], *figures: Figure) -> list[Result]:
    return [result for result in results if result.case.figure in figures]


def _known(result: Result) -> Calibration:
    return TRACED if result.budget.method == "traced" else FORMULA


def _doubts(result: Result) -> Doubts:
    return doubts_of(resolve_job(result.case.job))


def _bytes(result: Result) -> DoubtfulBytes:
    peak = result.budget.peak
    outside = peak.device_bytes - peak.reserved_bytes
    return DoubtfulBytes.of(
        peak.components, allocated=peak.allocated_bytes, reserved=peak.reserved_bytes, outside=outside
    )


def _span(result: Result, calibration: Calibration) -> Span | None:
    """Return the range of the row's figure as far as the calibration goes."""
    peak, figure = result.budget.peak, result.case.figure
    if figure == "component":
        return None
    ranges = figure_ranges(
        _bytes(result),
        _doubts(result),
        calibration,
        allocated=peak.allocated_bytes,
        reserved=peak.reserved_bytes,
        device=peak.device_bytes,
        others=[_phase_span(result, phase, calibration) for phase in result.budget.phases if phase.name != peak.phase],
    )
    return {"allocated": ranges.allocated, "reserved": ranges.reserved, "device": ranges.device}[figure]


def _phase_span(result: Result, phase: Phase, calibration: Calibration) -> Span:
    allocated = phase.allocated_bytes
    found = DoubtfulBytes.of(phase.components, allocated=allocated, reserved=allocated, outside=phase.outside_bytes)
    return allocated_span(found, _doubts(result), calibration, allocated=allocated)


def _shares(
    results: Sequence[Result],
    prior: dict[_Doubt, float],
    doubt: Callable[[Result], _Doubt],
    needed: Callable[[Result], float],
) -> dict[_Doubt, float]:
    """Return the share of each source of doubt, at least the prior one; without rows of its own, that of all rows."""
    pairs = [(doubt(result), result.case.repository, needed(result)) for result in results if result.case.calibrates]
    found = {}
    for name, least in prior.items():
        own = [(source, value) for each, source, value in pairs if each == name]
        own = own or [(source, value) for _, source, value in pairs if name not in _NOT_PUBLISHED]
        found[name] = round(max(least, quantile(own) if own else 0.0), 3)
    return found


def _needed_step(result: Result) -> float:
    """Return the needed share of a step's bytes."""
    found = _bytes(result)
    less = longest_first_doubt(resolve_job(result.case.job), result.budget.peak.components)
    error = max(0, result.error_bytes - less) if result.error_bytes > 0 else result.error_bytes
    rest = SMALL_BYTES**2 + (COUNT_SHARE * found.states) ** 2
    return sqrt(max(0.0, error**2 - rest)) / max(1, found.step)


def _needed_kept(result: Result, calibration: Calibration) -> float:
    """Return the needed share of what the allocator keeps, with the other shares of a calibration."""
    span = _span(result, replace(calibration, allocator=dict.fromkeys(calibration.allocator, 0.0)))
    rest = ((span.high_bytes - span.low_bytes) / 2) ** 2 if span else 0.0
    return sqrt(max(0.0, result.error_bytes**2 - rest)) / max(1, _bytes(result).allocator)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the calibrations as they belong into ``calibration.py``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=("formula", "traced"), default="formula")
    options = parser.parse_args(arguments)
    results, _ = predict_all("auto" if options.method == "traced" else "formula")
    print(derive([result for result in results if (result.budget.method == "traced") == (options.method == "traced")]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
