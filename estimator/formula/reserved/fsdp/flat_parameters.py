"""FSDP1's flat parameters in the replay: what each consists of, and in which order they run."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from ...buffers import weight_width
from ...fsdp1 import Part, casts_units, flat_units, unit_rule
from ...rank_memory import RankMemory
from ..parameters import StoredParameter

_SAME_SIZE = 0.01
"""Relative difference up to which a gradient is taken to be a parameter's."""


class FlatParameter:
    """One flat parameter, and the adapters in its module.

    Args:
        tensors: elements, bytes of the rank's shard, and whether it trains, of each parameter in it.
        width: bytes per element as it is gathered; 0: as it is stored.
        shards: ranks over which it is sharded.
        adapters: parameters that are flat parameters of their own.
    """

    __slots__ = (
        "accumulated",
        "adapter_sizes",
        "adapters",
        "copy",
        "flat",
        "gathered_at",
        "sizes",
        "stored",
        "trained",
        "whole",
    )

    def __init__(
        self,
        tensors: Iterable[tuple[float, float, bool]],
        width: int,
        shards: int,
        adapters: Iterable[StoredParameter] = (),
    ) -> None:
        tensors, adapters = [*tensors], [*adapters]
        self.sizes = [elements for elements, _, _ in tensors]
        elements = round(sum(self.sizes))
        self.stored = round(sum(stored for _, stored, _ in tensors))
        self.whole = elements * width if width else self.stored * shards
        self.trained = elements if any(trained for _, _, trained in tensors) else 0
        self.adapters = sum(p.elements for p in adapters)
        self.adapter_sizes = [p.weight for p in adapters]
        self.flat: int | None = None
        self.copy: int | None = None
        """The shard that was copied from the host."""
        self.gathered_at = 0
        self.accumulated: int | None = None

    @property
    def takes_gradients(self) -> bool:
        """True if a parameter of its module trains."""
        return bool(self.trained or self.adapters)

    def own_gradients(self, gradients: Sequence[int], size_of: Callable[[int], int], width: int) -> list[int]:
        """Return the gradients that have the sizes of its parameters, one for each.

        Args:
            gradients: keys, of which others may belong to other units.
            size_of: returns the bytes of a key.
            width: bytes per element of a gradient.
        """
        left = [size * width for size in self.sizes] if self.trained else []
        own = []
        for key in gradients:
            size = size_of(key)
            at = next((at for at, each in enumerate(left) if abs(each - size) <= _SAME_SIZE * size), None)
            if at is not None:
                left.pop(at)
                own.append(key)
        return own


class FlatParameters(Struct, frozen=True, kw_only=True):
    """The flat parameters of a rank; those that do not exist are empty."""

    root: FlatParameter
    around: FlatParameter
    """The unit around the blocks."""
    embedding: FlatParameter
    head: FlatParameter
    blocks: dict[int, FlatParameter]
    inner: dict[int, tuple[FlatParameter, ...]]
    """Flat parameters of modules inside of blocks, in the order of the forward pass."""

    @property
    def backward_order(self) -> list[FlatParameter]:
        """Flat parameters that the backward pass gathers, in its order."""
        inside = [
            unit
            for at in sorted(self.blocks, reverse=True)
            for unit in (self.blocks[at], *self.inner.get(at, ())[::-1])
        ]
        return [unit for unit in (self.head, self.around, *inside, self.embedding) if unit.whole]


def flat_parameters(rank: RankMemory, parameters: Sequence[StoredParameter]) -> FlatParameters:
    """Return the flat parameters that the job's wrap policy makes.

    Args:
        rank: the rank.
        parameters: its parameters.
    """
    job, stage, rule = rank.job, rank.stage, unit_rule(rank.job)
    width, shards = (job.widths.compute if casts_units(job) else 0), job.shards.weights
    empty = FlatParameter((), width, shards)
    apart = [p for p in parameters if job.adapter_units and p.trained]
    own = [p for p in parameters if not (job.adapter_units and p.trained)]
    if rule.minimum is None and not rule.names:
        in_blocks = {p.block for p in parameters if p.block >= 0 and rule.blocks}

        def of(blocks: Callable[[int], bool]) -> FlatParameter:
            tensors = ((p.elements, p.weight, p.trained) for p in own if blocks(p.block))
            return FlatParameter(tensors, width, shards, (p for p in apart if blocks(p.block)))

        return FlatParameters(
            root=of(lambda at: at not in in_blocks),
            around=empty,
            embedding=empty,
            head=empty,
            blocks={block: of(block.__eq__) for block in sorted(in_blocks)},
            inner={},
        )
    units, layers = flat_units(stage, rule), range(stage.layers)

    def of_parts(parts: Iterable[Part], adapters: Iterable[StoredParameter] = ()) -> FlatParameter:
        tensors = []
        for held, share in parts:
            count = max(1, round(held.tensors * share))
            elements = held.elements * share / count
            tensors += [(elements, elements * weight_width(held, job.widths) / shards, held.trainable)] * count
        return FlatParameter(tensors, width, shards, adapters)

    left = [(held, share * stage.layers) for held, share in units.left]
    outside = [p for p in apart if p.block < 0]
    return FlatParameters(
        root=of_parts([*units.root, *(() if units.around else left)], outside),
        around=of_parts([*units.around, *left]) if units.around else empty,
        embedding=of_parts(units.embedding),
        head=of_parts(units.head),
        blocks={at: of_parts(units.block, (p for p in apart if p.block == at)) for at in layers},
        inner={at: tuple(of_parts(parts) for parts in units.inner) for at in layers} if units.inner else {},
    )
