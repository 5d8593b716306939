"""The part of a checkpoint of one pipeline stage: parameters as they are stored, and their optimizer states."""

from collections.abc import Iterator
from math import prod

from msgspec import Struct

from ...job import ResolvedJob
from ...model import LocalParameters, Stage
from ..buffers import weight_width


class SavedState(Struct, frozen=True, kw_only=True):
    """Bytes of a state dict that ranks put together, before and while they do."""

    whole: int
    """The state dict of all ranks of a pipeline stage."""
    largest: int
    """Its largest tensor."""
    around: int
    """Its part outside of the blocks, which is FSDP1's root unit."""
    block: int
    """Its part of one block, FSDP1's other units."""


def weights_to_save(job: ResolvedJob) -> str:
    """Return what of the weights is saved: by default the adapters of LoRA, else the full model."""
    saving = job.job.saving
    if saving is None:
        return "none"
    return saving.weights or ("adapters" if job.lora is not None else "full")


def saved_weights(job: ResolvedJob, stage: Stage) -> SavedState:
    """Return the weights of a stage that are saved, in the types in which they are stored."""
    only_adapters = weights_to_save(job) == "adapters"
    kept = [held for held in stage.parameters if held.trainable or not only_adapters]
    return _state((held, weight_width(held, job.widths)) for held in kept)


def saved_optimizer(job: ResolvedJob, stage: Stage) -> SavedState:
    """Return one optimizer state of everything that trains: states are gathered one after the other."""
    width = job.widths.state
    return _state((held, job.widths.adapter if held.adapter else width) for held in stage.parameters if held.trainable)


def _state(parts: Iterator[tuple[LocalParameters, float]]) -> SavedState:
    whole = around = blocks = largest = 0.0
    for held, width in parts:
        size = _whole_elements(held) * width
        whole += size
        largest = max(largest, prod(held.group.shape) * width)
        if held.group.layered:
            blocks += size / max(1, held.tensors)
        else:
            around += size
    return SavedState(whole=round(whole), largest=round(largest), around=round(around), block=round(blocks))


def _whole_elements(held: LocalParameters) -> int:
    """Return the elements of its tensors over all tensor- and expert-parallel ranks."""
    return prod(held.group.shape) * held.tensors
