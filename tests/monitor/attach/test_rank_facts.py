"""What the environment of a process says of its run."""

import os
import sys

import pytest

from vramtop.monitor.attach.rank_facts import RankFactsReader, rank_facts
from vramtop.monitor.host.processes import start_time_of

TORCHRUN = {
    "RANK": "9",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "16",
    "MASTER_ADDR": "node01",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
}


def test_torchrun_and_its_rendezvous_id():
    facts = rank_facts(TORCHRUN)
    assert (facts.rank, facts.local_rank, facts.world_size) == (9, 1, 16)
    assert facts.master == "node01:29500"
    assert facts.rendezvous is None
    assert rank_facts({**TORCHRUN, "TORCHELASTIC_RUN_ID": "sft-3"}).rendezvous == "sft-3"


def test_a_task_of_a_slurm_step():
    step = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
    facts = rank_facts({**step, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"})
    assert (facts.rank, facts.local_rank, facts.world_size, facts.slurm_job) == (3, 1, 4, "4711.0")
    assert rank_facts(step) is None  # a program of the batch script is no task, whatever it inherits
    inside = rank_facts({**step, **TORCHRUN})
    assert (inside.rank, inside.world_size, inside.slurm_job) == (9, 16, "4711.batch")


def test_open_mpi():
    mpi = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
    facts = rank_facts({**mpi, "PMIX_NAMESPACE": "prterun-node01-99@1"})
    assert (facts.rank, facts.world_size, facts.local_rank, facts.rendezvous) == (2, 4, 0, "prterun-node01-99@1")


def test_a_group_of_pods_and_a_ray_job_need_no_rank():
    assert rank_facts({"LWS_LEADER_ADDRESS": "tune-0.tune.ml"}).pod_group == "tune-0.tune.ml"
    named = {"VRAMTOP_POD_GROUP": "tune-7", "LWS_LEADER_ADDRESS": "tune-0.tune.ml"}
    assert rank_facts(named).pod_group == "tune-7"
    assert rank_facts({"RAY_JOB_ID": "01000000"}, ray_cluster="10.0.0.1:6379").ray_job == "10.0.0.1:6379 01000000"
    assert rank_facts({"RAY_JOB_ID": "01000000"}) is None  # every cluster begins to count at 1


@pytest.mark.parametrize(
    "environ", [{}, {"WORLD_SIZE": "8"}, {"RANK": "-1"}, {"RANK": "x"}, {"MASTER_ADDR": "a", "MASTER_PORT": "1"}]
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


def test_the_cluster_of_a_ray_worker_is_that_of_its_raylet(start):
    """The raylet's command line names the address of its cluster; its worker has the number of the job."""
    worker = 'import time; print("ready", flush=True); time.sleep(600)'
    raylet = f"import os, subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"
    environ = {"RAY_JOB_ID": "01000000"}
    pid = start([sys.executable, "-c", raylet, "--gcs-address=10.0.0.1:6379"], **environ)
    child = int(open(f"/proc/{pid}/task/{pid}/children").read().split()[0])  # noqa: SIM115, PTH123 - of /proc
    assert RankFactsReader().facts_of((child, None)).ray_job == "10.0.0.1:6379 01000000"
    assert RankFactsReader().facts_of((os.getpid(), None)) is None
