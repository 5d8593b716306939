"""NVML through pynvml: driver calls with timeouts, memory, MIG devices, processes, and errors as sentences.

Lives here: the only code that calls the driver.
Callers: ``sources``, ``attach.gpu_assignment``, doctor and preflight.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .call_threads import CallThread as CallThread, shut_down as shut_down
    from .device_calls import (
        DeviceCalls as DeviceCalls,
        DeviceLostError as DeviceLostError,
        RefusedError as RefusedError,
    )
    from .device_threads import FIRST_READ_TIMEOUT_SECONDS as FIRST_READ_TIMEOUT_SECONDS
    from .error_messages import DRIVER_VERSION_FILE as DRIVER_VERSION_FILE, no_driver_error as no_driver_error
    from .memory import MemoryFigures as MemoryFigures, implausible as implausible
    from .nvml_source import NvmlSource as NvmlSource
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "call_threads": "CallThread shut_down",
            "device_calls": "DeviceCalls DeviceLostError RefusedError",
            "device_threads": "FIRST_READ_TIMEOUT_SECONDS",
            "error_messages": "DRIVER_VERSION_FILE no_driver_error",
            "memory": "implausible MemoryFigures",
            "nvml_source": "NvmlSource",
        },
    )
