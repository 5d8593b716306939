"""Estimates made by a worker process that has torch: the traced step and the exact parameter count.

Lives here: choosing an interpreter, talking to the worker, caching its answers, and turning them into budgets.
Callers: ``estimation``; preflight and doctor for interpreters and installed packages.
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .allocator_report import allocator_settings as allocator_settings
    from .exact_optimizer import exact_budget as exact_budget
    from .exact_parameter_count import exact_inventory as exact_inventory
    from .installed_packages import (
        InstalledPackages as InstalledPackages,
        TorchBuild as TorchBuild,
        torch_build as torch_build,
    )
    from .interpreters import (
        Interpreter as Interpreter,
        choose_interpreter as choose_interpreter,
        find_interpreters as find_interpreters,
        probe_interpreter as probe_interpreter,
    )
    from .start_python import safe_environment as safe_environment
    from .traced_budget import with_known_trained as with_known_trained, with_reported_count as with_reported_count
    from .worker_cache import kept_result as kept_result
    from .worker_pool import POOL as POOL, keep_idle_workers as keep_idle_workers
    from .worker_process import Worker as Worker, beside_worker as beside_worker, convert_answer as convert_answer
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "allocator_report": "allocator_settings",
            "exact_optimizer": "exact_budget",
            "exact_parameter_count": "exact_inventory",
            "installed_packages": "InstalledPackages torch_build TorchBuild",
            "interpreters": "Interpreter choose_interpreter find_interpreters probe_interpreter",
            "start_python": "safe_environment",
            "traced_budget": "with_known_trained with_reported_count",
            "worker_cache": "kept_result",
            "worker_pool": "POOL keep_idle_workers",
            "worker_process": "Worker beside_worker convert_answer",
        },
    )
