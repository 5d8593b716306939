import pytest

from vramtop.estimator.causes.divergence import Divergence
from vramtop.estimator.causes.explain import Explanation
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, ModelSpec
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import WatchedJob
from vramtop.tui.reports.divergence_text import divergence_content
from vramtop.tui.screens.attach.run_header import run_tabs


@pytest.fixture
def runs_of(make_budget, make_snapshot, make_gpu, make_process):
    """Makes runs of one process on one GPU each."""

    def make(count: int):
        watchlist = Watchlist(estimate=lambda job: make_budget(job, device=40), is_running=lambda _: False)
        for at in range(count):
            job = Job(name=f"run-number-{at}", model=ModelSpec(id="meta-llama/Llama-3.1-8B"))
            watchlist.add_run(WatchedJob(job=job, pids=((at + 1, 1_000.0),)))
        gpus = [make_gpu(at, [make_process(pid=at + 1, used=40)]) for at in range(count)]
        return watchlist.update(make_snapshot(gpus)).runs

    return make


def test_without_runs_the_line_explains_the_screen(runs_of):
    assert "compare a running job with its budget" in run_tabs((), (), 80).plain


def test_a_single_run_is_named_and_several_have_numbers_and_statuses(runs_of):
    assert run_tabs(runs_of(1), ((1, 1_000.0),), 80).plain == "run-number-0"
    line = run_tabs(runs_of(2), ((2, 1_000.0),), 80).plain
    assert "1 run-number-0  ✓ within budget" in line
    assert "2 run-number-1" in line


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("shown", [1, 5, 9])
def test_many_runs_fit_in_the_line_and_the_current_one_is_included(runs_of, width, shown):
    line = run_tabs(runs_of(9), ((shown, 1_000.0),), width)
    assert line.cell_length <= width
    assert width < 40 or f"{shown} run-number-{shown - 1}" in line.plain


def test_a_run_without_a_name_shows_its_program_and_model(make_budget, make_snapshot, make_gpu, make_process):
    watchlist = Watchlist(estimate=lambda job: make_budget(job, device=40))
    watchlist.add_run(WatchedJob(job=Job(model=ModelSpec(id="meta-llama/Llama-3.1-8B")), pids=((4711, 1_000.0),)))
    runs = watchlist.update(make_snapshot([make_gpu(0, [make_process(used=40)])])).runs
    assert run_tabs(runs, ((4711, 1_000.0),), 80).plain == "train.py Llama-3.1-8B"


def test_an_explanation_is_shown_once():
    found = Explanation(changes={}, description="checkpointing is off", device_bytes=GIB, predicted_bytes=GIB)
    line = "1.0 GiB if checkpointing is off"
    whole = Divergence(sentence=f"observed 1.1 GiB, expected 0.5; {line}", parts=(), explanations=(found,))
    assert divergence_content(whole).plain.splitlines() == ["Why? observed 1.1 GiB, expected 0.5", f"  · {line}"]


def test_what_makes_memory_grow_does_not_repeat_that_it_grows():
    growing = Divergence(
        sentence="holds 44.9 GiB and grows", parts=(), explanations=(), further=("kept tensors",), is_trend=True
    )
    shown = divergence_content(growing).plain.splitlines()
    assert shown == ["Why? causes of endless growth:", "  · kept tensors"]
