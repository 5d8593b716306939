"""GPUs that the kernel suspends to save power, as in laptops: a driver call would wake them."""

from pathlib import Path

DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
"""Contains a folder for each GPU of the driver, named by its PCI address; listing them wakes no GPU."""
PCI_FOLDER = Path("/sys/bus/pci/devices")


def driver_addresses(folder: Path | None = None) -> tuple[str | None, ...]:
    """Return the PCI addresses of the driver's GPUs in NVML's order; empty if they cannot be listed."""
    try:
        return tuple(sorted(each.name.lower() for each in (folder or DRIVER_FOLDER).iterdir()))
    except OSError:
        return ()


def can_suspend(address: str | None, folder: Path | None = None) -> bool:
    """Return True if the kernel suspends this device when it is idle; GPUs of servers are set not to."""
    return address is not None and _power(address, "control", folder) == "auto"


def is_suspended(address: str | None, folder: Path | None = None) -> bool:
    """Return True if this device is suspended now (``power/runtime_status``, which wakes nothing)."""
    return address is not None and _power(address, "runtime_status", folder) == "suspended"


def _power(address: str, file: str, folder: Path | None) -> str | None:
    try:
        return ((folder or PCI_FOLDER) / address / "power" / file).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
