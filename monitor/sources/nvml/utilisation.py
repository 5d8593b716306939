"""Utilisation of one GPU by each of its processes, from the samples that the driver keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.records import replace

from ...snapshot.demand import DRIVER_FIGURES, Demand, ProcessFigure
from ...snapshot.faults import Fault
from ...snapshot.snapshot import GpuProcess, ProcessFigures
from .device_calls import DeviceCalls, RefusedError
from .nvml_errors import field_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
    if not demand.includes_any(DRIVER_FIGURES):
        return tuple(processes)
    wanted = [demand.figures_of(process) & DRIVER_FIGURES for process in processes]
    if not any(wanted):
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
    unknown = {figures: ProcessFigures(faults=_faults(figures, code)) for figures in set(wanted)}
    return tuple(
        replace(process, figures=_figures(samples.get(process.pid), figures) or unknown[figures])
        if figures
        else process
        for process, figures in zip(processes, wanted, strict=True)
    )


def _figures(sample: Any, wanted: frozenset[ProcessFigure]) -> ProcessFigures | None:
    if sample is None:
        return None
    values: dict[ProcessFigure, int] = {"sm_percent": sample.smUtil, "bandwidth_percent": sample.memUtil}
    if any(value > 100 for value in values.values()):  # seen in samples of processes that have ended
        return ProcessFigures(faults=_faults(wanted, "IMPLAUSIBLE"))
    known = {figure: float(value) for figure, value in values.items() if figure in wanted}
    return ProcessFigures(sm_percent=known.get("sm_percent"), bandwidth_percent=known.get("bandwidth_percent"))


def _faults(figures: frozenset[ProcessFigure], code: str) -> tuple[Fault, ...]:
    return tuple(
        Fault(field=figure, code=code, message=_MESSAGES[code])
        if code in _MESSAGES
        else field_fault(figure, code, what=_WHAT[figure])
        for figure in sorted(figures)
    )
