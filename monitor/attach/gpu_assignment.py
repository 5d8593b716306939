"""On which GPU of this machine a process sits: what NVML lists wins, what its environment says is the next best.

How CUDA reads CUDA_VISIBLE_DEVICES: the CUDA C++ Programming Guide, "CUDA Environment Variables"; on repeated and mixed
entries, which the guide leaves out, torch's ``_parse_visible_devices`` (torch/cuda/__init__.py).
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..snapshot.snapshot import GpuReading, MigReading
from ..sources.nvml.call_threads import CallThread, shut_down
from ..sources.nvml.device_threads import FIRST_READ_TIMEOUT_SECONDS

Certainty = Literal["certain", "likely", "unsure"]
MigParent = Callable[[str], str | None]
"""From a MIG device's uuid to the uuid of its GPU; None: not to be had."""

_NUMBER = re.compile(r"\+?\d{1,9}(?!\d)")
_OLD_MIG = re.compile(r"MIG-(GPU-[^/]+)/\d+/\d+")
"""Before driver R470: the GPU's uuid, the GPU instance and the compute instance."""
_DEVICE_FILE = re.compile(r"nvidia\d+")
_NOTHING = ("none", "void")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEnvironment:
    """What decides which GPU a process takes, as its environment has it."""

    cuda_visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES."""
    cuda_device_order: str | None = None
    """CUDA_DEVICE_ORDER."""
    local_rank: int | None = None
    nvidia_visible_devices: str | None = None
    """NVIDIA_VISIBLE_DEVICES."""
    own_numbering: bool = False
    """It runs in a container that vramtop does not run in: GPUs are numbered anew in there."""
    mig_parents: Mapping[str, str] = field(default_factory=dict)
    """The GPUs' uuids by those of their MIG devices, for the MIG devices that it names."""

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        local_rank: int | None,
        own_numbering: bool = False,
        mig_parent: MigParent = lambda _: None,
    ) -> "GpuEnvironment":
        """From a process's environment.

        Args:
            environ: as it was when the program started.
            local_rank: its number on this machine, where it has one.
            own_numbering: it runs in another container than vramtop.
            mig_parent: asks the driver for the GPU of a MIG device, once for each that is named.
        """
        visible, container = environ.get("CUDA_VISIBLE_DEVICES"), environ.get("NVIDIA_VISIBLE_DEVICES")
        named = {entry.strip() for entry in f"{visible},{container}".split(",") if entry.strip().startswith("MIG-")}
        parents = {name: old[1] if (old := _OLD_MIG.match(name)) else mig_parent(name) for name in named}
        return cls(
            cuda_visible_devices=visible,
            cuda_device_order=environ.get("CUDA_DEVICE_ORDER"),
            local_rank=local_rank,
            nvidia_visible_devices=container,
            own_numbering=own_numbering,
            mig_parents={name: parent for name, parent in parents.items() if parent is not None},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAssignment:
    """The GPU of a process."""

    gpu: int | None
    """Its index as NVML counts; None: not known, or none at all."""
    origin: str
    """From what: ``NVML``, ``CUDA_VISIBLE_DEVICES, LOCAL_RANK``."""
    certainty: Certainty
    """Certain: the driver says so. Likely: by the convention that all launchers keep. Unsure: ``note`` says why."""
    note: str | None = None
    other_gpus: tuple[int, ...] = ()
    """Other GPUs on which it holds memory."""


def assign_gpu(
    choice: GpuEnvironment,
    gpus: Sequence[GpuReading] | None,
    *,
    pid: int,
    start_time: float | None = None,
) -> GpuAssignment:
    """Where a process sits; nothing is read for it.

    Args:
        choice: what its environment says.
        gpus: this machine's GPUs; None where they cannot be read: an index is then taken as it is.
        pid: of the process.
        start_time: when it started, to be told from another one with the same pid.
    """
    held = _listed(gpus or (), pid, start_time)
    said = _from_environment(choice, gpus)
    if not held:
        return said
    known = None not in held.values()
    own = said.gpu if said.gpu in held and not known else max(held, key=lambda index: held[index] or 0)
    if len(held) == 1:
        return GpuAssignment(gpu=own, origin="NVML", certainty="certain")
    most = "it holds memory on several GPUs; the one where it holds the most counts"
    unknown = "it holds memory on several GPUs, and the driver does not say how much on each"
    return GpuAssignment(
        gpu=own,
        origin="NVML",
        certainty="likely" if known else "unsure",
        note=most if known else unknown,
        other_gpus=tuple(index for index in held if index != own),
    )


def visible_gpus(choice: GpuEnvironment, gpus: Sequence[GpuReading]) -> tuple[tuple[int, ...], str | None]:
    """The GPUs that a process with this environment may use, in the order in which CUDA numbers them for it.

    Returns:
        NVML's indices, and why they may be others; all GPUs where CUDA_VISIBLE_DEVICES is not set.
    """
    if choice.cuda_visible_devices is None:
        return tuple(gpu.index for gpu in gpus), None
    named = _kind(choice.cuda_visible_devices.strip()) != "index"
    found = _visible(choice.cuda_visible_devices, [gpu.index for gpu in gpus], gpus, choice.mig_parents)
    return tuple(index for index in found if index is not None), None if named else _order_doubt(choice, gpus)


def visible_mig_devices(choice: GpuEnvironment, gpus: Sequence[GpuReading]) -> tuple[str, ...]:
    """The MIG devices among these GPUs that CUDA_VISIBLE_DEVICES names, by uuid; none where it names whole GPUs."""
    uuids = {name: device.uuid for gpu in gpus for device in gpu.mig or () for name in _mig_names(gpu, device)}
    named = [entry.strip().lower() for entry in (choice.cuda_visible_devices or "").split(",")]
    return tuple(dict.fromkeys(uuids[name] for name in named if name in uuids))


def _mig_names(gpu: GpuReading, device: MigReading) -> tuple[str, str]:
    old = f"MIG-{gpu.uuid}/{device.gpu_instance}/{device.compute_instance}"
    return device.uuid.lower(), old.lower()


def has_own_gpu_numbering(root: Path | None, *, here: Path = Path("/")) -> bool:
    """Whether GPUs have other numbers for a process: it runs in a container that does not have all of this machine's.

    Args:
        root: its root folder, as it is reached from here; None: it has ours.
        here: our own root folder.
    """
    if root is None:
        return False
    theirs, ours = _device_files(root), _device_files(here)
    return not ours or theirs != ours


def nvml_mig_parent(uuid: str) -> str | None:
    """The uuid of the GPU that a MIG device is a part of, by asking the driver; None: it does not know, or hangs."""
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


def _listed(gpus: Sequence[GpuReading], pid: int, start_time: float | None) -> dict[int, int | None]:
    """What the process holds, by GPU."""
    return {
        gpu.index: process.used_bytes
        for gpu in gpus
        for process in gpu.processes or ()
        if process.pid == pid and (None in (start_time, process.start_time) or process.start_time == start_time)
    }


def _from_environment(choice: GpuEnvironment, gpus: Sequence[GpuReading] | None) -> GpuAssignment:
    named = {
        "NVIDIA_VISIBLE_DEVICES": choice.nvidia_visible_devices if choice.own_numbering else None,
        "CUDA_VISIBLE_DEVICES": choice.cuda_visible_devices,
        "LOCAL_RANK": choice.local_rank,
    }
    origin = ", ".join(name for name, value in named.items() if value is not None) or "nothing"

    def unsure(gpu: int | None, note: str) -> GpuAssignment:
        return GpuAssignment(gpu=gpu, origin=origin, certainty="unsure", note=note)

    devices, doubt = _numbered(choice, gpus)
    by_name = choice.cuda_visible_devices is not None and _kind(choice.cuda_visible_devices.strip()) != "index"
    if choice.cuda_visible_devices is not None:
        devices = _visible(choice.cuda_visible_devices, devices, gpus, choice.mig_parents)
        if not devices:
            note = f"CUDA_VISIBLE_DEVICES is {choice.cuda_visible_devices!r}, which names no GPU here"
            hides = choice.cuda_visible_devices.strip() in ("", "-1")  # what people write who want none
            return (
                GpuAssignment(gpu=None, origin=origin, certainty="likely", note=note) if hides else unsure(None, note)
            )
    at = 0 if choice.local_rank is None or (devices is not None and len(devices) == 1) else choice.local_rank
    if devices is not None and at >= len(devices):
        return unsure(None, f"LOCAL_RANK is {at}, and it sees {len(devices)} GPUs")
    gpu = at if devices is None else devices[at]
    if doubt is not None and not by_name:
        return unsure(None, doubt)
    if gpu is None:
        return unsure(None, f"the GPU of {choice.cuda_visible_devices!r} cannot be found")
    doubt = None if by_name else _order_doubt(choice, gpus)
    if doubt is not None:
        return unsure(gpu, doubt)
    if choice.local_rank is None and (devices is None or len(devices) > 1):
        return unsure(gpu, "nothing says which of the GPUs that it sees it takes; this is the first")
    return GpuAssignment(gpu=gpu, origin=origin, certainty="likely")


_Devices = Sequence[int | None] | None
"""NVML's indices in the order in which CUDA numbers the GPUs; an entry None cannot be told; None: as NVML numbers."""


def _numbered(choice: GpuEnvironment, gpus: Sequence[GpuReading] | None) -> tuple[_Devices, str | None]:
    """The GPUs that the process could see without CUDA_VISIBLE_DEVICES; and why they cannot be told.

    Inside a container they are numbered from 0, in NVML's order, over those that the container was given.
    """
    here = None if gpus is None else [gpu.index for gpu in gpus]
    given = (choice.nvidia_visible_devices or "").strip()
    if not choice.own_numbering or given == "all":
        return here, None
    if not given or given in _NOTHING or gpus is None:
        return None, "it runs in a container, and nothing says which GPUs that was given"
    found = {_device(entry.partition(":")[0], here, gpus, choice.mig_parents) for entry in given.split(",")}
    if None in found:
        return None, f"it runs in a container that was given {given!r}, which names no GPU here"
    return sorted(index for index in found if index is not None), None


def _visible(text: str, there: _Devices, gpus: Sequence[GpuReading] | None, mig: Mapping[str, str]) -> list[int | None]:
    """CUDA_VISIBLE_DEVICES as CUDA takes it: the first invalid entry ends the list, a repeated one empties it."""
    kind = _kind(text.strip())
    devices: list[int | None] = []
    seen: set[str] = set()
    for entry in map(str.strip, text.split(",")):
        number = _NUMBER.match(entry)
        if _kind(entry) != kind or (kind == "index" and number is None):
            break  # kinds do not mix
        name = str(int(number[0])) if number else entry
        if name in seen:
            return []
        seen.add(name)
        device = _device(entry, there, gpus, mig)
        if device is None and kind != "MIG" and gpus is not None:
            break
        devices.append(device)
    return devices


def _kind(entry: str) -> str:
    return entry[:3] if entry.startswith(("GPU-", "MIG-")) else "index"


def _device(entry: str, there: _Devices, gpus: Sequence[GpuReading] | None, mig: Mapping[str, str]) -> int | None:
    """The index of the GPU that an entry names, as NVML counts; None: no such GPU, or several begin so."""
    entry = entry.strip()
    if entry.startswith("MIG-"):
        return _by_uuid(mig[entry], gpus) if entry in mig else None
    if entry.startswith("GPU-"):
        return _by_uuid(entry, gpus)
    number = _NUMBER.match(entry)
    if number is None:
        return None
    index = int(number[0])
    if there is None:
        return index
    return there[index] if index < len(there) else None


def _by_uuid(beginning: str, gpus: Sequence[GpuReading] | None) -> int | None:
    found = [gpu.index for gpu in gpus or () if gpu.uuid and gpu.uuid.lower().startswith(beginning.lower())]
    return found[0] if len(found) == 1 else None


def _order_doubt(choice: GpuEnvironment, gpus: Sequence[GpuReading] | None) -> str | None:
    """Why an index of CUDA's may be another one of NVML's: by default CUDA puts the fastest card first."""
    if choice.cuda_device_order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus or ()}) <= 1:
        return None
    return "CUDA puts the fastest of these unequal GPUs first, and NVML does not (CUDA_DEVICE_ORDER is not PCI_BUS_ID)"
