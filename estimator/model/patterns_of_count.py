"""Finds what trains from the number of trained parameters alone: such a number fits one usual choice, or none."""

from collections.abc import Iterator
from itertools import chain, combinations

from .parameters import Inventory, ParameterGroup

_AROUND = ("head", "norm", "embedding")
"""Parts outside of the blocks, those first that are trained alone most often."""


def patterns_of_count(inventory: Inventory, count: int) -> tuple[str, ...] | None:
    """Return patterns of names whose parameters are exactly that many; None: no usual choice is.

    The usual choices are the last blocks or none, with any of head, norm and embedding; biases, norms, attention or MLP
    alone, perhaps with the head.
    """
    if count <= 0:
        return ("!*",) if count == 0 else None
    for elements, patterns in _choices(inventory):
        if elements == count and patterns:
            return patterns
    return None


def _choices(inventory: Inventory) -> Iterator[tuple[int, tuple[str, ...]]]:
    around = {role: [g for g in inventory.groups if not g.layered and _part(g) == role] for role in _AROUND}
    sizes = {role: sum(g.elements for g in groups) for role, groups in around.items()}
    present = [role for role in _AROUND if sizes[role]]
    subsets = list(chain.from_iterable(combinations(present, size) for size in range(len(present) + 1)))
    blocks = _like_blocks(inventory)
    names = {role: tuple(g.name for g in groups) for role, groups in around.items()}
    for last in range(len(blocks) + 1):
        each = sum(g.elements for g in inventory.groups if g.layered) // max(1, len(blocks))
        for subset in subsets:
            trained = (*blocks[len(blocks) - last :], *chain.from_iterable(names[role] for role in subset))
            yield last * each + sum(sizes[role] for role in subset), trained
    for kind in ("bias", "norm", "attention", "mlp"):
        groups = [group for group in inventory.groups if _is_of_kind(group, kind)]
        found = tuple(group.name for group in groups)
        elements = sum(group.elements for group in groups)
        yield elements, found
        if kind != "bias":
            inside = [group for group in groups if group.layered]
            yield sum(group.elements for group in inside), tuple(group.name for group in inside)
        head = [group for group in around["head"] if group not in groups]
        yield elements + sum(group.elements for group in head), (*found, *(group.name for group in head))


def _part(group: ParameterGroup) -> str:
    return "embedding" if group.role == "embedding" or "embeddings." in group.name else group.role


def _is_of_kind(group: ParameterGroup, kind: str) -> bool:
    return group.name.endswith("bias") if kind == "bias" else group.role == kind


def _like_blocks(inventory: Inventory) -> tuple[str, ...]:
    """Return the blocks' names, if there is one stack whose blocks are alike."""
    layered = [group for group in inventory.groups if group.layered]
    stacks = {group.name.partition(".*.")[0] for group in layered}
    if len(stacks) != 1 or any(group.repeat != inventory.layers for group in layered):
        return ()
    stack = stacks.pop()
    return tuple(f"{stack}.{number}" for number in range(inventory.layers))
