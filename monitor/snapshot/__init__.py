"""Snapshots: one immutable reading of all GPUs and processes, and the history of readings.

Lives here: the plain data that every source produces, and what follows from it alone.
Callers: anyone above the estimator.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .clock_reasons import ClockReason as ClockReason
    from .demand import (
        DRIVER_FIGURES as DRIVER_FIGURES,
        HOST_FIGURES as HOST_FIGURES,
        CurrentDemand as CurrentDemand,
        Demand as Demand,
        ProcessFigure as ProcessFigure,
    )
    from .fault import (
        ASLEEP as ASLEEP,
        HOST_MEMORY as HOST_MEMORY,
        NO_ANSWER as NO_ANSWER,
        NO_DRIVER as NO_DRIVER,
        NOT_LISTED as NOT_LISTED,
        Fault as Fault,
    )
    from .field_types import resolve_annotations as resolve_annotations
    from .gpu_activity import GpuFigure as GpuFigure
    from .gpu_details import (
        DetailLevel as DetailLevel,
        EccErrors as EccErrors,
        GpuDetails as GpuDetails,
        NvLinks as NvLinks,
        PcieLink as PcieLink,
        RemappedRows as RemappedRows,
    )
    from .gpu_list import gpu_list as gpu_list
    from .host_load import HostLoad as HostLoad
    from .memory_history import (
        MemoryHistory as MemoryHistory,
        MemorySample as MemorySample,
        usual_interval as usual_interval,
    )
    from .mig_devices import (
        MigDevice as MigDevice,
        device_of as device_of,
        mig_label as mig_label,
        processes_by_device as processes_by_device,
    )
    from .process_figures import FIRST_SAMPLE as FIRST_SAMPLE, ProcessFigures as ProcessFigures
    from .snapshot import (
        MAX_UNIX_SECONDS as MAX_UNIX_SECONDS,
        AllocatorCounters as AllocatorCounters,
        ComputeMode as ComputeMode,
        DeviceIndex as DeviceIndex,
        FinalCounters as FinalCounters,
        GpuKey as GpuKey,
        GpuProcess as GpuProcess,
        GpuReading as GpuReading,
        HistoryKey as HistoryKey,
        MigReading as MigReading,
        ProcessCounters as ProcessCounters,
        ProcessKey as ProcessKey,
        ProcessType as ProcessType,
        Snapshot as Snapshot,
        Source as Source,
        WatchedJob as WatchedJob,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "clock_reasons": "ClockReason",
            "demand": "CurrentDemand Demand DRIVER_FIGURES HOST_FIGURES ProcessFigure",
            "fault": "ASLEEP Fault HOST_MEMORY NO_ANSWER NO_DRIVER NOT_LISTED",
            "field_types": "resolve_annotations",
            "gpu_activity": "GpuFigure",
            "gpu_details": "DetailLevel EccErrors GpuDetails NvLinks PcieLink RemappedRows",
            "gpu_list": "gpu_list",
            "memory_history": "MemoryHistory MemorySample usual_interval",
            "host_load": "HostLoad",
            "mig_devices": "device_of mig_label MigDevice processes_by_device",
            "process_figures": "FIRST_SAMPLE ProcessFigures",
            "snapshot": (
                "AllocatorCounters ComputeMode DeviceIndex FinalCounters GpuKey GpuProcess GpuReading "
                "HistoryKey MAX_UNIX_SECONDS MigReading ProcessCounters "
                "ProcessKey ProcessType Snapshot Source WatchedJob"
            ),
        },
    )
