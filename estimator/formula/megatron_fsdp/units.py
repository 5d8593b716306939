"""Sizes of Megatron-FSDP's units, and the elements that it has in flight."""

from collections.abc import Iterable
from functools import lru_cache

from msgspec import Struct

from ...job import ResolvedJob
from ...job.rules import Widths
from ...model import LocalParameters, Stage
from ..buffers import Unit, elements_of, largest_block, unit_of, whole_unit

_LEAST_CAPACITY = 1_000_000_000
"""Elements in flight at least, unless the job says how many (``suggested_communication_unit_size``)."""


class MegatronUnits(Struct, frozen=True, kw_only=True):
    """Units of a rank."""

    block: Unit
    """The largest block."""
    outside: Unit
    """Unit of the modules around the blocks."""
    model: Unit
    """All of it."""
    elements: float
    """Elements of the block, with the padding that makes a bucket larger than its parameters."""
    trained: float
    """Elements that train."""
    largest: int
    """Bytes of the block's largest gradient as autograd makes it."""
    head: int
    """Elements of the head."""
    embedding: int
    """Elements of the embedding."""


@lru_cache(maxsize=256)
def megatron_units(stage: Stage, widths: Widths, *, tied: bool) -> MegatronUnits:
    """Return the units of a rank.

    Args:
        stage: what the rank holds.
        widths: bytes per element.
        tied: the stage's head is its embedding.
    """
    parts, tokens = largest_block(stage), stage.token_embedding
    around = [held for held in stage.parameters if not held.group.layered]
    head = [held for held in around if (tied if held is tokens else held.group.linear)]
    return MegatronUnits(
        block=unit_of(parts, widths),
        outside=whole_unit(around, widths),
        model=whole_unit(stage.parameters, widths),
        elements=1 + elements_of(parts),
        trained=1 + elements_of([part for part in parts if part[0].trainable]),
        largest=_largest((held for held, _ in parts), widths),
        head=_largest(head, widths),
        embedding=_largest([tokens] if tokens else [], widths),
    )


def megatron_capacity(job: ResolvedJob, elements: float) -> int:
    """Return the elements that Megatron-FSDP has in flight (``suggested_communication_unit_size``).

    Args:
        job: the job.
        elements: of a unit.
    """
    units = round(2 * elements) if job.zero_stage == 3 else 0
    return job.parallel.communication_unit or max(_LEAST_CAPACITY, units)


def _largest(parameters: Iterable[LocalParameters], widths: Widths) -> int:
    return round(max((held.largest_tensor for held in parameters if held.trainable), default=0) * widths.compute)
