"""Compare predicted with measured memory for every row of the accuracy table, and with other estimators.

Run by ``make accuracy``. ``--method`` selects the method of estimation (``auto``: the most accurate available),
``--file NAME`` one source. Results of ``measure.py`` on a machine with a GPU are read from ``measured/``.
"""

import argparse
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accuracy_cases import Case, read_cases, read_left_out, read_measured
from peers import PEERS

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.common.errors import VramtopError
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import MethodChoice, estimate
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.read_architecture import read_architecture

METHODS: tuple[MethodChoice, ...] = ("formula", "exact", "traced", "auto")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The prediction for one row."""

    case: Case
    method: str
    """Method of the budget; with ``auto`` it may differ between rows."""
    predicted_bytes: int
    in_range: bool | None
    """True if the measured figure lies in the predicted range; None for components, which have none."""
    peers: dict[str, int | None]

    @property
    def error(self) -> float:
        """Relative error: 0.1 is 10 % too high."""
        return self.predicted_bytes / self.case.measured_bytes - 1


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
    share_in_range: float | None
    """Share of rows whose measured figure lies in the range; None if no row has a range."""


def replay(case: Case, method: MethodChoice = "formula") -> Result:
    """Predict one row.

    Raises:
        VramtopError: the method is not available, or the job is invalid.
    """
    budget = estimate(case.job, method=method)
    span = case.range_bytes(budget)
    return Result(
        case=case,
        method=budget.method,
        predicted_bytes=case.predicted_bytes(budget),
        in_range=None if span is None else span[0] <= case.measured_bytes <= span[1],
        peers=_peer_predictions(case, budget) if case.figure != "component" else {},
    )


def summarize(results: Sequence[Result]) -> AccuracySummary:
    """Return the accuracy over one or more rows."""
    errors = [result.error for result in results]
    spans = [result.in_range for result in results if result.in_range is not None]
    return AccuracySummary(
        rows=len(errors),
        median_error=statistics.median(abs(error) for error in errors),
        share_under=sum(error < -0.05 for error in errors) / len(errors),
        share_off=sum(abs(error) > 0.1 for error in errors) / len(errors),
        share_in_range=sum(spans) / len(spans) if spans else None,
    )


def group_results(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Return the rows grouped by measured quantity, method, source file and mechanism."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.case.figure, []).append(result)
        found.setdefault(f"method {result.method}", []).append(result)
        found.setdefault(f"file {result.case.file}", []).append(result)
        found.setdefault(f"mechanism {result.case.mechanism}", []).append(result)
        if result.case.figure != "component":
            found.setdefault("all but components", []).append(result)
    return dict(sorted(found.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code is always 0, since test_accuracy.py checks the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", choices=METHODS, default="formula")
    parser.add_argument("--file", help="use only this file of cases, without .toml")
    options = parser.parse_args(arguments)
    results, failed = [], []
    for case in (*read_cases(), *read_measured()):
        if options.file in (None, case.file):
            try:
                results.append(replay(case, options.method))
            except VramtopError as error:
                failed.append(f"{case.id}: {error}")
    _print_rows(results)
    if results:
        _print_summaries(results)
        _print_peers(results)
    for line in failed:
        print(f"not predicted: {line}")
    print(f"\nleft out: {sum(len(entry.ids) for entry in read_left_out())} rows, with reasons, see cases/*.toml")
    return 0


def _peer_predictions(case: Case, budget: Budget) -> dict[str, int | None]:
    job = budget.job
    model = resolve_model(job.model)
    arch = read_architecture(model.config, job.model.task, where=model.where)
    inventory = count_parameters(arch)
    return {name: peer(job, arch, inventory) for name, peer in PEERS.items()}


def _print_rows(results: Sequence[Result]) -> None:
    names = "".join(f"{name:>11}" for name in PEERS)
    print(f"{'row':7}{'source':17}{'figure':24}{'measured':>9}{'predicted':>10}{'error':>8}  range{names}")
    for result in results:
        case = result.case
        figure = case.figure if case.part is None else f"{case.part} alone"
        inside = {True: "in", False: "out", None: "-"}[result.in_range]
        peers = "".join(f"{_gib(result.peers.get(name)):>11}" for name in PEERS)
        print(
            f"{case.id:7}{case.file:17}{figure:24}{_gib(case.measured_bytes):>9}{_gib(result.predicted_bytes):>10}"
            f"{result.error:>+8.1%}  {inside:5}{peers}"
        )
    for result in results:
        if abs(result.error) > 0.1:
            print(f"{result.case.id} {result.error:+.0%}: {result.case.explained or 'NOT EXPLAINED'}")


def _print_summaries(results: Sequence[Result]) -> None:
    print(f"\n{'':38}{'rows':>6}{'median |error|':>16}{'under by > 5 %':>16}{'off by > 10 %':>15}{'in range':>10}")
    for name, members in group_results(results).items():
        summary = summarize(members)
        inside = "-" if summary.share_in_range is None else f"{summary.share_in_range:.0%}"
        print(
            f"{name:38}{summary.rows:>6}{summary.median_error:>16.1%}{summary.share_under:>16.0%}{summary.share_off:>15.0%}{inside:>10}"
        )


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
