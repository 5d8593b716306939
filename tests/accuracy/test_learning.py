"""Published rows, each corrected by the other jobs of its source as if these had been measured here."""

from statistics import fmean

import pytest
from learning import correct_by_other_rows
from predictions import predict_all


@pytest.mark.slow
def test_other_jobs_of_a_source_bring_a_row_nearer() -> None:
    results, _ = predict_all("formula")
    rows = [row for row in correct_by_other_rows(results) if row.was_corrected]
    before, after = [abs(row.before.error) for row in rows], [abs(row.after.error) for row in rows]
    assert len(rows) > 40
    assert fmean(after) < 0.7 * fmean(before)
    device = [abs(row.after.error) - abs(row.before.error) for row in rows if row.before.case.figure == "device"]
    assert sum(device) <= 0
    assert max(b - a for a, b in zip(before, after, strict=True)) < 0.04
    assert fmean(row.held[1] for row in rows) >= 0.9
