import time
from typing import Any

import pytest
from builders import make_board, make_budget, make_gpu, make_process, make_run, make_snapshot, make_watchlist
from rich.cells import cell_len

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.board import GpuRow
from vramtop.monitor.board.run_phases import PhaseStart
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.figures import HOST_MEMORY, Fault
from vramtop.monitor.snapshot.snapshot import GpuReading
from vramtop.tui.draw.gpu_bars import held_cells
from vramtop.tui.draw.palette import colour_of, unattributed_label
from vramtop.tui.screens.base import BoardFeed
from vramtop.tui.screens.dashboard.gpu_panel import panel_lines
from vramtop.tui.screens.dashboard.gpu_rows import gpu_row_line, gpu_row_titles
from vramtop.tui.screens.dashboard.header_text import header_line, summary_line
from vramtop.tui.screens.dashboard.layout import PanelShape, framed_panels

SHAPE = PanelShape(width=120, graph_height=3)


def make_row(gpu: GpuReading, *, need: float | None = None) -> GpuRow:
    """The row of one GPU; pid 1 runs a job of ``need`` GiB."""
    return make_board([gpu], *([] if need is None else [make_run("tune", 1)]), device=need).gpus[0]


def drawn(row: GpuRow, shape: PanelShape = SHAPE, **options: Any) -> list[str]:
    return [line.plain for line in panel_lines(row, options.pop("history", ()), shape, now=2_000.0, **options)]


@pytest.mark.parametrize("width", [60, 78, 100, 120, 200])
@pytest.mark.parametrize("need", [None, 10, 30, 200])
def test_every_line_is_as_wide_as_the_panel(width: int, need: float | None):
    gpu = make_gpu(0, [make_process(1, 30), make_process(2, 5)], name="NVIDIA 演算 " + "long name " * 9)
    row = make_row(gpu, need=need)
    lines = drawn(row, PanelShape(width=width, graph_height=2), history=[(1_990.0, 30 * GIB), (1_999.0, None)])
    assert [cell_len(line) for line in lines] == [width] * 6
    assert cell_len(gpu_row_line(row, width, selected=True).plain) == width
    assert cell_len(gpu_row_titles(width).plain) == width


def test_budget_larger_than_the_gpu_ends_in_an_arrow():
    lines = drawn(make_row(make_gpu(0, [make_process(1, 30)]), need=100))
    assert "▶▏" in lines[2]


def test_a_job_without_a_model_has_the_name_of_its_process():
    watchlist = Watchlist(estimate=make_budget)
    watchlist.add_run(make_run(Job(), 1), "vramtop does not know its model")
    gpu = make_gpu(0, [make_process(1, 60, command="python -u /data/tune.py")])
    lines = drawn(watchlist.update(make_snapshot([gpu])).gpus[0])
    assert "tune.py 60.0" in lines[1]


def test_graph_line_includes_the_memory_of_other_processes():
    lines = drawn(make_row(make_gpu(0, [make_process(1, 20), make_process(2, 30)]), need=25))
    assert any("━━ expected, at most, plus 31" in line for line in lines)


def test_unknown_total_shows_the_reason_and_the_memory_of_processes():
    gpu = replace(make_gpu(0, [make_process(1, 30)]), total_bytes=None, used_bytes=None, free_bytes=None)
    lines = drawn(make_row(gpu, need=30))
    assert "n/a: the GPU's total memory is unknown, processes hold 30.0 GiB" in lines[1]
    assert "30.0 GiB (28.1 to 31.9)" in lines[2]
    assert "free n/a" in lines[0]


def test_idle_gpu_and_unknown_job_are_stated():
    assert "nothing is running" in drawn(make_row(make_gpu(0)))[2]
    assert "no known job" in drawn(make_row(make_gpu(0, [make_process(1, 3)])))[2]


def test_summary_names_each_gpu_of_a_job_over_its_budget_once():
    watchlist = make_watchlist(make_run("wide", 1, 2), device=20)
    board = watchlist.update(make_snapshot([make_gpu(0, [make_process(1, 40)]), make_gpu(1, [make_process(2, 40)])]))
    assert summary_line(board, 100).plain.split() == ["▲", "OVER", "wide", "+20.0", "on", "GPU", "0,", "1"]


@pytest.mark.parametrize("width", [20, 40, 56, 60, 80, 120])
def test_summary_is_shortened_but_keeps_the_job_over_its_budget_and_the_verdict_of_the_next_one(width: int):
    watchlist = Watchlist(estimate=lambda job: make_budget(job, device=20 if job.name == "runs" else 90))
    watchlist.add_run(make_run("runs", 1))
    watchlist.add_pending(Job(name="a-rather-long-name-of-a-job"))
    within, over = (
        summary_line(watchlist.update(make_snapshot([make_gpu(0, [make_process(1, used)])])), width).plain
        for used in (20, 40)
    )
    assert max(cell_len(within), cell_len(over)) <= width
    assert width < 40 or "DOES NOT FIT" in within
    assert width < 56 or ("OVER  runs +20.0 on GPU 0" in over and "DOES NOT FIT" in over)


@pytest.mark.parametrize("width", [30, 60, 78, 118])
def test_header_keeps_its_width_and_shows_the_age_of_the_figures(width: int):
    board = Watchlist(estimate=lambda job: None).update(make_snapshot([make_gpu(0)]))  # type: ignore[arg-type,return-value]
    line = header_line(board, BoardFeed(interval=1.0, age_seconds=75.0), width).plain
    assert cell_len(line) == width
    assert "! figures are 1 min old" in line or width < 40


def test_a_sum_with_an_unknown_part_is_marked() -> None:
    one = make_gpu(0, [make_process(1, 30), make_process(2, None)])
    text = "\n".join(line.plain for line in panel_lines(make_row(one), (), replace(SHAPE, width=200), now=2_000.0))
    assert "1 more n/a" in text
    assert unattributed_label(one) == "n/a processes and unattributed"
    assert unattributed_label(make_gpu(0, [make_process(1, 30)])) == "unattributed"
    some = make_gpu(0, [make_process(1, 30), make_process(2, 4), make_process(3, None)])
    text = "\n".join(line.plain for line in panel_lines(make_row(some), (), replace(SHAPE, width=200), now=2_000.0))
    assert "2 more 4.0 and n/a" in text


def test_a_gpu_whose_processes_cannot_be_read_does_not_look_idle():
    refused = Fault(field="processes", code="NO_PERMISSION", message="the driver does not let this user read them")
    gpu = make_gpu(0, used_bytes=40 * GIB, free_bytes=39 * GIB + GIB // 2, faults=(refused,))
    row = GpuRow(reading=replace(gpu, processes=None), rows=())
    cells = held_cells(row, 40)
    assert 19 <= sum(cell.char == "▓" for cell in cells) <= 21
    text = "\n".join(line.plain for line in panel_lines(row, (), PanelShape(width=100, graph_height=0), now=2_000.0))
    assert "processes n/a" in text
    assert "n/a: the driver does not let this user read them" in text


def test_shared_memory_used_by_the_rest_of_the_machine_is_not_free():
    process = make_process(used=20)
    gpu = make_gpu(0, [process], used_bytes=20 * GIB, free_bytes=40 * GIB, reserved_bytes=None)
    assert "(host's memory)" not in drawn(make_row(gpu))[0]
    shares = Fault(field="reserved_bytes", code=HOST_MEMORY, message="this GPU shares the host's memory")
    row = make_row(replace(gpu, faults=(shares,)))
    cells = held_cells(row, 40)
    assert [sum(cell.ground is not None for cell in cells), sum(cell.char == "░" for cell in cells)] == [10, 10]
    assert "(host's memory)" in drawn(row)[0]


@pytest.mark.parametrize(
    ("code", "word"), [("GPU_IS_LOST", "! lost"), ("RESET_REQUIRED", "! reset required"), ("UNKNOWN", "! cannot be")]
)
def test_a_gpu_that_does_not_answer_is_marked_in_its_line(code: str, word: str):
    nothing = dict.fromkeys(("total_bytes", "reserved_bytes", "used_bytes", "free_bytes"))
    gpu = make_gpu(3, faults=(Fault(field=None, code=code, message="it is gone"),), **nothing)
    line = gpu_row_line(make_row(replace(gpu, processes=None)), 80, selected=False).plain
    assert word in line
    assert "n/a: it is gone" in line
    assert "idle" not in line


def painted(row: GpuRow, colour: str, *, at: int = 1, shape: PanelShape = SHAPE, **options: Any) -> str:
    """What stands on a colour, or is drawn in it, in a line of the panel."""
    line = panel_lines(row, options.pop("history", ()), shape, now=2_000.0, **options)[at]
    return "".join(line.plain[span.start : span.end] for span in line.spans if colour in str(span.style))


def test_only_what_is_held_beyond_the_upper_bound_is_red():
    over = make_row(make_gpu(0, [make_process(1, 60)]), need=30)
    red = painted(over, f"on {colour_of('bad')}")
    assert red.endswith("+30.0")
    width = SHAPE.bar_width
    assert abs(len(red) - (60 - 30 * 17 / 16) * width / 80) <= 1
    assert painted(over, f"on {colour_of('good')}").strip() == "tune 60.0"
    assert painted(make_row(make_gpu(0, [make_process(1, 30)]), need=30), f"on {colour_of('bad')}") == ""


def test_a_job_below_its_budget_says_by_how_much_where_the_bar_ends():
    row = make_row(make_gpu(0, [make_process(1, 20)]), need=60)
    comparison = replace(row.rows[0].comparison, status="under")
    row = replace(row, rows=(replace(row.rows[0], comparison=comparison),))
    assert "−40.0" in drawn(row)[1]
    assert painted(row, f"on {colour_of('bad')}") == ""


def test_a_budget_with_guessed_settings_is_hatched_and_never_red():
    row = make_row(make_gpu(0, [make_process(1, 60)]), need=30)
    comparison = replace(row.rows[0].comparison, status="incomplete", is_guess=True)
    row = replace(row, rows=(replace(row.rows[0], comparison=comparison),))
    held, budget = panel_lines(row, (), SHAPE, now=2_000.0)[1:3]
    assert "╱" in budget.plain
    assert " on #" not in "".join(str(span.style) for span in budget.spans)
    assert colour_of("bad") not in "".join(str(span.style) for span in held.spans)
    assert framed_panels([row]) == [True]


def test_the_graph_shows_phases_and_the_moment_and_memory_at_which_a_job_left_its_budget():
    row = make_row(make_gpu(0, [make_process(1, 60)]), need=30)
    process = row.rows[0]
    starts = (PhaseStart(1_720.0, "loading"), PhaseStart(1_780.0, "steady"))
    comparison = replace(process.comparison, left_budget_at=1_850.0)
    row = replace(row, rows=(replace(process, phase_starts=starts, comparison=comparison),))
    history = [(1_700.0 + at, (31 if at < 150 else 61) * GIB) for at in range(300)]
    shape = PanelShape(width=120, graph_height=9)
    lines = drawn(row, shape, history=history)
    timeline = lines[-2]
    assert "▏loading" in timeline
    assert "▏steady" in timeline
    assert f"▲ over since {time.strftime('%H:%M:%S', time.localtime(1_850.0))}" in timeline
    assert abs(timeline.index("▲") - (10 + 150 / 300 * shape.bar_width)) <= 1
    assert "█" in painted(row, colour_of("bad"), at=6, shape=shape, history=history)
    assert "█" not in painted(row, colour_of("bad"), at=len(lines) - 3, shape=shape, history=history)
    assert any("━━ expected, at most, plus 1.0 of " in line for line in lines)


def test_a_gpu_without_a_job_says_why_in_two_lines():
    shape = PanelShape(width=100, framed=False)
    row = make_row(make_gpu(0, [make_process(1, 30, command="python -m vllm.entrypoints.openai.api_server")]))
    row = replace(row, rows=tuple(replace(each, no_budget_reason="server") for each in row.rows))
    first, second = drawn(row, shape)
    assert first.startswith("── 0 H100 80GB HBM3")
    assert "31.0 of 80.0 GiB" in first
    assert "no budget: server" in second
    assert "30.0" in second
    assert cell_len(first) == cell_len(second) == 100
    assert len(drawn(make_row(make_gpu(0)), shape)) == 2


def test_the_summary_says_that_all_jobs_are_on_budget():
    gpus = [make_gpu(0, [make_process(1, 20)]), make_gpu(1, [make_process(2, 20)])]
    board = make_board(gpus, make_run("job-1", 1), make_run("job-2", 2), device=20)
    assert summary_line(board, 100).plain == "✓ all 2 jobs are within budget"


def test_gpus_without_a_budget_have_graphs_only_where_no_gpu_has_one():
    used, idle = make_row(make_gpu(0, [make_process(2, 30)])), make_row(make_gpu(1, []))
    job = make_row(make_gpu(2, [make_process(1, 30)]), need=30)
    assert framed_panels([used, idle]) == [True, False]
    assert framed_panels([used, idle, job]) == [False, False, True]
