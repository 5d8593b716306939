"""Reads which run a process is a rank of from its environment, so that ranks on several hosts are found to be one run.

Sources: torch 2.13 ``torch/distributed/elastic/agent/server/local_elastic_agent.py`` (variables of torchrun's workers;
the run id is ``none`` unless given), srun(1) of Slurm, the environments of Open MPI and PMIx, LeaderWorkerSet
``api/leaderworkerset/v1/leaderworkerset_types.go``, Ray ``src/ray/raylet/worker_pool.cc`` (RAY_JOB_ID) and the command
line of the raylet that started the worker, which names the address of its cluster.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vramtop.estimator.common.limits import LimitError

from ..fleet.fleet import RankFacts
from ..host.process_info import parse_rank
from ..host.processes import is_same_start, read_command_line, read_environ, read_stat, start_time_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..snapshot.snapshot import ProcessKey

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_POD_GROUPS = ("VRAMTOP_POD_GROUP", "LWS_LEADER_ADDRESS")
"""Labels of a pod are not in the environment of its processes: a manifest may pass one on under the first name."""
_NO_RENDEZVOUS_ID = "none"
"""Run id of torchrun where the user gives none."""
_CLUSTER = re.compile(r"--gcs-address=([^\s\0]+)")
_LOOPBACK = ("127.", "localhost")
_MAX_CHARACTERS = 200


class RankFactsReader:
    """Reads each process once; it is asked about the same ones with every reading."""

    def __init__(self) -> None:
        self._known: dict[ProcessKey, RankFacts | None] = {}

    def facts_of(self, key: ProcessKey) -> RankFacts | None:
        """Return what the environment of a process says of its run; None: it says nothing, or is hidden."""
        if key not in self._known:
            self._known[key] = _read(*key)
        return self._known[key]

    def keep_only(self, keys: Iterable[ProcessKey]) -> None:
        """Forget the processes that are not among these."""
        present = set(keys)
        if len(self._known) > len(present):
            self._known = {key: facts for key, facts in self._known.items() if key in present}


def rank_facts(environ: Mapping[str, str], *, ray_cluster: str | None = None) -> RankFacts | None:
    """Return what an environment says of the run that its process is a rank of; None: it is a rank of none.

    Args:
        environ: of the process.
        ray_cluster: address of the Ray cluster that started it; None: none did, or its address is of one host only.
    """
    in_step = "SLURM_STEP_ID" in environ  # without, a process of the batch script has the variables of a task, too
    rank = _number(environ, *_RANKS, *(["SLURM_PROCID"] if in_step else []))
    local_rank = _number(environ, *_LOCAL_RANKS, *(["SLURM_LOCALID"] if in_step else []))
    world_size = _number(environ, *_WORLD_SIZES, *(["SLURM_STEP_NUM_TASKS"] if in_step else []))
    pod_group, ray_job = _first_text(environ, *_POD_GROUPS), _text(environ, "RAY_JOB_ID")
    if rank is None and local_rank is None and pod_group is None and (ray_job is None or ray_cluster is None):
        return None
    address, port = _text(environ, "MASTER_ADDR"), _text(environ, "MASTER_PORT")
    run_id, namespace = _text(environ, "TORCHELASTIC_RUN_ID"), _text(environ, "PMIX_NAMESPACE")
    slurm_job = _text(environ, "SLURM_JOB_ID")
    step = environ["SLURM_STEP_ID"] if in_step else "batch"
    return RankFacts(
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        rendezvous=run_id if run_id and run_id != _NO_RENDEZVOUS_ID else namespace,
        master=f"{address}:{port}" if address and port else None,
        slurm_job=f"{slurm_job}.{step}"[:_MAX_CHARACTERS] if slurm_job else None,
        pod_group=pod_group,
        ray_job=f"{ray_cluster} {ray_job}" if ray_job and ray_cluster else None,
    )


def _read(pid: int, start_time: float | None) -> RankFacts | None:
    started = start_time_of(pid)
    if start_time is not None and (started is None or not is_same_start(started, start_time)):
        return None  # another process has its pid by now
    try:
        environ = read_environ(pid)
    except (OSError, LimitError):
        return None
    return rank_facts(environ, ray_cluster=_ray_cluster(pid) if "RAY_JOB_ID" in environ else None)


def _ray_cluster(pid: int) -> str | None:
    """Return the address of a Ray worker's cluster, from the command line of the raylet that started it."""
    stat = read_stat(pid)
    try:
        command = read_command_line(stat.parent, cut=True) if stat and stat.parent else []
    except OSError:
        return None
    found = _CLUSTER.search("\0".join(command))
    return None if found is None or found[1].startswith(_LOOPBACK) else found[1][:_MAX_CHARACTERS]


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    return next((rank for name in names if (rank := parse_rank(environ.get(name))) is not None), None)


def _text(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(name, "").strip()
    return value[:_MAX_CHARACTERS] if value and value.isprintable() else None


def _first_text(environ: Mapping[str, str], *names: str) -> str | None:
    return next((text for name in names if (text := _text(environ, name))), None)
