"""Ranges are calibrated by the accuracy table as it is, and hold what they claim on rows that had no part in it."""

from collections.abc import Sequence

import msgspec
import pytest
from calibrate import context_share, derive, leave_one_out
from predictions import Result, predict_all
from report import coverage

from vramtop.estimator.common.records import replace
from vramtop.estimator.formula.calibration import FORMULA, TRACED, Calibration

COVERAGE = [("allocated", 0.9, 0.17), ("reserved", 0.9, 0.35), ("device", 0.89, 0.3)]
"""Smallest share of left-out rows in range, and largest median width of their ranges, by figure."""


def moved(result: Result, by: float) -> Result:
    """Return the result as if something else had been measured."""
    measured = round(result.predicted_bytes * by)
    return replace(result, case=msgspec.structs.replace(result.case, measured_bytes=measured))


def test_a_row_has_no_part_in_its_range_when_its_repository_is_left_out(results: Sequence[Result]) -> None:
    before = leave_one_out(results)
    wrong = [moved(each, 3.0) if each.case.file == "megatron" else each for each in results]
    after = leave_one_out(wrong)
    for result in results:
        if result.case.file == "megatron":
            assert after[result.case.id] == before[result.case.id], result.case.id
    assert any(after[result.case.id] != before[result.case.id] for result in results)


def close(one: Calibration, other: Calibration) -> bool:
    """Return True if calibrations agree within rounding, and within what a single row may move them."""
    pairs = [
        (share, getattr(other, part)[doubt])
        for part in ("step", "allocator")
        for doubt, share in getattr(one, part).items()
    ]
    return all(left == pytest.approx(right, rel=0.1, abs=0.03) for left, right in pairs)


def test_the_closed_forms_calibration_is_what_the_table_yields(results: Sequence[Result]) -> None:
    """If it fails: ``python tests/accuracy/calibrate.py`` prints what belongs into ``calibration.py``."""
    assert close(FORMULA, derive(results))


def test_the_contexts_share_is_that_of_the_contexts_that_were_observed() -> None:
    assert pytest.approx(context_share(), abs=0.001) == FORMULA.context
    assert TRACED.context == FORMULA.context


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_calibration_of_traces_allows_for_what_the_table_yields() -> None:
    """It may allow for more: which rows are traced depends on the libraries at hand."""
    found = derive([result for result in predict_all("auto")[0] if result.budget.method == "traced"])
    most = replace(
        found,
        step={doubt: max(share, TRACED.step[doubt]) for doubt, share in found.step.items()},
        allocator={doubt: max(share, TRACED.allocator[doubt]) for doubt, share in found.allocator.items()},
    )
    assert close(TRACED, most)


@pytest.mark.parametrize(("figure", "share", "width"), COVERAGE)
def test_ranges_hold_rows_that_had_no_part_in_them(figure, share, width, results) -> None:
    rows = [result for result in results if result.case.figure == figure]
    found = coverage(rows, leave_one_out(results))
    assert found.share >= share
    assert found.width <= width
