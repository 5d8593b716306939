"""What the environment of a process says of its run."""

import sys

import pytest

from vramtop.monitor.attach.rank_facts import RankFactsReader, rank_facts
from vramtop.monitor.host.process_stat import start_time_of

TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "MASTER_ADDR": "node01", "MASTER_PORT": "29500"}
STEP = {"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("environ", "facts"),
    [
        (TORCHRUN, (9, 16, "node01:29500")),
        ({"RANK": "9", "MASTER_ADDR": "node01"}, (9, None, None)),
        (STEP, (3, 4, None)),
        ({**STEP, **TORCHRUN}, (9, 16, "node01:29500")),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, (2, 4, None)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, None)),
    ],
)
def test_torchrun_slurm_and_mpi_say_which_rank_it_is(environ, facts):
    found = rank_facts(environ)
    assert (found.rank, found.world_size, found.master) == facts


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WORLD_SIZE": "8"},
        {"RANK": "-1"},
        {"RANK": "x"},
        {"MASTER_ADDR": "a", "MASTER_PORT": "1"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "8"},  # of the batch script, which is no task
    ],
)
def test_a_process_without_a_rank_says_nothing(environ):
    assert rank_facts(environ) is None


def test_a_real_process_is_read_once(start):
    program = 'import time; print("ready", flush=True); time.sleep(600)'
    pid = start([sys.executable, "-c", program], **TORCHRUN)
    reader = RankFactsReader()
    key = (pid, start_time_of(pid))
    facts = reader.facts_of(key)
    assert (facts.rank, facts.master) == (9, "node01:29500")
    assert reader.facts_of(key) is facts
    assert reader.facts_of((pid, key[1] - 3600)) is None  # an earlier process with this pid
    reader.keep_only([])
    assert reader.facts_of(key) is not facts
