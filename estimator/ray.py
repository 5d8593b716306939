"""Bundles of a Ray placement group, one for each rank of a job, by its predicted memory.

Sources: Ray 2.60, ``python/ray/util/placement_group.py`` (a bundle is a dictionary of resources), its documentation
"Resources" (``memory`` is in bytes; a task or actor takes a part of a GPU, or whole ones, and Ray does not enforce
the memory of a part) and ``python/ray/_common/utils.py`` (a node has one ``accelerator_type:H100``, of which a task
takes 0.001).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .common.errors import InputError
from .common.sizes import format_gib

if TYPE_CHECKING:
    from .budget import Budget

_TYPE_SHARE = 0.001
_STEP = 0.01
"""Parts of a GPU are rounded up to this; Ray knows ten thousandths."""


def ray_bundles(
    budget: Budget, *, accelerator_type: str | None = None, cpus: float = 1, shared_gpu_bytes: int | None = None
) -> list[dict[str, float]]:
    """Return the bundles of a Ray placement group for a job, one per rank, in the order of the ranks.

    Args:
        budget: of the job.
        accelerator_type: Ray's name of the GPU, such as ``H100`` (``ray.util.accelerators``); None: any.
        cpus: processors of a rank; those of its data loader are not predicted.
        shared_gpu_bytes: memory of a GPU that ranks may share: each then takes the part that is the upper bound of its
            need. None: each takes a whole GPU.

    Raises:
        InputError: a rank needs more than such a GPU has.
    """
    # any of the ranks may be alone on its machine, and hold what one rank of a machine holds
    ram = {} if budget.host is None else {"memory": float(budget.host.high_bytes(1))}
    kind = {} if accelerator_type is None else {f"accelerator_type:{accelerator_type}": _TYPE_SHARE}
    return [
        {"CPU": float(cpus), "GPU": _share(need.high_bytes, shared_gpu_bytes), **ram, **kind} for need in budget.ranks
    ]


def _share(need_bytes: int, gpu_bytes: int | None) -> float:
    if gpu_bytes is None:
        return 1.0
    if need_bytes > gpu_bytes:
        raise InputError(f"a rank may need {format_gib(need_bytes)} GiB, but the GPU has {format_gib(gpu_bytes)}")
    return min(1.0, round(math.ceil(need_bytes / gpu_bytes / _STEP) * _STEP, 2))
