"""GPUs that sleep to save power, as laptops' do: a query of the driver would wake them."""

from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/gpus")
"""Has a folder for each GPU of the driver, named by its PCI address; listing them touches no GPU."""
PCI = Path("/sys/bus/pci/devices")


def driver_addresses(folder: Path | None = None) -> tuple[str | None, ...]:
    """PCI addresses of the driver's GPUs, in their order, which is NVML's; empty where they cannot be listed."""
    try:
        return tuple(sorted(each.name.lower() for each in (folder or DRIVER).iterdir()))
    except OSError:
        return ()


def can_suspend(address: str | None, folder: Path | None = None) -> bool:
    """Whether the kernel puts this device to sleep when it is idle; servers' GPUs are set not to."""
    return address is not None and _power(address, "control", folder) == "auto"


def is_suspended(address: str | None, folder: Path | None = None) -> bool:
    """Whether this device sleeps now (``power/runtime_status``, which wakes nothing)."""
    return address is not None and _power(address, "runtime_status", folder) == "suspended"


def _power(address: str, file: str, folder: Path | None) -> str | None:
    try:
        return ((folder or PCI) / address / "power" / file).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
