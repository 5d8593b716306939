"""Real ranks of one run on two hosts with different drivers: read there, attached there, and listed here."""

import os
from pathlib import Path

import pytest
from simulated_host import program
from waiting import until

from vramtop.estimator.common.sizes import GIB
from vramtop.monitor.fleet.remote import RemoteFleet
from vramtop.monitor.fleet.ssh_command import SshCommand

pytestmark = pytest.mark.slow
FLAGS = ("--model_name_or_path", "Qwen/Qwen2.5-0.5B", "--per_device_train_batch_size", "4", "--max_length", "256")
RUN = {"WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "node01.cluster", "MASTER_PORT": "29500"}


@pytest.fixture
def ranks(start_script) -> list[int]:
    """Start ranks 0 and 1 of a run of four, as torchrun on two nodes would start them."""
    environ = {**os.environ, **RUN, "OMP_NUM_THREADS": "1"}
    words = (*FLAGS, "--output_dir", "out", "--bf16")
    return [start_script(*words, env={**environ, "RANK": rank}).pid for rank in ("0", "1")]


def test_ranks_on_two_hosts_have_their_budget_and_their_place_in_the_run(ssh, tmp_path, ranks) -> None:
    for name, gib, pid in (("node01", 24, ranks[0]), ("node02", 80, ranks[1])):
        program(tmp_path / name, 1, gib, str(pid))
        environ = f"XDG_CACHE_HOME={tmp_path}/cache PYTHONPATH={Path(__file__).parents[3]}"
        ssh.does(name, f'{environ} PATH={tmp_path}/{name}:$PATH exec sh -c "$COMMAND"')
    source = RemoteFleet(("node01", "node02"), SshCommand(interval=0.3))
    try:
        until(lambda: all(row.status for _, row in rows(source)) and len(rows(source)) == 2)
        found = rows(source)
    finally:
        source.close()
    assert [(host, row.facts.rank, row.facts.world_size, row.pid) for host, row in found] == [
        ("node01", 0, 4, ranks[0]),
        ("node02", 1, 4, ranks[1]),
    ]
    assert all(row.budget_bytes for _, row in found)
    assert [row.used_bytes for _, row in found] == [10 * GIB, 10 * GIB]


def rows(source: RemoteFleet) -> list:
    return [(host.host, row) for host in source.read().hosts for gpu in host.gpus for row in gpu.processes or ()]
