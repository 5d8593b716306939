from builders import make_budget, make_gpu, make_mig_gpu, make_snapshot

from vramtop.estimator.common.records import replace
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.monitor.board.capacity import device_capacities
from vramtop.monitor.board.fit import check_fit
from vramtop.tui.widgets.budget_view import gpu_lines, phase_table, remark_lines


def test_each_mig_device_has_a_bar_and_its_full_name() -> None:
    budget = make_budget(device=25, high=27)
    found = check_fit(budget, device_capacities(make_snapshot([make_gpu(0, mig=()), make_mig_gpu(11)]), {}))
    lines = [line.plain for line in gpu_lines(found, budget, width=100)]
    assert [line[:22].rstrip() for line in lines] == [
        "  0 H100 80GB",
        "▶11 1c.3g.40gb gi 3",
        " 11 2c.3g.40gb gi 3/1",
        " 11 MIG 1g.20gb gi 9",
    ]
    assert len({line.index("│") for line in lines}) == 1
    assert [line.partition("│")[2].strip() for line in lines] == [
        "✗ not usable",
        "✓ 14.0 left",
        "✓ 14.0 left",
        "✗ short 6.0",
    ]


def test_five_phases_keep_apart_in_the_table() -> None:
    job = with_changes(Job(), {"model.id": "gpt2", "training.sequence_length": 512, "rollout.engine": "transformers"})
    lines = [line.plain for line in phase_table(estimate(job))]
    assert lines[0].replace("◀", "").split() == ["GiB", "loading", "generate", "forward", "backward", "step"]
    assert {len(line) for line in lines} == {67}


def test_what_a_training_does_besides_its_steps_is_said_to_be_outside_of_the_figure() -> None:
    budget = make_budget()
    assert remark_lines(budget)[0].plain == "- This figure does not include evaluation or saving."
    saves = replace(budget, phases=(*budget.phases, replace(budget.phases[0], name="saving")))
    assert remark_lines(saves)[0].plain == "- This figure does not include evaluation."
    served = replace(budget, job=with_changes(budget.job, {"training.mode": "inference"}))
    assert not any("figure" in line.plain for line in remark_lines(served))
