"""Determines the GPU of a process: where NVML lists it, else where its environment variables put it."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..snapshot.snapshot import GpuReading
from .gpu_environment import GpuEnvironment
from .visible_devices import DeviceOrder, entry_kind, find_device, parse_visible_devices

Certainty = Literal["certain", "likely", "unsure"]
_NO_GPUS = ("none", "void")
"""Values of NVIDIA_VISIBLE_DEVICES for a container without GPUs."""


class GpuAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of a process."""

    gpu: int | None
    """NVML index; None: unknown, or the process has none."""
    origin: str
    """Where this was read: ``NVML``, ``CUDA_VISIBLE_DEVICES, LOCAL_RANK``."""
    certainty: Certainty
    """Certain: the driver reports it. Likely: all launchers follow this convention. Unsure: see ``note``."""
    note: str | None = None


def assign_gpu(
    environment: GpuEnvironment,
    gpus: Sequence[GpuReading] | None,
    *,
    pid: int,
    start_time: float | None = None,
) -> GpuAssignment:
    """Return the GPU of a process.

    Args:
        environment: variables of its environment.
        gpus: this machine's GPUs; None: they cannot be read, and an index is taken as it is.
        pid: pid of the process.
        start_time: its start time, which tells it from a later process with the same pid.
    """
    used = _used_bytes_by_gpu(gpus or (), pid, start_time)
    from_environment = _assign_by_environment(environment, gpus)
    if not used:
        return from_environment
    known = None not in used.values()
    own = from_environment.gpu
    if known or own not in used:
        own = max(used, key=lambda index: used[index] or 0)
    if len(used) == 1:
        return GpuAssignment(gpu=own, origin="NVML", certainty="certain")
    unknown = "it holds memory on several GPUs, and the driver does not report how much on each"
    return GpuAssignment(
        gpu=own,
        origin="NVML",
        certainty="likely" if known else "unsure",
        note="it holds memory on several GPUs; the GPU where it holds the most is used" if known else unknown,
    )


def visible_gpus(environment: GpuEnvironment, gpus: Sequence[GpuReading]) -> tuple[tuple[int, ...], str | None]:
    """Return the GPUs that a process with this environment may use, in the order in which CUDA numbers them for it.

    Returns:
        NVML indices (of all GPUs if CUDA_VISIBLE_DEVICES is not set), and why they are uncertain.
    """
    text = environment.cuda_visible_devices
    if text is None:
        return tuple(gpu.index for gpu in gpus), None
    devices = parse_visible_devices(text, [gpu.index for gpu in gpus], gpus)
    uncertainty = None if entry_kind(text) != "index" else _order_uncertainty(environment, gpus)
    return tuple(index for index in devices if index is not None), uncertainty


def visible_mig_devices(environment: GpuEnvironment, gpus: Sequence[GpuReading]) -> tuple[str, ...]:
    """Return the UUIDs of the MIG devices that CUDA_VISIBLE_DEVICES names; empty if it names whole GPUs."""
    uuids = {device.uuid.lower(): device.uuid for gpu in gpus for device in gpu.mig or ()}
    named = [entry.strip().lower() for entry in (environment.cuda_visible_devices or "").split(",")]
    return tuple(dict.fromkeys(uuids[name] for name in named if name in uuids))


def _used_bytes_by_gpu(gpus: Sequence[GpuReading], pid: int, start_time: float | None) -> dict[int, int | None]:
    return {
        gpu.index: process.used_bytes
        for gpu in gpus
        for process in gpu.processes or ()
        if process.pid == pid and (None in (start_time, process.start_time) or process.start_time == start_time)
    }


def _assign_by_environment(environment: GpuEnvironment, gpus: Sequence[GpuReading] | None) -> GpuAssignment:
    visible, local_rank = environment.cuda_visible_devices, environment.local_rank
    variables = {
        "NVIDIA_VISIBLE_DEVICES": environment.nvidia_visible_devices if environment.own_numbering else None,
        "CUDA_VISIBLE_DEVICES": visible,
        "LOCAL_RANK": local_rank,
    }
    origin = ", ".join(name for name, value in variables.items() if value is not None) or "nothing"

    def assigned(gpu: int | None, note: str | None = None, *, certainty: Certainty | None = None) -> GpuAssignment:
        return GpuAssignment(gpu=gpu, origin=origin, certainty=certainty or ("unsure" if note else "likely"), note=note)

    devices, uncertainty = _container_order(environment, gpus)
    by_uuid = visible is not None and entry_kind(visible) != "index"
    if visible is not None:
        devices = parse_visible_devices(visible, devices, gpus)
        if not devices:
            hidden = visible.strip() in ("", "-1")  # the usual ways to hide all GPUs
            note = f"CUDA_VISIBLE_DEVICES is {visible!r}, which names no GPU here"
            return assigned(None, note, certainty="likely" if hidden else "unsure")
    at = 0 if local_rank is None or (devices is not None and len(devices) == 1) else local_rank
    if devices is not None and at >= len(devices):
        return assigned(None, f"LOCAL_RANK is {at}, and it sees {len(devices)} GPUs")
    gpu = at if devices is None else devices[at]
    if uncertainty is not None and not by_uuid:
        return assigned(None, uncertainty)
    if gpu is None:
        return assigned(None, f"vramtop cannot find the GPU {visible!r}")
    uncertainty = None if by_uuid else _order_uncertainty(environment, gpus)
    if uncertainty is None and local_rank is None and (devices is None or len(devices) > 1):
        uncertainty = "it is not known which of its visible GPUs it uses; this is the first"
    return assigned(gpu, uncertainty)


def _container_order(environment: GpuEnvironment, gpus: Sequence[GpuReading] | None) -> tuple[DeviceOrder, str | None]:
    """Return the GPUs that the process could use without CUDA_VISIBLE_DEVICES, and why they are unknown.

    Inside a container they are numbered from 0, in NVML's order, over those that the container was given.
    """
    order = None if gpus is None else [gpu.index for gpu in gpus]
    given = (environment.nvidia_visible_devices or "").strip()
    if not environment.own_numbering or given == "all":
        return order, None
    if not given or given in _NO_GPUS or gpus is None:
        return None, "it runs in a container, and the container's GPUs are not known"
    indices = {find_device(entry.partition(":")[0], order, gpus) for entry in given.split(",")}
    if None in indices:
        return None, f"it runs in a container that was given {given!r}, which names no GPU here"
    return sorted(index for index in indices if index is not None), None


def _order_uncertainty(environment: GpuEnvironment, gpus: Sequence[GpuReading] | None) -> str | None:
    """Return why CUDA's index of a GPU may differ from NVML's: by default CUDA puts the fastest GPU first."""
    if environment.cuda_device_order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus or ()}) <= 1:
        return None
    return "CUDA lists the fastest of these unequal GPUs first, but NVML does not (CUDA_DEVICE_ORDER is not PCI_BUS_ID)"
