"""The place of a GPU in the host, from /sys: the NUMA node and the processors that are nearest."""

import re
from dataclasses import dataclass
from pathlib import Path

from ..gpu_sleep import PCI_FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class PciPlace:
    """What the kernel knows of a device's place."""

    numa_node: int | None = None
    near_cpus: str | None = None


def pci_place(address: str | None, folder: Path | None = None) -> PciPlace:
    """Return the place of the device with this PCI address; unknown fields are None.

    Args:
        address: such as ``0000:17:00.0``.
        folder: with a folder for each device; None: the kernel's.
    """
    if address is None:
        return PciPlace()
    device = (folder or PCI_FOLDER) / address
    node, cpus = _text(device / "numa_node"), _text(device / "local_cpulist")
    return PciPlace(
        numa_node=int(node) if node and node.isdecimal() else None,  # -1: the host has only one
        near_cpus=cpus if cpus and re.fullmatch(r"[\d,-]+", cpus) else None,
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
