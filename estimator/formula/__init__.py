"""The closed form: a budget from a job and a model's shape by arithmetic alone, in milliseconds, without torch.

Lives here: one module per component of a budget; ``plan`` holds their inputs, ``closed_form`` adds them up.
Callers: ``estimation``; ``trace`` for what tracing cannot see (CUDA context, NCCL).
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .assumptions import card_warnings as card_warnings, warnings as warnings
    from .checkpoint_size import checkpoint_bytes as checkpoint_bytes
    from .closed_form import JobFamilies as JobFamilies
    from .cuda_overhead import (
        context_bytes as context_bytes,
        nccl_bytes as nccl_bytes,
        workspace_bytes as workspace_bytes,
    )
    from .host_memory import ASSUMPTION as ASSUMPTION, host_need as host_need
    from .plan import free_for_modules as free_for_modules
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "assumptions": "card_warnings warnings",
            "checkpoint_size": "checkpoint_bytes",
            "closed_form": "JobFamilies",
            "cuda_overhead": "context_bytes nccl_bytes workspace_bytes",
            "host_memory": "ASSUMPTION host_need",
            "plan": "free_for_modules",
        },
    )
