"""Scales have few round steps."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from vramtop.tui.html_report.plots import clock_text, memory_ticks, time_ticks


@given(st.integers(1, 2**50))
def test_sizes_are_few_and_within_the_scale(top: int) -> None:
    ticks = memory_ticks(top)
    assert ticks[0][0] == 0
    assert 1 <= len(ticks) <= 8
    assert all(size <= top * 1.01 + 1 for size, _ in ticks)


@pytest.mark.parametrize(("span", "step", "colons"), [(179, 30, 2), (3600, 600, 1), (86_400, 10_800, 1)])
def test_times_are_whole_steps_of_the_clock_up_to_the_end(span: int, step: int, colons: int) -> None:
    times, labels = zip(*time_ticks(1_790_000_000, 1_790_000_000 + span), strict=True)
    assert {round(b - a) for a, b in pairwise(times)} == {step}
    assert times[-1] + step > 1_790_000_000 + span
    assert {label.count(":") for label in labels} == {colons}
    assert clock_text(times[0]).startswith(labels[0])
    assert clock_text(times[0], date=True).endswith(f" {clock_text(times[0])}")
