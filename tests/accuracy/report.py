"""Compare predicted with measured memory for every row of the accuracy table, and with other estimators.

Run by ``make accuracy``. ``--method`` selects the method of estimation (``auto``: the most accurate available),
``--file NAME`` one source. Ranges are judged twice: as they are, and from a calibration without any figure of the
repository that a row comes from. What ``make gpu`` has measured is read from ``gpu/``.
"""

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from accuracy_cases import read_left_out
from calibrate import leave_one_out
from peers import PEERS
from predictions import Result, predict_all

from vramtop.estimator.budget import Span
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import MethodChoice

Spans = Mapping[str, Span | None]
"""Ranges by the id of their row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracySummary:
    """Accuracy over several rows."""

    rows: int
    median_error: float
    """Median absolute value of the relative error."""
    share_under: float
    """Share of rows predicted more than 5 % too low."""
    share_off: float
    """Share of rows whose prediction is off by more than 10 %."""
    coverage: "Coverage | None"
    """How often ranges hold the measured figure; None if no row has a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often ranges hold the measured figure, and how wide they are."""

    share: float
    """Share of rows whose measured figure lies in its range."""
    width: float
    """Median of upper less lower end, relative to the predicted figure."""


def summarize(results: Sequence[Result]) -> AccuracySummary:
    """Return the accuracy over one or more rows."""
    errors = [result.error for result in results]
    return AccuracySummary(
        rows=len(errors),
        median_error=statistics.median(abs(error) for error in errors),
        share_under=sum(error < -0.05 for error in errors) / len(errors),
        share_off=sum(abs(error) > 0.1 for error in errors) / len(errors),
        coverage=coverage(results, {result.case.id: result.span for result in results}),
    )


def coverage(results: Iterable[Result], spans: Spans) -> Coverage | None:
    """Return how often the given ranges hold the measured figures of the rows; None if no row has one."""
    pairs = [(result, span) for result in results if (span := spans[result.case.id]) is not None]
    if not pairs:
        return None
    return Coverage(
        share=sum(result.case.measured_bytes in span for result, span in pairs) / len(pairs),
        width=statistics.median((span.high_bytes - span.low_bytes) / result.predicted_bytes for result, span in pairs),
    )


def group_results(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Return the rows grouped by measured quantity, method, source file and mechanism."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.case.figure, []).append(result)
        found.setdefault(f"method {result.budget.method}", []).append(result)
        found.setdefault(f"file {result.case.file}", []).append(result)
        found.setdefault(f"mechanism {result.case.mechanism}", []).append(result)
        if result.case.figure != "component":
            found.setdefault("all but components", []).append(result)
            if result.budget.method == "traced":
                found.setdefault(f"{result.case.figure}, traced", []).append(result)
            else:
                found.setdefault(f"{result.case.figure}, closed form", []).append(result)
    return dict(sorted(found.items()))


def left_out_spans(results: Sequence[Result]) -> Spans:
    """Return the range of each row from a calibration without its repository, traced rows and others on their own."""
    traced = [result for result in results if result.budget.method == "traced"]
    others = [result for result in results if result.budget.method != "traced"]
    return {**leave_one_out(traced), **leave_one_out(others)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is always 0, since test_accuracy.py checks the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=get_args(MethodChoice), default="formula")
    parser.add_argument("--file", help="use only this file of cases, without .toml")
    options = parser.parse_args(arguments)
    results, failed = predict_all(options.method, file=options.file, own=True)
    _print_rows(results)
    if results:
        _print_summaries(results)
        _print_peers(results)
    for line in failed:
        print(f"not predicted: {line}")
    print(f"\nleft out: {sum(len(entry.ids) for entry in read_left_out())} rows, with reasons, see cases/*.toml")
    return 0


def _print_rows(results: Sequence[Result]) -> None:
    names = "".join(f"{name:>11}" for name in PEERS)
    print(
        f"{'row':7}{'source':17}{'figure':24}{'method':9}{'measured':>9}{'predicted':>10}{'error':>8}"
        f"{'range':>17}     {names}"
    )
    for result in results:
        case, span = result.case, result.span
        figure = case.figure if case.part is None else f"{case.part} alone"
        bounds = f"{_gib(span.low_bytes)} - {_gib(span.high_bytes)}" if span else "-"
        inside = "" if span is None else "in" if case.measured_bytes in span else "out"
        peers = "".join(f"{_gib(result.peers.get(name)):>11}" for name in PEERS)
        print(
            f"{case.id:7}{case.file:17}{figure:24}{result.budget.method:9}{_gib(case.measured_bytes):>9}"
            f"{_gib(result.predicted_bytes):>10}{result.error:>+8.1%}{bounds:>17} {inside:4}{peers}"
        )
    for result in results:
        if abs(result.error) > 0.1:
            print(f"{result.case.id} {result.error:+.0%}: {result.case.explained or 'NOT EXPLAINED'}")


def _print_summaries(results: Sequence[Result]) -> None:
    left_out = left_out_spans(results)
    print(
        f"\n{'':38}{'rows':>6}{'median |error|':>16}{'under by > 5 %':>16}{'off by > 10 %':>15}{'in range':>10}"
        f"{'width':>8}{'left out: in range':>20}{'width':>8}"
    )
    for name, members in group_results(results).items():
        summary = summarize(members)
        print(
            f"{name:38}{summary.rows:>6}{summary.median_error:>16.1%}{summary.share_under:>16.0%}"
            f"{summary.share_off:>15.0%}{_coverage(summary.coverage, 10)}{_coverage(coverage(members, left_out), 20)}"
        )


def _coverage(found: Coverage | None, width: int) -> str:
    return f"{'-':>{width}}{'-':>8}" if found is None else f"{found.share:>{width}.0%}{found.width:>8.1%}"


def _print_peers(results: Sequence[Result]) -> None:
    print(
        f"\n{'on the same rows':22}{'rows':>6}{'median |error|':>16}{'vramtop':>9}{'under by > 5 %':>16}{'vramtop':>9}"
    )
    for name in PEERS:
        rows = [(r, predicted) for r in results if (predicted := r.peers.get(name)) is not None]
        if not rows:
            continue
        errors = [predicted / r.case.measured_bytes - 1 for r, predicted in rows]
        ours = summarize([r for r, _ in rows])
        theirs = statistics.median(abs(error) for error in errors)
        under = sum(error < -0.05 for error in errors) / len(errors)
        print(f"{name:22}{len(rows):>6}{theirs:>16.1%}{ours.median_error:>9.1%}{under:>16.0%}{ours.share_under:>9.0%}")


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{size / GIB:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
