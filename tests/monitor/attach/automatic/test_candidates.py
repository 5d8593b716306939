"""Which processes are read, in what order and how often; nothing is read here."""

from typing import Any

import pytest
from builders import make_gpu, make_process, make_snapshot

from vramtop.monitor.attach.automatic.candidates import MAX_READINGS, RETRY_SECONDS, SETTLED_SECONDS, Candidates
from vramtop.monitor.attach.automatic.worker_client import RunAnswer
from vramtop.monitor.board.watchlist import gpu_rows
from vramtop.monitor.host.known_programs import program_of

EARLY = RunAnswer(reason="job not read", too_early=True)
REFUSED = RunAnswer(reason="no access")


def rows(*processes: Any) -> Any:
    made = [make_process(**process) for process in processes]
    snapshot = make_snapshot([make_gpu(0, made)])
    return [row for gpu in gpu_rows(snapshot, lambda row: row) for row in gpu.rows]


def reason(candidates: Candidates, row: Any) -> str | None:
    return candidates.reason(row.process, program_of(row.process))


def read(candidates: Candidates, now: float, answer: RunAnswer, *, time: float = 1_100.0) -> int | None:
    candidate = candidates.next_due(now)
    if candidate is None:
        return None
    candidates.settle(candidate, answer, now, time=time)
    return candidate.key[0]


def test_the_process_that_holds_most_is_read_first() -> None:
    candidates = Candidates()
    candidates.update(rows({"pid": 1, "used": 5}, {"pid": 2, "used": 50}, {"pid": 3, "used": 20}), 0.0)
    assert [read(candidates, 0.0, REFUSED) for _ in range(4)] == [2, 3, 1, None]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m lmdeploy.serve --port 3", "server"),
        ("VLLM::Worker_TP1", "reading…"),
        ("python -m ipykernel_launcher -f kernel.json", "notebook"),
        ("/usr/lib/xorg/Xorg :0", "desktop"),
        ("./bench_gemm --iterations 5", "not training"),
        ("python train.py", "reading…"),
    ],
)
def test_only_programs_that_may_train_are_read(command: str, expected: str) -> None:
    candidates = Candidates()
    shown = rows({"command": command, "name": command.split(maxsplit=1)[0].rpartition("/")[2]})
    assert reason(candidates, shown[0]) == expected
    candidates.update(shown, 0.0)
    assert reason(candidates, shown[0]) == expected
    assert (candidates.next_due(0.0) is not None) == (expected == "reading…")


def test_ranks_of_one_launcher_share_a_refusal() -> None:
    candidates = Candidates()
    ranks = rows(*({"pid": pid, "command": f"python train.py --local_rank={pid}", "parent": 77} for pid in range(1, 9)))
    candidates.update(ranks, 0.0)
    assert candidates.count_groups() == (0, 1)
    assert read(candidates, 0.0, REFUSED) is not None
    assert read(candidates, 0.0, REFUSED) is None
    assert {reason(candidates, row) for row in ranks} == {"no access"}
    assert candidates.count_groups() == (1, 1)


def test_a_process_that_is_read_too_early_is_read_again_a_few_times() -> None:
    candidates = Candidates()
    candidates.update(rows({"pid": 1}), 0.0)
    now = 0.0
    assert read(candidates, now, EARLY) == 1
    for seconds in RETRY_SECONDS:
        assert read(candidates, now + seconds - 0.1, EARLY) is None
        now += seconds
        assert read(candidates, now, EARLY) == 1
    assert not candidates.is_due(1e9)


def test_a_process_that_has_not_worked_since_it_was_read_is_not_read_again() -> None:
    candidates, now = Candidates(), 0.0
    still = rows({"pid": 1, "cpu_seconds": 3.0})
    candidates.update(still, now)
    assert read(candidates, now, EARLY) == 1
    now += RETRY_SECONDS[0]
    candidates.update(still, now)
    assert not candidates.is_due(now)
    now += RETRY_SECONDS[1]
    candidates.update(rows({"pid": 1, "cpu_seconds": 3.5}), now)
    assert read(candidates, now, EARLY) == 1
    for _ in range(2):
        now += RETRY_SECONDS[2]
        candidates.update(rows({"pid": 1, "cpu_seconds": 3.5}), now)
    assert not candidates.is_due(1e9)


def test_an_old_process_is_not_read_too_early() -> None:
    candidates = Candidates()
    candidates.update(rows({"pid": 1}), 0.0)
    assert read(candidates, 0.0, EARLY, time=9_000.0) == 1
    assert not candidates.is_due(1e9)


def test_processes_whose_commands_differ_in_numbers_only_share_a_refusal() -> None:
    candidates = Candidates()
    alike = rows(*({"pid": pid, "command": f"python train.py --seed {pid}", "parent": 77} for pid in range(1, 9)))
    candidates.update(alike, 0.0)
    assert candidates.count_groups() == (0, 8)
    read(candidates, 0.0, REFUSED)
    assert candidates.count_groups() == (1, 1)
    assert {reason(candidates, row) for row in alike} == {"no access"}


def test_a_young_complete_run_is_read_once_more() -> None:
    candidates = Candidates()
    candidates.update(rows({"pid": 1}), 0.0)
    complete = RunAnswer(attachment=object())  # type: ignore[arg-type]
    assert read(candidates, 0.0, complete, time=1_010.0) == 1
    assert read(candidates, SETTLED_SECONDS, complete, time=1_070.0) == 1
    assert not candidates.is_due(1e9)


def test_a_process_that_executes_another_program_is_decided_about_again() -> None:
    candidates = Candidates()
    shell = rows({"pid": 1, "command": "/bin/bash train.sh", "name": "bash"})
    candidates.update(shell, 0.0)
    assert reason(candidates, shell[0]) == "not training"
    candidates.update(rows({"pid": 1, "command": "python train.py"}), 1.0)
    assert read(candidates, 1.0, REFUSED) == 1
    for count in range(5 * MAX_READINGS):
        candidates.update(rows({"pid": 1, "command": f"python train.py {count}"}), 2.0)
        read(candidates, 2.0, REFUSED)
    candidate = candidates.get((1, 1_000.0))
    assert candidate.readings == MAX_READINGS


def test_processes_that_are_gone_are_forgotten() -> None:
    candidates = Candidates()
    old, new = rows(*({"pid": pid} for pid in range(1, 2_001))), rows({"pid": 5_000})
    candidates.update(old, 0.0)
    candidates.update(new, 1.0)
    assert candidates.get(old[0].process.key) is None
    assert candidates.get(new[0].process.key) is not None


def test_a_process_without_a_start_time_is_not_read() -> None:
    candidates = Candidates()
    hidden = rows({"start_time": None, "command": None, "note": "its /proc may not be read"})
    candidates.update(hidden, 0.0)
    assert reason(candidates, hidden[0]) == "no access"
    assert candidates.next_due(0.0) is None
