"""Ranges are calibrated by the accuracy table as it is, and hold what they claim on rows that had no part in it."""

import dataclasses
from collections.abc import Sequence

import msgspec
import pytest
from accuracy_cases import read_cases
from calibrate import derive, leave_one_out, quantile, span_with
from predictions import Result, predict, predict_all


@pytest.fixture(scope="module")
def results() -> Sequence[Result]:
    return predict_all("formula")[0]


def test_with_enough_values_the_quantile_is_that_of_a_further_value() -> None:
    """Of 19 values, the 18th is exceeded by a 20th in one case of ten."""
    values = [(number, float(number)) for number in range(1, 20)]
    assert quantile(values) == 18


def test_the_quantile_of_few_values_lies_beyond_them() -> None:
    assert quantile([("a", 1.0), ("b", 2.0)]) == pytest.approx(2 * 0.9 * 3 / 2)


def test_many_rows_of_one_source_weigh_no_more_than_one_of_another() -> None:
    values = [("many", 0.1)] * 30 + [("other", 1.0)] * 10
    assert quantile(values) == 1.0
    assert quantile([("many", 0.1)] * 390 + [("many", 1.0)] * 10) == 0.1


def moved(result: Result, by: float) -> Result:
    """Return the result as if something else had been measured."""
    measured = round(result.predicted_bytes * by)
    return dataclasses.replace(result, case=msgspec.structs.replace(result.case, measured_bytes=measured))


def test_a_range_that_is_derived_from_a_row_holds_it_and_grows_with_its_error() -> None:
    row = predict(next(case for case in read_cases() if case.id == "P057"))
    spans = []
    for by in (1.0, 1.1, 1.3):
        one = moved(row, by)
        span = span_with(one, derive([one]))
        assert span is not None
        assert one.case.measured_bytes in span
        spans.append(span)
    widths = [span.high_bytes - span.low_bytes for span in spans]
    assert widths == sorted(set(widths))


def test_a_row_has_no_part_in_its_range_when_its_repository_is_left_out(results: Sequence[Result]) -> None:
    before = leave_one_out(results)
    wrong = [moved(each, 3.0) if each.case.file == "megatron" else each for each in results]
    after = leave_one_out(wrong)
    for result in results:
        if result.case.file == "megatron":
            assert after[result.case.id] == before[result.case.id], result.case.id
    assert any(after[result.case.id] != before[result.case.id] for result in results)
