"""Input and output of a preflight check: the job with the facts about its machine, and the form of a result.

Lives here: ``CheckContext``, ``Check``, ``CheckResult``, and the GPUs that the ranks will use.
Callers: ``checks``, ``prepare`` and ``run_checks``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .check import (
        PYTHON_ELSEWHERE as PYTHON_ELSEWHERE,
        Check as Check,
        CheckJson as CheckJson,
        CheckResult as CheckResult,
        CheckStatus as CheckStatus,
    )
    from .check_context import CheckContext as CheckContext, LazyValue as LazyValue
    from .target_gpus import (
        assign_gpus as assign_gpus,
        assigned_gpu_indices as assigned_gpu_indices,
        target_devices as target_devices,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "check": "Check CheckJson CheckResult CheckStatus PYTHON_ELSEWHERE",
            "check_context": "CheckContext LazyValue",
            "target_gpus": "assign_gpus assigned_gpu_indices target_devices",
        },
    )
