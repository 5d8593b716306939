"""Which processes are shown as one row, and the figures of that row."""

from typing import Any

import pytest
from builders import make_board, make_gpu, make_process, make_run, make_snapshot, make_watchlist

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job, Parallel
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.process_groups import ProcessGroup, group_processes

LAUNCHED = {"parent": 50, "parent_name": "torchrun"}


def make_groups(*gpus: list[Any], ranks: tuple[int, ...] = (), world: int = 1) -> tuple[ProcessGroup, ...]:
    """Group the processes of these GPUs; ``ranks`` are the pids of a run."""
    runs = [make_run(Job(name="tune", parallel=Parallel(data_replicate=world)), *ranks)] if ranks else []
    return group_processes(make_board([make_gpu(at, each) for at, each in enumerate(gpus)], *runs, device=20))


def pids(groups: tuple[ProcessGroup, ...]) -> list[list[int]]:
    return [[row.process.pid for row in group.rows] for group in groups]


def test_a_run_is_one_group_with_the_processes_that_its_ranks_have_started():
    gpus = [[make_process(pid, 20 + pid / 10)] for pid in (4, 3, 2, 1)]
    gpus[0].append(make_process(70, 0.5, parent=4, start_time=1_001.0))
    gpus[1].append(make_process(80, 3, parent=900))
    group, other = make_groups(*gpus, ranks=(1, 2, 3, 4))
    assert pids((group, other)) == [[1, 2, 3, 4, 70], [80]]
    assert group.run.job.name == "tune"
    assert group.used_bytes == pytest.approx(81.5 * GIB, abs=10)
    assert group.highest.process.pid == 4
    assert group.spread_bytes == pytest.approx(0.3 * GIB, abs=10)
    assert [pid for pid, _ in group.process_keys] == [1, 2, 3, 4, 70]


def test_the_key_of_a_group_stays_when_its_processes_change():
    (one,) = make_groups([make_process(1, **LAUNCHED)])
    (two,) = make_groups([make_process(1, **LAUNCHED)], [make_process(2, **LAUNCHED)])
    assert one.key == two.key
    (run,) = make_groups([make_process(1)], ranks=(1, 2))
    (both,) = make_groups([make_process(1)], [make_process(2)], ranks=(1, 2))
    assert run.key == both.key


@pytest.mark.parametrize(
    ("changes", "together"),
    [
        (LAUNCHED, True),
        ({"parent": 50, "parent_name": "mpirun"}, True),
        ({"parent": 50, "parent_name": "slurmstepd"}, True),
        ({"parent": 50, "parent_name": "bash"}, False),
        ({"parent": 50, "parent_name": "tmux: server"}, False),
        ({"parent": 50, "parent_name": None}, False),
        ({"parent": 1, "parent_name": "systemd"}, False),
        ({"parent": None}, False),
        (LAUNCHED | {"user": None}, False),
    ],
)
def test_processes_of_one_program_form_a_group_under_a_program_but_not_under_a_shell(changes, together) -> None:
    groups = make_groups([make_process(11, **changes)], [make_process(12, **changes)])
    assert pids(groups) == ([[11, 12]] if together else [[11], [12]])


@pytest.mark.parametrize(
    "different",
    [{"user": "bob"}, {"parent": 51}, {"command": "python eval.py"}, {"command": "./serve", "name": "serve"}],
)
def test_another_user_parent_or_program_is_another_group(different: dict[str, Any]):
    other = LAUNCHED | different
    assert pids(make_groups([make_process(1, **LAUNCHED)], [make_process(2, **other)])) == [[1], [2]]


def test_workers_of_a_server_are_one_group_whatever_their_titles():
    workers = [
        make_process(pid, name=f"VLLM::Worker_TP{pid}", command=f"VLLM::Worker_TP{pid}", parent=50, parent_name="VLLM")
        for pid in (1, 2)
    ]
    assert pids(make_groups([workers[0]], [workers[1]])) == [[1, 2]]


def test_a_desktop_has_not_started_its_programs_for_its_own_work():
    shell = make_process(1, name="gnome-shell", command="/usr/bin/gnome-shell", kinds=("graphics",))
    assert pids(make_groups([shell, make_process(2, parent=1, parent_name="gnome-shell")])) == [[1], [2]]


def test_a_reused_pid_is_not_a_parent():
    assert pids(make_groups([make_process(1, start_time=1_500.0), make_process(2, parent=1)])) == [[1], [2]]


def test_processes_that_name_each_other_as_parents_do_not_hang():
    assert len(make_groups([make_process(1, parent=2), make_process(2, parent=1)])) <= 2


def test_an_unknown_size_makes_the_sum_a_lower_bound_and_the_spread_unknown():
    (group,) = make_groups([make_process(1, 10, **LAUNCHED)], [make_process(2, None, **LAUNCHED)])
    assert group.used_bytes == 10 * GIB
    assert group.has_unknown_sizes
    assert group.spread_bytes is None
    (nothing,) = make_groups([make_process(1, None)])
    assert nothing.used_bytes is None
    assert nothing.highest is None


def test_ended_ranks_stay_in_their_group_and_hold_nothing():
    watchlist = make_watchlist(make_run("tune", 1, 2), device=20)

    def board(*gpus: list[Any], time: float) -> Board:
        return watchlist.update(make_snapshot([make_gpu(at, each) for at, each in enumerate(gpus)], time=time))

    board([make_process(1, 20)], [make_process(2, 20)], time=2_000.0)
    later = board([make_process(1, 20)], [], time=2_001.0)
    (group,) = group_processes(later)
    assert [row.ended_at for row in group.rows] == [None, 2_001.0]
    assert group.used_bytes == 20 * GIB
    assert pids(group_processes(replace(later, gpus=()))) == [[1, 2]]


def test_processes_that_were_read_on_their_own_and_have_no_budget_are_grouped_by_their_launcher():
    def estimate(job: Job) -> Any:
        raise InputError("the model is not known")

    gpus = [make_gpu(at, [make_process(pid, **LAUNCHED)]) for at, pid in enumerate((11, 12))]
    board = make_board(gpus, make_run("job 11", 11), make_run("job 12", 12), estimate=estimate)
    assert pids(group_processes(board)) == [[11, 12]]
