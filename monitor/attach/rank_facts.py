"""Reads which run a process is a rank of from its environment, so that ranks on several hosts are found to be one run.

Sources: torch 2.13 ``torch/distributed/elastic/agent/server/local_elastic_agent.py`` (variables of torchrun's workers),
srun(1) of Slurm, the environments of Open MPI and PMI.
"""

from collections.abc import Iterable, Mapping

from vramtop.estimator.common.limits import LimitError

from ..fleet.fleet import RankFacts
from ..host.process_info import parse_rank
from ..host.process_stat import is_same_start, read_environ, start_time_of
from ..snapshot.snapshot import ProcessKey

_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
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


def rank_facts(environ: Mapping[str, str]) -> RankFacts | None:
    """Return what an environment says of the run that its process is a rank of; None: it is a rank of none."""
    in_step = "SLURM_STEP_ID" in environ  # without, a process of the batch script has the variables of a task, too
    rank = _number(environ, *_RANKS, *(["SLURM_PROCID"] if in_step else []))
    if rank is None:
        return None
    master = ":".join(environ.get(name, "").strip() for name in ("MASTER_ADDR", "MASTER_PORT"))
    is_whole = not master.startswith(":") and not master.endswith(":") and master.isprintable()
    return RankFacts(
        rank=rank,
        world_size=_number(environ, *_WORLD_SIZES, *(["SLURM_STEP_NUM_TASKS"] if in_step else [])),
        master=master[:_MAX_CHARACTERS] if is_whole else None,
    )


def _read(pid: int, start_time: float | None) -> RankFacts | None:
    started = start_time_of(pid)
    if start_time is not None and (started is None or not is_same_start(started, start_time)):
        return None  # another process has its pid by now
    try:
        return rank_facts(read_environ(pid))
    except (OSError, LimitError):
        return None


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    return next((rank for name in names if (rank := parse_rank(environ.get(name))) is not None), None)
