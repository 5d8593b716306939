"""Real processes of one run on two hosts with different drivers: read there, attached there, and one run here."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_host import program
from stand_in_ssh import StandInSsh
from waiting import until

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.remote import RemoteFleet, SshCommand

pytestmark = pytest.mark.slow
FLAGS = ("--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--per_device_train_batch_size", "4", "--max_length", "256")
RUN = {"WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "node01.cluster", "MASTER_PORT": "29500"}


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[int]]:
    """Start ranks 0 and 1 of a run of four, as torchrun on two nodes would start them."""
    (tmp_path / "train.py").write_text("print(flush=True)\nimport time\ntime.sleep(600)\n")
    started = []
    for rank in ("0", "1"):
        environ = {**os.environ, **RUN, "RANK": rank, "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-u", "train.py", *FLAGS, "--output_dir", "out", "--bf16"]
        started.append(subprocess.Popen(words, cwd=tmp_path, env=environ, stdout=subprocess.PIPE))
    for process in started:
        assert process.stdout
        process.stdout.readline()
    yield [process.pid for process in started]
    for process in started:
        process.kill()
        process.communicate()


def test_ranks_on_two_hosts_are_one_run_with_the_budget_of_its_world(
    ssh: StandInSsh, tmp_path: Path, ranks: list[int]
) -> None:
    for name, gib, pid in (("node01", 24, ranks[0]), ("node02", 80, ranks[1])):
        program(tmp_path / name, 1, gib, str(pid))
        environ = f"XDG_CACHE_HOME={tmp_path}/cache PYTHONPATH={Path(__file__).parents[3]}"
        ssh.does(name, f'{environ} PATH={tmp_path}/{name}:$PATH exec sh -c "$COMMAND"')
    source = RemoteFleet(("node01", "node02"), SshCommand(interval=0.3))
    try:
        until(lambda: any(run.budget_bytes and len(run.hosts) == 2 and all_judged(run) for run in source.read().runs))
        (run,) = source.read().runs
    finally:
        source.close()
    assert [(rank.host.host, rank.rank, rank.process.pid) for rank in run.ranks] == [
        ("node01", 0, ranks[0]),
        ("node02", 1, ranks[1]),
    ]
    assert (run.world_size, run.unseen_ranks, run.used_bytes) == (4, 2, 20 * GIB)
    budgets = [rank.process.budget_bytes for rank in run.ranks]
    assert None not in budgets
    assert run.budget_bytes == sum(budgets) + 2 * max(budgets)
    assert [rank.gpu.total_bytes for rank in run.ranks] == [24 * GIB, 80 * GIB]


def all_judged(run) -> bool:
    return all(rank.process.status is not None for rank in run.ranks)
