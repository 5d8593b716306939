"""PCI device of a GPU as the kernel knows it: its power saving, and its place in the host; no GPU is woken for it."""

from __future__ import annotations

import re
from pathlib import Path

from ...host.kernel_files import file_text

PCI_FOLDER = Path("/sys/bus/pci/devices")
DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
"""Contains a folder for each GPU of the driver, named by its PCI address; listing them wakes no GPU."""


def driver_addresses(folder: Path | None = None) -> tuple[str | None, ...]:
    """Return the PCI addresses of the driver's GPUs in NVML's order; empty if they cannot be listed."""
    try:
        return tuple(sorted(each.name.lower() for each in (folder or DRIVER_FOLDER).iterdir()))
    except OSError:
        return ()


def can_suspend(address: str | None, folder: Path | None = None) -> bool:
    """Return True if the kernel suspends this device when it is idle; GPUs of servers are set not to."""
    return address is not None and _text(address, "power/control", folder) == "auto"


def is_suspended(address: str | None, folder: Path | None = None) -> bool:
    """Return True if this device is suspended now (``power/runtime_status``, which wakes nothing)."""
    return address is not None and _text(address, "power/runtime_status", folder) == "suspended"


def pci_place(address: str | None, folder: Path | None = None) -> tuple[int | None, str | None]:
    """Return the NUMA node of the device with this PCI address, and the processors near it; None: unknown.

    Args:
        address: such as ``0000:17:00.0``.
        folder: with a folder for each device; None: the kernel's.
    """
    if address is None:
        return None, None
    node, cpus = _text(address, "numa_node", folder), _text(address, "local_cpulist", folder)
    number = int(node) if node.isdecimal() else None  # -1: the host has only one
    return number, cpus if re.fullmatch(r"[\d,-]+", cpus) else None


def _text(address: str, file: str, folder: Path | None) -> str:
    return file_text((folder or PCI_FOLDER) / address / file).strip()
