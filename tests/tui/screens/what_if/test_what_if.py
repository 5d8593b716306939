from dataclasses import replace

import pytest

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec, Training
from vramtop.tui.draw.palette import VERDICTS
from vramtop.tui.screens.what_if import GpuLimits, Sweep, axis_rows, column_of, plot_top, sweep_setting, what_if_rows

BATCH = "training.micro_batch"
LENGTH = "training.sequence_length"


@pytest.fixture
def swept(make_budget):
    """A sweep of a job of 10 GiB plus 5 for each sequence, up to 10 % more, with 50 of 80 GiB available."""

    def make(current_value: int = 4, available: float = 50) -> Sweep:
        def estimate(job: Job):
            need = 10 + 5 * job.training.micro_batch
            return make_budget(job, device=need, high=need * 1.1)

        def judge(budget):
            if budget.peak.high_bytes <= available * GIB:
                return "fits"
            return "tight" if budget.peak.device_bytes <= available * GIB else "does_not_fit"

        limits = GpuLimits(available_bytes=round(available * GIB), gpu_bytes=80 * GIB)
        job = Job(model=ModelSpec(id="gpt2"), training=Training(micro_batch=current_value))
        return sweep_setting(job, BATCH, estimate, judge, limits)

    return make


def text(rows) -> list[str]:
    return ["".join(cell.char for cell in row) for row in rows]


def test_the_largest_fitting_and_the_largest_tight_value_are_found(swept):
    found = swept()
    assert (found.largest.value, found.largest_tight.value) == (7, 8)
    assert found.points[-1].peak.device_bytes > 80 * GIB  # the crossing of the GPU's limit is visible


def test_no_largest_value_is_below_the_jobs_own_if_that_fits(swept):
    points = swept(current_value=4).points
    points = tuple(replace(point, verdict="tight") if point.value == 2 else point for point in points)
    for current, largest in ((4, 7), (1, 1)):
        sweep = replace(swept(current_value=4), points=points, current_value=current)
        assert sweep.largest is not None
        assert sweep.largest.value == largest


def test_without_a_fitting_value_there_is_no_largest(swept):
    assert swept(available=12).largest is None
    assert swept(available=12).largest_tight is None


def test_columns_grow_with_the_value_and_have_the_colour_of_their_verdict(swept):
    found = swept()
    width, top = 60, plot_top(found)
    rows = what_if_rows(found, width=width, height=12, top=top)
    bottom = rows[-1]
    for point in found.points:
        cell = bottom[column_of(found, point.value, width)]
        assert VERDICTS[point.verdict].colour in (cell.colour, cell.ground)
    heights = [sum(row[x].char in "▁▂▃▄▅▆▇█━╌" for row in rows) for x in range(width)]
    assert heights[-1] > heights[0]


def test_limits_are_drawn_as_lines_at_their_heights(swept):
    found = swept()
    height, top = 20, 100 * GIB
    lines = text(what_if_rows(found, width=40, height=height, top=top))
    assert lines[height - 1 - 10] == "━" * 40
    assert lines[height - 1 - 16] == "╌" * 40


def test_without_block_characters_the_fill_letter_shows_the_verdict(swept):
    found = swept()
    lines = text(what_if_rows(found, width=60, height=12, top=plot_top(found), ascii_only=True))
    assert all(line.isascii() for line in lines)
    assert lines[-1].startswith("+")
    assert lines[-1].endswith("x")
    assert "!" in lines[-1]
    assert any(set(line) == {"="} for line in lines)


@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_current_value_and_the_cursor_are_marked_below(swept, ascii_only):
    found = swept(current_value=6)
    marks, names = axis_rows(found, width=60, cursor=12, ascii_only=ascii_only)
    assert marks[column_of(found, 6, 60)] == ("^" if ascii_only else "▲")
    assert marks[column_of(found, 12, 60)] == ("*" if ascii_only else "◆")
    assert "now 6" in names
    assert " 12" in names


def test_invalid_values_are_left_out(make_budget):
    def estimate(job: Job):
        if job.training.sequence_length > 1024:
            raise InputError("too long")
        return make_budget(job, device=10)

    job = Job(training=Training(sequence_length=512))
    found = sweep_setting(job, LENGTH, estimate, lambda _: "fits", GpuLimits())
    assert {point.value for point in found.points} <= set(range(64, 1025, 64))
    assert found.current_value == 512


def test_no_plot_exceeds_the_maximum_of_the_model(make_budget):
    job = Job(training=Training(sequence_length=512))
    limits = GpuLimits(available_bytes=GIB, gpu_bytes=GIB)
    found = sweep_setting(
        job, LENGTH, lambda j: make_budget(j, device=0.1), lambda _: "fits", limits, max_positions=2048
    )
    assert found.points[-1].value <= 2048


def test_an_empty_sweep_draws_nothing(swept):
    empty = replace(swept(), points=())
    assert what_if_rows(empty, width=10, height=5, top=GIB) == []
    assert axis_rows(empty, width=10) == ("", "")
