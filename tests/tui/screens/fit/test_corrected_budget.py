"""Every screen that shows a budget says where measured runs have corrected it, with the uncorrected figure."""

from builders import make_board, make_budget, make_gpu, make_process, make_run, make_watchlist
from screen_host import opened
from waiting import until_shown

from vramtop.estimator.budget import Budget, Learned
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec, Uncertainties
from vramtop.tui.screens.dashboard.gpu_panel import panel_lines
from vramtop.tui.screens.dashboard.layout import PanelShape
from vramtop.tui.screens.dashboard.screen import pending_line
from vramtop.tui.screens.fit.screen import FitCheckScreen

JOB = Job(name="tune", model=ModelSpec(id="Llama-3.1-8B"))
SENTENCE = "measured here 3 times, last on 2026-11-12: 52.1 GiB; expected 52.0 (51.0 to 53.1); uncorrected 40.0"


def corrected(job: Job) -> Budget:
    """An estimate of 40 GiB that was corrected to 52."""
    before = make_budget(job, device=40)
    learned = Learned(
        sentence=SENTENCE, runs=3, jobs=1, same_job=True, last=0.0, uncorrected=before.peak,
        uncorrected_outside_bytes=round(2.5 * GIB), uncorrected_steady_bytes=before.steady_device_bytes,
    )  # fmt: skip
    return replace(make_budget(job, device=52), learned=learned)


def test_the_dashboard_says_so_of_running_and_of_pending_jobs() -> None:
    gpus = [make_gpu(0, [make_process(1, 50)]), make_gpu(1)]
    board = make_board(gpus, make_run(JOB, 1), pending=["next"], estimate=corrected)
    lines = [line.plain for line in panel_lines(board.gpus[0], (), PanelShape(width=160, graph_height=0), now=2_000.0)]
    (budget,) = (line for line in lines if line.startswith("│ budget"))
    assert "52.0 GiB" in budget
    assert "corrected, was 40.0" in budget
    assert "corrected, was 40.0" in pending_line(board.pending[0], 120, now=0.0).plain


def test_a_pending_job_says_which_sizes_are_assumed() -> None:
    unsure = Uncertainties(between={"training.sequence_length": [512], "parallel.data_shard": [2]})
    board = make_board([make_gpu(0)], pending=[Job(name="next", model=ModelSpec(id="gpt2"), unsure=unsure)])
    assert "; assumes sequence length 2,048 and data shard 1" in pending_line(board.pending[0], 160, now=0.0).plain


def test_a_budget_that_was_not_corrected_says_nothing() -> None:
    board = make_board([make_gpu(0, [make_process(1, 30)])], make_run(JOB, 1))
    lines = [line.plain for line in panel_lines(board.gpus[0], (), PanelShape(width=160, graph_height=0), now=2_000.0)]
    assert not any("corrected" in line for line in lines)


async def test_the_fit_check_shows_both_figures_and_where_they_come_from() -> None:
    check = FitCheckScreen(make_watchlist(estimate=corrected), estimate=corrected, initial=JOB)
    async with opened(check, make_board([make_gpu(0)])) as (screen, pilot):

        def words() -> str:
            parts = ("#answer", "#details")
            return " ".join(" ".join(str(screen.query_one(part).render()).split()) for part in parts)

        await until_shown(pilot, lambda: "peak 52.0 GiB" in words())
        assert "corrected, was 40.0" in words()
        assert SENTENCE in words()
