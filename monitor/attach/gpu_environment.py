"""The environment variables that decide which GPU a process uses, and the GPUs that its container was given."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

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
