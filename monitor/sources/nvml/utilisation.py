"""Utilisation of one GPU by each of its processes, from the samples that the driver keeps."""

from collections.abc import Callable, Sequence
from typing import Any

from vramtop.estimator.common.records import replace

from ...snapshot.demand import DRIVER_FIGURES, Demand, ProcessFigure
from ...snapshot.faults import Fault
from ...snapshot.snapshot import GpuProcess, ProcessFigures
from .device_calls import DeviceCalls, RefusedError
from .nvml_errors import field_fault

SAMPLE_SECONDS = 2.0
"""Age of the oldest sample that counts: the driver takes about one a second of each process that runs kernels."""
_CALLS = ("nvmlDeviceGetProcessUtilization", "nvmlDeviceGetProcessesUtilizationInfo")
_WHAT: dict[ProcessFigure, str] = {
    "sm_percent": "the utilisation by process",
    "bandwidth_percent": "the memory bandwidth by process",
}
_MESSAGES = {
    "NO_SAMPLE": "the driver has no sample of this process for the last two seconds: it ran no kernel, or is not "
    "measured",
    "MIG_MODE": "the driver reports no utilisation by process in MIG mode",
}


def with_utilisation(
    processes: Sequence[GpuProcess],
    demand: Demand,
    calls: DeviceCalls,
    handle: Any,
    *,
    in_mig_mode: bool,
    now: Callable[[], float],
) -> tuple[GpuProcess, ...]:
    """Return the processes with their utilisation where that is in demand; no driver call is made if it is not.

    Args:
        processes: of one GPU.
        demand: what the screen in front shows.
        calls: of the GPU.
        handle: of the GPU.
        in_mig_mode: the GPU is divided into MIG devices.
        now: Unix seconds.
    """
    if DRIVER_FIGURES.isdisjoint(demand.process_figures) or not processes:
        return tuple(processes)
    samples: dict[int, Any] = {}
    code = "MIG_MODE" if in_mig_mode else "NO_SAMPLE"
    if not in_mig_mode:
        try:
            since = int((now() - SAMPLE_SECONDS) * 1e6)
            for sample in calls.query("process utilisation", _CALLS, handle, since):
                latest = samples.get(sample.pid)
                if latest is None or sample.timeStamp > latest.timeStamp:
                    samples[sample.pid] = sample
        except RefusedError as refused:
            code = "NO_SAMPLE" if refused.code == "NOT_FOUND" else refused.code
    unknown = ProcessFigures(faults=_faults(code))
    return tuple(replace(process, figures=_figures(samples.get(process.pid)) or unknown) for process in processes)


def _figures(sample: Any) -> ProcessFigures | None:
    if sample is None:
        return None
    if sample.smUtil > 100 or sample.memUtil > 100:  # seen in samples of processes that have ended
        return ProcessFigures(faults=_faults("IMPLAUSIBLE"))
    return ProcessFigures(sm_percent=float(sample.smUtil), bandwidth_percent=float(sample.memUtil))


def _faults(code: str) -> tuple[Fault, ...]:
    return tuple(
        Fault(field=figure, code=code, message=_MESSAGES[code])
        if code in _MESSAGES
        else field_fault(figure, code, what=what)
        for figure, what in _WHAT.items()
    )
