"""Bytes that the allocator holds beyond what is allocated at the peak, from a replay of two steps."""

from collections import OrderedDict
from typing import Any

import msgspec

from ...worker.memory.allocator_settings import AllocatorSettings
from ..peak_moments import highest_phase, phase_peaks
from ..rank_memory import RankMemory
from .machine import Machine
from .steps import TrainingRun

_KEPT = 512
_known: OrderedDict[Any, int] = OrderedDict()
"""Results of the last replays, by all that they depend on: screens ask for the same job again and again."""


def replayed_slack(rank: RankMemory, conf: str | None = None) -> int:
    """Return the highest reserved bytes of two training steps, less their highest allocated bytes.

    The two need not be of one moment: what a phase has reserved stays reserved, since nobody calls ``empty_cache``.

    Args:
        rank: of a job that trains.
        conf: the allocator's settings, as in ``PYTORCH_CUDA_ALLOC_CONF``; None: those that the job's framework makes.
    """
    job = rank.job
    conf = job.allocator_conf if conf is None else conf
    settings = msgspec.json.encode((job.training, job.lora, job.parallel, job.software, job.model.attention))
    key = settings, rank.stage, rank.arch, job.optimizer, rank.tied, conf
    found = _known.get(key)
    if found is None:
        found = _known[key] = _replayed_slack(rank, conf)
        if len(_known) > _KEPT:
            _known.popitem(last=False)
    return found


def _replayed_slack(rank: RankMemory, conf: str | None) -> int:
    machine = Machine(AllocatorSettings.from_conf(conf))
    run = TrainingRun(rank, machine)
    run.load()
    run.train()
    allocator, stated = machine.allocator, highest_phase(phase_peaks(rank)).allocated_bytes
    slack = allocator.reserved - allocator.peak_allocated
    # a stream that allocates more than the closed form says has something that is not kept
    return round(slack * min(1.0, stated / max(1, allocator.peak_allocated)))
