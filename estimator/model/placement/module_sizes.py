"""Sizes of the modules that a device map places, in the model's order: embedding, blocks, norm, head."""

from dataclasses import dataclass
from functools import lru_cache

from ..parameters import Inventory


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModule:
    """A module that is placed as a whole: a block, or a module outside of the blocks."""

    name: str
    """Path of the module, of a block with its number: ``model.layers.3``."""
    size: int
    """Bytes of its weights as they are loaded."""
    largest: int
    """Bytes that the largest of its innermost modules has of its own: what accelerate's hooks copy at a time."""
    block: bool
    embedding: bool
    """It holds an embedding."""
    head: bool
    """It computes the outputs; a tied head is where its embedding is. The final norm is neither."""
    number: int = 0
    """Number of a block, from 0."""


@lru_cache(maxsize=256)
def placed_modules(inventory: Inventory, sizes: tuple[int, ...]) -> tuple[PlacedModule, ...]:
    """Return the modules of a model in their order; blocks are taken to be alike.

    Args:
        inventory: the model's parameters.
        sizes: bytes of each of its groups as they are stored.
    """
    groups = tuple(zip(inventory.groups, sizes, strict=True))
    layered = [(group, size) for group, size in groups if group.layered]
    block = sum(size for _, size in layered) / max(1, inventory.layers)
    inner: dict[str, float] = {}
    for group, size in layered:  # experts in two tensors are one module
        module = group.name.rpartition(".")[0]
        inner[module] = inner.get(module, 0.0) + size / group.repeat
    largest = max(inner.values(), default=0.0)
    prefix = layered[0][0].name.partition(".*")[0] if layered else "layers"
    around = [
        PlacedModule(
            name=group.name.rpartition(".")[0] or group.name,
            size=size,
            largest=size,
            block=False,
            embedding=group.role == "embedding",
            head=group.role == "head" or (inventory.tied_head and group.role == "embedding"),
        )
        for group, size in groups
        if not group.layered
    ]
    blocks = [
        PlacedModule(
            name=f"{prefix}.{number}",
            size=round(block),
            largest=round(largest),
            block=True,
            embedding=False,
            head=False,
            number=number,
        )
        for number in range(inventory.layers)
    ]
    first = [module for module in around if module.embedding]
    return (*first, *blocks, *(module for module in around if not module.embedding))
