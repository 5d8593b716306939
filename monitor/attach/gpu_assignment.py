"""Determines the GPU of a process: where NVML lists it, else where its environment variables put it.

CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES are parsed as CUDA and the container toolkit do. Sources: the CUDA C++
Programming Guide, "CUDA Environment Variables"; on repeated and mixed entries, which the guide leaves out, torch's
``_parse_visible_devices`` (torch/cuda/__init__.py).
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ..snapshot.snapshot import GpuReading

Certainty = Literal["certain", "likely", "unsure"]
_NO_GPUS = ("none", "void")
"""Values of NVIDIA_VISIBLE_DEVICES for a container without GPUs."""
DeviceOrder = Sequence[int | None] | None
"""NVML indices in the order in which CUDA numbers the GPUs; an entry None is unknown; None: the same order."""
_NUMBER = re.compile(r"\+?\d{1,9}(?!\d)")
_DEVICE_FILE = re.compile(r"nvidia\d+")


class GpuEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of a process's environment that decide which GPU it uses."""

    cuda_visible_devices: str | None = None
    cuda_device_order: str | None = None
    local_rank: int | None = None
    nvidia_visible_devices: str | None = None
    own_numbering: bool = False
    """The process runs in a container that vramtop does not run in, which numbers its GPUs from 0."""

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        local_rank: int | None,
        own_numbering: bool = False,
    ) -> "GpuEnvironment":
        """Read the variables of a process's environment.

        Args:
            environ: the environment with which the program started.
            local_rank: its rank on this machine; None: it has none.
            own_numbering: it runs in another container than vramtop, which numbers its GPUs from 0.
        """
        return cls(
            cuda_visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
            cuda_device_order=environ.get("CUDA_DEVICE_ORDER"),
            local_rank=local_rank,
            nvidia_visible_devices=environ.get("NVIDIA_VISIBLE_DEVICES"),
            own_numbering=own_numbering,
        )


def has_own_gpu_numbering(root: Path | None, *, here: Path = Path("/")) -> bool:
    """Return True if a process runs in a container that was given only some of this machine's GPUs.

    Args:
        root: root folder of the process as it is reached from here; None: the process shares ours.
        here: our own root folder.
    """
    if root is None:
        return False
    theirs, ours = _device_files(root), _device_files(here)
    return not ours or theirs != ours


def _device_files(root: Path) -> frozenset[str]:
    try:
        return frozenset(name for name in os.listdir(root / "dev") if _DEVICE_FILE.fullmatch(name))  # noqa: PTH208
    except OSError:
        return frozenset()


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


def parse_visible_devices(text: str, order: DeviceOrder, gpus: Sequence[GpuReading] | None) -> list[int | None]:
    """Return the NVML indices that CUDA_VISIBLE_DEVICES names; None for an entry whose GPU is unknown.

    The first invalid entry ends the list; a repeated entry empties it; entries of different kinds do not mix.

    Args:
        text: value of the variable.
        order: GPUs that the process could use without the variable.
        gpus: this machine's GPUs; None: they cannot be read.
    """
    kind = entry_kind(text)
    devices: list[int | None] = []
    names: set[str] = set()
    for entry in map(str.strip, text.split(",")):
        number = _NUMBER.match(entry)
        if entry_kind(entry) != kind or (kind == "index" and number is None):
            break
        name = str(int(number[0])) if number else entry
        if name in names:
            return []
        names.add(name)
        device = find_device(entry, order, gpus)
        if device is None and kind != "MIG" and gpus is not None:
            break
        devices.append(device)
    return devices


def find_device(entry: str, order: DeviceOrder, gpus: Sequence[GpuReading] | None) -> int | None:
    """Return the NVML index of the GPU that an entry names; None if there is no such GPU, or more than one."""
    entry = entry.strip()
    if entry.startswith("MIG-"):
        name = entry.removeprefix("MIG-")
        if name.startswith("GPU-"):  # before R470: MIG-GPU-UUID/GPU instance/compute instance
            return _find_by_uuid(name.partition("/")[0], gpus)
        return next((gpu.index for gpu in gpus or () if any(entry == device.uuid for device in gpu.mig or ())), None)
    if entry.startswith("GPU-"):
        return _find_by_uuid(entry, gpus)
    number = _NUMBER.match(entry)
    if number is None:
        return None
    index = int(number[0])
    if order is None:
        return index
    return order[index] if index < len(order) else None


def entry_kind(text: str) -> str:
    """Return the kind of the first entry: ``GPU`` or ``MIG`` for a UUID, else ``index``."""
    text = text.strip()
    return text[:3] if text.startswith(("GPU-", "MIG-")) else "index"


def _find_by_uuid(prefix: str, gpus: Sequence[GpuReading] | None) -> int | None:
    found = [gpu.index for gpu in gpus or () if gpu.uuid and gpu.uuid.lower().startswith(prefix.lower())]
    return found[0] if len(found) == 1 else None
