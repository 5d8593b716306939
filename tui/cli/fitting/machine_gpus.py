"""The GPUs of this machine, as commands see them that place a job on them: which may be used, and what is free."""

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence

from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.estimation import estimate
from vramtop.estimator.readers.source.evidence import DeviceChoice
from vramtop.monitor.board.capacity import DeviceCapacity, count_devices, device_capacities
from vramtop.monitor.host.plain_text import gpu_list
from vramtop.monitor.snapshot.snapshot import DeviceIndex, Snapshot
from vramtop.monitor.sources.nvml.nvml_source import NvmlSource
from vramtop.monitor.storage.reservations import Reservations

from ...job.load_job import load_from_options
from ...job.loaded_job import LoadedJob
from ..option_values import gpu_indices

DeviceSelection = Sequence[int | str] | None
"""GPUs by index and MIG devices by uuid; None: all."""
DESCRIBE = "describe the machine with --gpu-type or --gpu-memory"
"""What to do without GPUs, in a command that can do without."""


class NoGpusError(CannotTellError):
    """This machine has no GPU, or none that can be read."""


def gpus_here(
    selected: str | None, *, choice: "DeviceChoice | None" = None
) -> tuple[tuple[DeviceCapacity, ...], tuple[str, ...]]:
    """Return the GPUs of this machine that may be used, with what they have available now, and notes.

    The notes say how they were chosen, and which running jobs have yet to take memory there.

    Args:
        selected: value of ``--gpu``; None: those that the job or CUDA_VISIBLE_DEVICES chooses, otherwise all.
        choice: the GPUs that the job's launch line or script chooses.

    Raises:
        InputError: what chooses the GPUs names none here.
        NoGpusError: there is no GPU, or no usable driver.
    """
    with open_source() as source:
        snapshot = read_gpus(source)
    selection, notes = select_devices(selected, snapshot, choice)
    committed, job_notes = committed_bytes(snapshot, selection)
    return device_capacities(snapshot, committed, selection), (*notes, *job_notes)


def load_for_gpus(options: argparse.Namespace, launch: Sequence[str] | None) -> LoadedJob:
    """Load the job of the command line, over this machine's GPUs where it leaves their number to the machine.

    Raises:
        InputError: it cannot be read, or a required setting is missing.
    """

    def count() -> int | None:
        with contextlib.suppress(NoGpusError):
            return count_devices(gpus_here(options.gpu)[0])
        return None

    if not any(getattr(options, name, None) for name in ("gpu_type", "gpu_memory")):
        options.count_gpus = count
    return load_from_options(options, launch)


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
    # a third of the start-up
    from vramtop.monitor.attach.starting_processes import find_starting_processes, remaining_bytes_by_device

    reservations = Reservations()
    committed = reservations.committed(snapshot)
    reserved_pids = reservations.reserved_pids(snapshot)
    gpus = {device.index for device in device_capacities(snapshot, {}, selection)}
    unread: list[str] = []
    growing = find_starting_processes(
        snapshot,
        lambda attachment: estimate(attachment.reading.job(), environ=attachment.estimate_environ),
        only=gpus,
        exclude_pids=reserved_pids,
        on_unread=unread.append,
    )
    for place, size in remaining_bytes_by_device(growing).items():
        committed[place] = committed.get(place, 0) + size
    return committed, (*reservations.notes(snapshot), *(each.sentence for each in growing), *unread)


def select_devices(
    text: str | None, snapshot: Snapshot, choice: "DeviceChoice | None" = None
) -> tuple[DeviceSelection, tuple[str, ...]]:
    """Return the GPUs of ``--gpu``, otherwise those that the job chooses, otherwise all; and notes about the choice.

    Raises:
        InputError: ``--gpu``, or what chooses the job's GPUs, names no GPU here.
    """
    from vramtop.monitor.attach.chosen_devices import chosen_devices  # with the readers of processes

    if text is None:
        chosen = chosen_devices(choice, os.environ, snapshot.gpus)
        return chosen.selection, chosen.notes
    named = gpu_indices(text, snapshot)
    chosen = chosen_devices(choice, {}, snapshot.gpus)
    if chosen.selection is None or set(chosen.selection) <= set(named):
        return named, ()
    return named, (*chosen.notes, f"The job does not use all of GPU {gpu_list(named)}, which --gpu names.")
