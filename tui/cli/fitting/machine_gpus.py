"""The GPUs of this machine, as commands see them that place a job on them: which may be used, and what is free."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.estimation import estimate
from vramtop.monitor.board.fit import DeviceCapacity, device_capacities
from vramtop.monitor.snapshot.snapshot import DeviceIndex, Snapshot, gpu_list
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.storage.reservations import Reservations

from ..option_values import gpu_indices

if TYPE_CHECKING:
    from vramtop.monitor.attach.attachment import Attachment

DeviceSelection = Sequence[int | str] | None
"""GPUs by index and MIG devices by uuid; None: all."""
DESCRIBE = "describe the machine with --gpu-type or --gpu-memory"
"""What to do without GPUs, in a command that can do without."""


class NoGpusError(CannotTellError):
    """This machine has no GPU, or none that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusHere:
    """The GPUs of this machine that may be used, and what they have available now."""

    devices: tuple[DeviceCapacity, ...]
    snapshot: Snapshot
    notes: tuple[str, ...]
    """How they were chosen, and which running jobs have yet to take memory there."""


def gpus_here(selected: str | None, advice: str = DESCRIBE) -> GpusHere:
    """Read this machine's GPUs.

    Args:
        selected: value of ``--gpu``; None: those of CUDA_VISIBLE_DEVICES, otherwise all.
        advice: what to do where there is no GPU, at the end of the error.

    Raises:
        InputError: ``selected`` or CUDA_VISIBLE_DEVICES names no GPU here.
        NoGpusError: there is no GPU, or no usable driver.
    """
    with open_source(advice) as source:
        snapshot = read_gpus(source, advice)
    selection, notes = select_devices(selected, snapshot)
    committed, job_notes = committed_bytes(snapshot, selection)
    devices = device_capacities(snapshot, committed, selection)
    return GpusHere(devices=devices, snapshot=snapshot, notes=(*notes, *job_notes))


@contextlib.contextmanager
def open_source(advice: str = DESCRIBE) -> Iterator[NvmlSource]:
    """Open this machine's GPUs.

    Args:
        advice: what to do where there is no driver, at the end of the error.

    Raises:
        NoGpusError: there is no usable driver.
    """
    source = NvmlSource()
    try:
        source.open()
    except CannotTellError as error:
        raise NoGpusError(f"{error.message.rstrip('.')}; {advice}") from None
    try:
        yield source
    finally:
        source.close()


def read_gpus(source: NvmlSource, advice: str = DESCRIBE) -> Snapshot:
    """Return a snapshot with at least one GPU.

    Args:
        source: an open one.
        advice: what to do where there is no GPU, at the end of the error.

    Raises:
        NoGpusError: there is none.
        CannotTellError: the driver disappeared.
    """
    snapshot = source.read()
    if not snapshot.gpus:
        raise NoGpusError(f"NVML sees no GPU here; {advice}")
    return snapshot


def committed_bytes(snapshot: Snapshot, selection: DeviceSelection) -> tuple[dict[DeviceIndex, int], tuple[str, ...]]:
    """Return free memory that is reserved, or that jobs which have just started will take; and notes about these."""
    from vramtop.monitor.attach.read_run import (  # a third of the start-up
        find_starting_processes,
        remaining_bytes_by_device,
    )

    reservations = Reservations()
    committed = reservations.committed(snapshot)
    reserved_pids = reservations.reserved_pids(snapshot)
    gpus = {device.index for device in device_capacities(snapshot, {}, selection)}
    unread: list[str] = []
    growing = find_starting_processes(
        snapshot, _estimate_attached, only=gpus, exclude_pids=reserved_pids, on_unread=unread.append
    )
    for place, size in remaining_bytes_by_device(growing).items():
        committed[place] = committed.get(place, 0) + size
    return committed, (*reservations.notes(snapshot), *(each.sentence for each in growing), *unread)


def _estimate_attached(attachment: "Attachment") -> Budget:
    return estimate(attachment.reading.job(), environ=attachment.estimate_environ)


def select_devices(text: str | None, snapshot: Snapshot) -> tuple[DeviceSelection, tuple[str, ...]]:
    """Return the GPUs of ``--gpu``, otherwise of CUDA_VISIBLE_DEVICES, otherwise all; and notes about the choice."""
    return _visible_devices(snapshot) if text is None else (gpu_indices(text, snapshot), ())


def _visible_devices(snapshot: Snapshot) -> tuple[DeviceSelection, tuple[str, ...]]:
    from vramtop.monitor.attach.attachment import GpuEnvironment, nvml_mig_parent, visible_gpus, visible_mig_devices

    choice = GpuEnvironment.from_environ(os.environ, local_rank=None, mig_parent=nvml_mig_parent)
    if choice.cuda_visible_devices is None:
        return None, ()
    mig_devices = visible_mig_devices(choice, snapshot.gpus)
    if mig_devices:
        return mig_devices, (
            f"Only {', '.join(mig_devices)}: CUDA_VISIBLE_DEVICES is {choice.cuda_visible_devices!r}.",
        )
    indices, uncertainty = visible_gpus(choice, snapshot.gpus)
    if not indices:
        raise InputError(
            f"CUDA_VISIBLE_DEVICES is {choice.cuda_visible_devices!r}, which names no GPU here; "
            "unset it, or give --gpu INDEX"
        )
    note = f"Only GPU {gpu_list(indices)}: CUDA_VISIBLE_DEVICES is {choice.cuda_visible_devices!r}."
    return indices, (note, f"They may be different ones: {uncertainty}.") if uncertainty else (note,)
