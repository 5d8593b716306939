"""Differences of a job from those that it may be instead, by the closed form."""

from ...budget import Peak
from ...common import CannotTellError, InputError, format_gib
from ...job import Gpu, Job, resolve_job
from ...model import Architecture, Inventory
from ...model.count_parameters import count_parameters
from ..closed_form import closed_form
from .allow_for import Change
from .other_side import OtherSide
from .units import other_units, unsharded_weights
from .versions import other_versions

_SMALL = 0.01
"""Share of the device's memory below which a difference is no matter."""


def unstated_changes(job: Job, arch: Architecture | CannotTellError, gpu: Gpu | None = None) -> tuple[Change, ...]:
    """Return how far the other sides lie from the job by the closed form: those that differ by more than 1 %.

    Args:
        job: the job.
        arch: the model's shape, or why it is not known.
        gpu: the GPU.
    """
    if isinstance(arch, CannotTellError) or job.training.mode != "train":
        return ()
    resolved = resolve_job(job)
    sides = [*other_versions(resolved, arch), *other_units(resolved), *unsharded_weights(resolved)]
    inventory = count_parameters(arch) if sides else None
    usual = _peak(job, arch, inventory, gpu) if inventory is not None else None
    if usual is None or inventory is None:
        return ()
    found = ((side, _peak(side.job, arch, inventory, gpu)) for side in sides)
    changes = [_change(side, usual, peak) for side, peak in found if peak is not None]
    return tuple(change for change in changes if change.size > _SMALL * usual.device_bytes)


def _peak(job: Job, arch: Architecture, inventory: Inventory, gpu: Gpu | None) -> Peak | None:
    try:
        return closed_form(job, arch, inventory, gpu=gpu, words=False, doubts=False).peak
    except InputError:
        return None


def _change(side: OtherSide, usual: Peak, peak: Peak) -> Change:
    allocated = peak.allocated_bytes - usual.allocated_bytes
    device = peak.device_bytes - usual.device_bytes
    larger = max(abs(allocated), abs(device))
    verb, size = ("takes", device) if 2 * abs(device) > larger else ("allocates", allocated)
    change = f"{verb} {format_gib(abs(size))} GiB {'more' if size > 0 else 'less'}"
    return Change(
        source=side.source,
        allocated=allocated,
        reserved=peak.reserved_bytes - usual.reserved_bytes,
        device=device,
        sentence=f"{side.sentence.format(change=change)}, which the range allows for.",
        is_warning=side.is_warning,
    )
