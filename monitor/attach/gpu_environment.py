"""The environment variables that decide which GPU a process uses, and the GPUs that its container was given."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from ..sources.nvml.call_thread import CallThread, shut_down
from ..sources.nvml.device_threads import FIRST_READ_TIMEOUT_SECONDS

MigParent = Callable[[str], str | None]
"""Maps the UUID of a MIG device to the UUID of its GPU; None: unknown."""
_DEVICE_FILE = re.compile(r"nvidia\d+")


class GpuEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The variables of a process's environment that decide which GPU it uses."""

    cuda_visible_devices: str | None = None
    cuda_device_order: str | None = None
    local_rank: int | None = None
    nvidia_visible_devices: str | None = None
    own_numbering: bool = False
    """The process runs in a container that vramtop does not run in, which numbers its GPUs from 0."""
    mig_parents: Mapping[str, str] = msgspec.field(default_factory=dict)
    """UUIDs of the GPUs by the names of their MIG devices, for the MIG devices in the variables."""

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        local_rank: int | None,
        own_numbering: bool = False,
        mig_parent: MigParent = lambda _: None,
    ) -> "GpuEnvironment":
        """Read the variables of a process's environment.

        Args:
            environ: the environment with which the program started.
            local_rank: its rank on this machine; None: it has none.
            own_numbering: it runs in another container than vramtop, which numbers its GPUs from 0.
            mig_parent: asks the driver for the GPU of a MIG device; called once for each that is named.
        """
        visible, container = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("NVIDIA_VISIBLE_DEVICES")
        named = {entry.strip() for entry in f"{visible},{container}".split(",") if entry.strip().startswith("MIG-")}
        return cls(
            cuda_visible_devices=visible,
            cuda_device_order=environ.get("CUDA_DEVICE_ORDER"),
            local_rank=local_rank,
            nvidia_visible_devices=container,
            own_numbering=own_numbering,
            mig_parents={name: parent for name in named if (parent := mig_parent(name)) is not None},
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


def nvml_mig_parent(uuid: str) -> str | None:
    """Ask the driver for the UUID of the GPU that a MIG device is a part of; None if it does not know or hangs."""
    thread = CallThread()
    thread.run(lambda: _mig_parent(uuid))
    thread.stop()
    parent: str | None = thread.result() if thread.wait(FIRST_READ_TIMEOUT_SECONDS) else None
    return parent


def _mig_parent(uuid: str) -> str | None:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        parent: str = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device))
    except pynvml.NVMLError:
        return None
    else:
        return parent
    finally:
        shut_down(pynvml)


def _device_files(root: Path) -> frozenset[str]:
    try:
        return frozenset(name for name in os.listdir(root / "dev") if _DEVICE_FILE.fullmatch(name))  # noqa: PTH208
    except OSError:
        return frozenset()
