"""What torch calls active beyond what is allocated, which some tools print as the memory that is in use.

``active_bytes`` counts blocks until their last stream is done with them (``record_stream``), such as FSDP1's gathered
weights after their release; ``allocated_bytes`` does not (c10/cuda/CUDACachingAllocator.cpp, ``free_block``).
"""

from functools import lru_cache

import msgspec

from vramtop.estimator.formula.plan import make_plan
from vramtop.estimator.formula.rank_memory import rank_memory
from vramtop.estimator.formula.reserved.machine import Machine
from vramtop.estimator.formula.reserved.steps import TrainingRun
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import job_from_mapping
from vramtop.estimator.model.count_parameters import count_parameters
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.read_architecture import read_architecture
from vramtop.estimator.worker.memory.allocator import CachingAllocator
from vramtop.estimator.worker.memory.allocator_settings import AllocatorSettings


class _Watched(CachingAllocator):
    """The allocator's model, with the highest active bytes."""

    peak_active = 0

    def malloc(self, key, size, stream=0):
        super().malloc(key, size, stream)
        if self.allocated > 0.9 * self.peak_allocated:
            waiting = sum(block.size for block in self._waiting.values())  # that another stream uses
            self.peak_active = max(self.peak_active, self.allocated + waiting)


def waiting_bytes(job: Job) -> int:
    """Return how far the highest active bytes of two replayed steps lie above the highest allocated ones."""
    return _waiting_bytes(msgspec.json.encode(job))


@lru_cache(maxsize=64)
def _waiting_bytes(encoded: bytes) -> int:
    job = job_from_mapping(msgspec.json.decode(encoded), where="job")
    model = resolve_model(job.model)
    arch = read_architecture(model.config, job.model.task, where=model.where)
    plan = make_plan(job, arch, count_parameters(arch))
    machine = Machine(AllocatorSettings())
    machine.allocator = watched = _Watched(AllocatorSettings())
    TrainingRun(rank_memory(plan, plan.distinct_stages[-1]), machine).train()
    return watched.peak_active - watched.peak_allocated
