"""Fit: whether a pending job fits the GPUs and the host's RAM, and on which GPUs its ranks are placed.

Lives here: ``check_fit`` (budget and available memory in, ``FitResult`` out) and the memory available on each device.
Callers: ``board``, ``preflight``, the fit check screen and the ``fit`` command.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .device_capacity import (
        DeviceCapacity as DeviceCapacity,
        commit as commit,
        count_devices as count_devices,
        device_capacities as device_capacities,
        unusable_reason as unusable_reason,
    )
    from .fit_check import check_fit as check_fit, with_host_memory as with_host_memory
    from .fit_result import DeviceVerdict as DeviceVerdict, FitResult as FitResult
    from .json_types import FitResultJson as FitResultJson
    from .verdict import VERDICTS_BEST_FIRST as VERDICTS_BEST_FIRST, Verdict as Verdict
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "device_capacity": "commit count_devices device_capacities DeviceCapacity unusable_reason",
            "fit_check": "check_fit with_host_memory",
            "fit_result": "DeviceVerdict FitResult",
            "json_types": "FitResultJson",
            "verdict": "Verdict VERDICTS_BEST_FIRST",
        },
    )
