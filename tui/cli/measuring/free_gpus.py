"""The GPUs on which a measurement may run, what must stay free there, and what NVML shows meanwhile."""

import contextlib
from collections.abc import Mapping, Sequence

import msgspec

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.sizes import MIB
from vramtop.estimator.trace.measure.real_step import Place
from vramtop.monitor.board.capacity import DeviceCapacity, device_capacities
from vramtop.monitor.snapshot.figures import NO_ANSWER
from vramtop.monitor.snapshot.snapshot import GpuReading, Snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

from ..fitting.machine_gpus import committed_bytes, read_gpus, select_devices

ADVICE = "--cpu runs a tiny model on the CPU instead; vramtop estimate only predicts"
KEPT_BYTES = 512 * MIB
"""Stays free beside other programs: kernels that CUDA loads later, and small allocations of theirs."""
KEPT_BYTES_OF_RANKS = 1536 * MIB
"""Bytes kept for one of several ranks, whose NCCL allocates outside of torch."""


class OutsideBytes(msgspec.Struct, frozen=True):
    """What NVML shows at one moment; None: it does not tell."""

    process_bytes: int | None
    """Memory of the process."""
    device_bytes: int | None
    """Memory that came to the GPU since the start; known only if nothing else ran there."""


class OutsideFigures(msgspec.Struct, frozen=True):
    """What NVML shows of one rank at each stage of its run."""

    stages: Mapping[str, OutsideBytes] = msgspec.field(default_factory=dict)

    @property
    def process_bytes(self) -> int | None:
        """Memory of the process after the last step."""
        return self.stages["steady"].process_bytes if "steady" in self.stages else None

    @property
    def device_bytes(self) -> int | None:
        """Memory that came to the GPU until after the last step."""
        return self.stages["steady"].device_bytes if "steady" in self.stages else None

    @property
    def context_bytes(self) -> int | None:
        """Memory in use before the model was built, such as the CUDA context, without torch's own allocations."""
        found = self.stages.get("context", OutsideBytes(None, None))
        return found.process_bytes if found.process_bytes is not None else found.device_bytes


class FreeGpus(msgspec.Struct):
    """The GPUs of one measurement.

    Args:
        source: of readings.
        devices: one for each rank.
        snapshot: before the start.
    """

    source: NvmlSource
    devices: Sequence[DeviceCapacity]
    snapshot: Snapshot
    figures: list[OutsideFigures] = msgspec.field(default_factory=list)
    """Figures of each rank, as the stages were reached."""

    def places(self, limit_bytes: int | None) -> list[Place]:
        """Return where the ranks run; where others hold memory, some of it stays free."""
        kept = KEPT_BYTES if len(self.devices) == 1 else KEPT_BYTES_OF_RANKS
        return [
            Place(
                cuda_device=device.cuda_device,
                keep_bytes=kept + device.committed_bytes if self._shared(device) else None,
                limit_bytes=limit_bytes,
            )
            for device in self.devices
        ]

    def read(self, stage: str, pids: Sequence[int]) -> None:
        """Read NVML while all ranks hold the memory of a stage; at ``ready`` they hold none yet.

        Where NVML fails, nothing is known from outside.
        """
        with contextlib.suppress(CannotTellError):
            now = self.source.read()
            if stage == "ready":
                self.snapshot = now
                return
            self.figures = self.figures or [OutsideFigures() for _ in self.devices]
            for rank, device in enumerate(self.devices):
                before, gpu = self._gpu(self.snapshot, device), self._gpu(now, device)
                if gpu is not None and all(fault.code != NO_ANSWER for fault in gpu.faults):  # whose figures are old
                    found = self._bytes(device, pids[rank], before, gpu)
                    self.figures[rank] = OutsideFigures({**self.figures[rank].stages, stage: found})

    def _bytes(self, device: DeviceCapacity, pid: int, before: GpuReading | None, gpu: GpuReading) -> OutsideBytes:
        used = next((each.used_bytes for each in gpu.processes or () if each.pid == pid), None)
        alone = before is not None and not self._shared(device)
        sizes = (before.used_bytes if before and alone else None, gpu.used_bytes)
        return OutsideBytes(used, None if sizes[0] is None or sizes[1] is None else sizes[1] - sizes[0])

    def _shared(self, device: DeviceCapacity) -> bool:
        """Return True unless this device is known to be without other programs."""
        gpu = self._gpu(self.snapshot, device)
        return device.mig is not None or gpu is None or gpu.processes is None or bool(gpu.processes)

    @staticmethod
    def _gpu(snapshot: Snapshot, device: DeviceCapacity) -> GpuReading | None:
        return next((gpu for gpu in snapshot.gpus if gpu.index == device.index), None)


def free_gpus(source: NvmlSource, selected: str | None, ranks: int) -> FreeGpus:
    """Return the GPUs for this number of ranks: without other programs if there are, then with the most memory.

    Args:
        source: this machine's GPUs, open.
        selected: value of ``--gpu``; None: those of CUDA_VISIBLE_DEVICES, otherwise all.
        ranks: of the job.

    Raises:
        InputError: ``--gpu`` or CUDA_VISIBLE_DEVICES names no GPU here.
        CannotTellError: there are not enough.
    """
    snapshot = read_gpus(source, ADVICE)
    selection, _ = select_devices(selected, snapshot)
    committed, _ = committed_bytes(snapshot, selection)
    devices = [
        device
        for device in device_capacities(snapshot, committed, selection)
        if not device.unusable_reason and (device.mig is None or ranks == 1) and device.available_bytes
    ]
    if len(devices) < ranks:
        have = f"{len(devices)} GPUs are" if len(devices) > 1 else "one GPU is" if devices else "no GPU is"
        raise CannotTellError(
            f"the job has {ranks} rank{'s' if ranks > 1 else ''}, and {have} usable here; give it fewer "
            f"(parallel.*), or {ADVICE}"
        )
    busy = {gpu.index for gpu in snapshot.gpus if gpu.processes is None or gpu.processes}
    devices.sort(key=lambda device: (device.index in busy, -(device.available_bytes or 0)))
    return FreeGpus(source, sorted(devices[:ranks], key=lambda device: device.index), snapshot)
