"""The demo recording passes through the same pipeline as live GPUs."""

from vramtop.estimator.estimation import estimate, quick_estimator
from vramtop.monitor.board.diagnosis import diagnose
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.sources.recording import read_recording
from vramtop.monitor.sources.replay import demo_path


def test_the_demo_has_a_job_on_budget_one_over_it_and_one_that_no_longer_fits() -> None:
    watchlist = Watchlist(estimate)
    stories: dict[str, list[str]] = {}
    fullest = 0.0
    for snapshot in read_recording(demo_path()):
        board = watchlist.update(snapshot)
        told = [(row.job.label, row.comparison.status) for row in board.processes if row.job and row.comparison]
        told += [(row.job.label, row.fit.verdict) for row in board.pending if row.fit]
        for label, word in told:
            story = stories.setdefault(label, [])
            if story[-1:] != [word]:
                story.append(word)
        second = board.gpus[1].reading
        fullest = max(fullest, (second.used_bytes or 0) / (second.total_bytes or 1))
    assert stories["llama-8b-sft"] == ["loading", "warming_up", "on_budget"]
    assert stories["qwen-7b-dpo"] == ["loading", "warming_up", "over"]
    assert stories["qwen-14b-lora"][0] == "fits"
    assert stories["qwen-14b-lora"][-1] == "does_not_fit"
    assert 0.7 < fullest < 1
    (over,) = (row for row in board.processes if row.comparison and row.comparison.status == "over")
    why = diagnose(over.budget, over.comparison, over.process, quick_estimator(over.budget.job))
    assert why.explanations[0].changes == {"training.activation_checkpointing": "none"}
    assert why.explanations[0].group not in {each.group for each in why.explanations[1:]}


def test_the_demo_has_what_the_gpu_screen_and_the_host_line_show() -> None:
    for snapshot in read_recording(demo_path()):
        assert snapshot.host is not None
        for gpu in snapshot.gpus:
            assert gpu.details.level == "full"
            assert gpu.memory_utilisation_percent is not None


def test_figures_of_the_demo_add_up() -> None:
    for snapshot in read_recording(demo_path()):
        for gpu in snapshot.gpus:
            assert gpu.total_bytes == (gpu.reserved_bytes or 0) + (gpu.used_bytes or 0) + (gpu.free_bytes or 0)
            assert gpu.used_bytes == (gpu.attributed_bytes or 0) + (gpu.unattributed_bytes or 0)
