"""Parses CUDA_VISIBLE_DEVICES and NVIDIA_VISIBLE_DEVICES as CUDA and the container toolkit do.

Sources: the CUDA C++ Programming Guide, "CUDA Environment Variables"; on repeated and mixed entries, which the
guide leaves out, torch's ``_parse_visible_devices`` (torch/cuda/__init__.py).
"""

import re
from collections.abc import Sequence

from ..snapshot.snapshot import GpuReading

DeviceOrder = Sequence[int | None] | None
"""NVML indices in the order in which CUDA numbers the GPUs; an entry None is unknown; None: the same order."""
_NUMBER = re.compile(r"\+?\d{1,9}(?!\d)")


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
