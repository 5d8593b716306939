"""FSDP1's gathers and reductions: flat parameters and flat gradients, on the streams that allocate them.

From torch 2.13 (``distributed/fsdp/_runtime_utils.py``, ``_flat_param.py``): the unshard stream allocates what is
gathered and the pre-unshard stream the shard in the compute type; both are used on other streams, and so their
blocks return to their pools when the GPU is done with them (``record_stream``). The CPU runs ahead of the GPU until
``limit_all_gathers`` makes it wait for the unit that was freed two gathers ago, and until it reads the loss. A flat
gradient is put together on the main stream and reduced on the post-backward stream, which allocates the sharded
gradients. The collectives of a process group run one after another, so a gather that is done tells that the
reductions before it are.

What a flat parameter will need is allocated once on the main stream and freed before the first step
(``init_flat_param_attributes``): the cast shard, all of it as it is gathered, and under mixed precision all of it
in its own type. The cache that this leaves is what the first activations are split from.

Under CPU offload the pre-unshard stream allocates the copy of a shard that the host holds. It stays with the unit
where nothing casts it, and is freed once it is cast (``_use_low_precision_shard``). The sharded gradients stay
until the backward pass is over. Units that no ranks share are cast or copied on the pre-unshard stream, the root's
again in the backward pass, and their flat gradients are reduced in place.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from ...worker.memory.allocator_blocks import RETURNED, USED_ELSEWHERE
from ..buffers import weight_width
from ..fsdp1 import Part, casts_units, flat_units, keeps_copies, unit_rule
from ..rank_memory import RankMemory
from .communication import Communication
from .machine import Machine
from .recorder import SMALLEST_BYTES
from .stored_parameters import StoredParameter

SAME_SIZE = 0.01
"""Relative difference up to which a gradient is taken to be the embedding's."""


class FlatParameter:
    """One flat parameter, and the adapters in its module.

    Args:
        tensors: elements, bytes of the rank's shard, and whether it trains, of each parameter in it.
        width: bytes per element as it is gathered; 0: as it is stored.
        shards: ranks over which it is sharded.
        adapters: parameters that are flat parameters of their own.
    """

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
            at = next((at for at, each in enumerate(left) if abs(each - size) <= SAME_SIZE * size), None)
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


_GATHERING, _REDUCING, _CASTING, _COPYING = 1, 2, 3, 4
_IN_FLIGHT = 2
"""Freed units for which the CPU does not wait (``_FreeEventQueue``)."""


class FlatUnits(Communication):
    """FSDP1's units: of blocks or their parts, what is around them, and the root's."""

    def __init__(self, machine: Machine, rank: RankMemory, parameters: Sequence[StoredParameter]) -> None:
        super().__init__(machine, rank, parameters)
        job = rank.job
        self._widths = job.widths
        self._shards = job.shards.weights
        self._casts, self._keeps_copies = casts_units(job), keeps_copies(job)
        self._offloads = job.offloads_weights
        self._computes = self._shards > 1 or self._casts or self._offloads
        """Units are computed with in memory of their own."""
        self._on_gpu: list[int] = []
        """Sharded gradients that have been copied to the host."""
        self._prefetch = job.parallel.fsdp_backward_prefetch or "pre"
        self.gathers_before_loss = job.framework.loss_in_forward
        self._limit = job.parallel.limit_all_gathers is not False
        units = flat_parameters(rank, parameters)
        self._root, self._around, self._embedding, self._head = units.root, units.around, units.embedding, units.head
        self._blocks, self._inner = units.blocks, units.inner
        self._backward_order = units.backward_order
        self._gradients: list[int] = []
        """Gradients of parameters whose unit's gradient does not exist yet."""
        self._clock = 0
        self._freed: deque[tuple[int, int]] = deque()
        """Units that were freed, and gathered before that, in positions of the order of issue."""
        self._waiting: deque[tuple[int, int]] = deque()
        """Positions until which the main stream uses a buffer, each with the buffer's key."""
        self._reducing: deque[tuple[int, int]] = deque()
        """Positions until which the post-backward stream uses a buffer, each with the buffer's key."""

    def load(self, weights: Sequence[int]) -> None:  # noqa: ARG002 - flat parameters have other sizes
        """Load the rank's shards, one for each flat parameter, and the adapters' one by one."""
        units = [*self._all_units()]
        self.machine.take_all(unit.stored for unit in units if unit.stored)
        self.machine.take_all(size for unit in units for size in unit.adapter_sizes if size >= SMALLEST_BYTES)

    def begin(self) -> None:
        """Allocate and free what each flat parameter will need, from the root on."""
        if not self._computes:
            return
        for unit in self._all_units():
            if self._casts:
                self.machine.passing(unit.whole / self._shards)
            if self._shards > 1:
                self.machine.passing(unit.whole)
                if self._casts:
                    self.machine.passing(unit.stored * self._shards)

    def _all_units(self) -> Iterator[FlatParameter]:
        yield from (unit for unit in (self._root, self._around, self._embedding) if unit.whole)
        for at in sorted(self._blocks):
            yield self._blocks[at]
            yield from self._inner.get(at, ())
        yield from (unit for unit in (self._head,) if unit.whole)

    def begin_forward(self) -> None:
        """Gather the root and the unit around the blocks; the embedding runs."""
        self._gather(self._root)
        self._gather(self._around)
        self._gather(self._embedding)
        self._leave(self._embedding)

    def before_block(self, block: int) -> None:
        """Gather the block, and its parts one after another; the last one stays while the block runs."""
        if block not in self._blocks:
            return
        self._gather(self._blocks[block])
        self._pass_adapters(self._blocks[block])
        inner = self._inner.get(block, ())
        for unit in inner:
            self._gather(unit)
            if unit is not inner[-1]:
                self._leave(unit)

    def after_block(self, block: int) -> None:
        """Free it."""
        if block in self._blocks:
            for unit in (*self._inner.get(block, ())[-1:], self._blocks[block]):
                self._leave(unit)

    def before_head(self) -> None:
        """Free the unit around the blocks, and gather the head."""
        self._leave(self._around)
        self._gather(self._head)

    def after_head(self) -> None:
        """Free the head."""
        self._leave(self._head)

    def end_forward(self) -> None:
        """Free the root where no ranks share it: its copy does not outlive its forward pass (``post_reshard``)."""
        if self._shards == 1:
            self._free(self._root)

    def _leave(self, unit: FlatParameter) -> None:
        """Free a unit after its forward pass, unless units stay gathered."""
        if not self.rank.job.keeps_gathered:
            self._free(unit)

    def begin_backward(self) -> None:
        """Gather what runs backward first, ahead."""
        self._gather(self._root)
        if self._prefetch == "pre" and self._root.whole:
            self._gather_at(0)

    def before_head_backward(self) -> None:
        """Gather the head unless it is gathered, and the next unit ahead."""
        if self._head.whole:
            self._gather(self._head)
            self._gather_after(self._head, "pre")

    def after_head_backward(self, gradients: list[int]) -> list[int]:
        """Reduce the head's gradients, or keep them until the root's unit is reduced."""
        if self._head.whole:
            own = self._head.own_gradients(gradients, self.machine.size, self._widths.compute)
            kept = self._reduce(self._head, own)
            self._gradients += [key for key in gradients if key not in own]
            self._gather_after(self._head, "post")
        else:
            self._gradients += gradients
            kept = []
        self._gather(self._around)
        if self._around.whole:
            self._gather_after(self._around, "pre")
        return kept

    def before_block_backward(self, block: int) -> None:
        """Gather the block unless it is gathered, the part that runs backward first, and the next unit ahead."""
        if block not in self._blocks:
            return
        for unit in (self._blocks[block], *self._inner.get(block, ())[-1:]):
            self._gather(unit)
            if not unit.adapters:
                self._gather_after(unit, "pre")
        self._pass_adapters(self._blocks[block])

    def after_block_backward(self, block: int, gradients: list[int]) -> list[int]:
        """Reduce the gradients of the block's parts, and its own; what it leaves over waits for the unit around it."""
        if block not in self._blocks:
            self._gradients += gradients
            return []
        kept = []
        for unit in reversed(self._inner.get(block, ())):
            self._gather(unit)
            self._gather_after(unit, "pre")
            own = unit.own_gradients(gradients, self.machine.size, self._widths.compute)
            gradients = [key for key in gradients if key not in own]
            kept += self._reduce(unit, own)
            self._gather_after(unit, "post")
        unit = self._blocks[block]
        if unit.adapters:
            self._gather_after(unit, "pre")
        if not unit.takes_gradients:
            self._free(unit)
            self._gradients += gradients
            return kept
        kept += self._reduce(unit, gradients)
        self._gather_after(unit, "post")
        return kept

    def after_backward(self, gradients: list[int]) -> list[int]:
        """Reduce what is around the blocks; then the loss is read, and the GPU is done with everything."""
        waiting, self._gradients = [*self._gradients, *gradients], []
        kept = []
        for unit in (self._embedding, self._around):
            if unit.whole:
                self._gather(unit)
                own = gradients if unit is self._embedding else [key for key in waiting if not self._of_root(key)]
                waiting = [key for key in waiting if key not in own]
                kept += self._reduce(unit, own)
        kept += self._reduce(self._root, waiting)
        self._return(self._clock, self._clock)
        self._freed.clear()
        self.machine.release(self._on_gpu)
        self._on_gpu = []
        return kept

    def _of_root(self, key: int) -> bool:
        """Return True if the gradient is of the root's own unit."""
        return self._root.takes_gradients and bool(
            self._root.own_gradients([key], self.machine.size, self._widths.compute)
        )

    def _gather_at(self, at: int) -> None:
        """Gather a unit ahead, by its position in the backward pass."""
        if at < len(self._backward_order):
            self._gather(self._backward_order[at])

    def _pass_adapters(self, unit: FlatParameter) -> None:
        """Wait for what was freed before: each adapter in a block is a unit, and the CPU waits before its gather too.

        Adapters also come before the next block in the order in which units are gathered ahead.
        """
        if unit.adapters and self._limit and self._shards > 1:
            while self._freed:
                self._return(*self._freed.popleft())

    def _gather_after(self, unit: FlatParameter, when: str) -> None:
        """Gather ahead the unit that runs backward after one."""
        if self._prefetch == when and unit.whole:
            self._gather_at(self._backward_order.index(unit) + 1)

    def _gather(self, unit: FlatParameter) -> None:
        if unit.flat is not None or not unit.whole or not self._computes:
            return
        machine = self.machine
        copied = unit.stored if self._casts and self._offloads else 0
        if self._shards == 1:
            unit.flat = machine.take(unit.whole, _CASTING)
            machine.passing(copied, _CASTING)
            return
        shard = machine.take(unit.whole / self._shards, _CASTING) if self._casts or self._offloads else None
        machine.passing(copied, _CASTING)
        if self._limit and len(self._freed) >= _IN_FLIGHT:
            self._return(*self._freed.popleft())
        self._clock += 1
        unit.gathered_at = self._clock
        unit.flat = machine.take(unit.whole, _GATHERING)
        if shard is not None and self._keeps_copies:
            unit.copy = shard
        elif shard is not None:
            self._free_later(shard)

    def _free(self, unit: FlatParameter) -> None:
        if unit.flat is None:
            return
        self._clock += 1
        for key in (unit.flat, unit.copy):
            if key is not None:
                self._free_later(key)
        self._freed.append((self._clock, unit.gathered_at))
        unit.flat = unit.copy = None

    def _free_later(self, key: int) -> None:
        """Free what other streams use."""
        self.machine.allocator.free(key, USED_ELSEWHERE)
        self._waiting.append((self._clock, key))

    def _return(self, computed: int, collected: int) -> None:
        """Give back what the GPU is done with: on the main stream, and by the collectives, up to a position each."""
        for blocks, position in ((self._waiting, computed), (self._reducing, collected)):
            while blocks and blocks[0][0] <= position:
                self.machine.allocator.free(blocks.popleft()[1], RETURNED)

    def _reduce(self, unit: FlatParameter, gradients: list[int]) -> list[int]:
        machine, widths = self.machine, self._widths
        elements, width = unit.trained + unit.adapters, widths.compute if unit.trained else widths.adapter
        if not elements or not gradients:
            machine.release(gradients)
            self._free(unit)
            return []
        flat = machine.take(elements * width)
        machine.release(gradients)
        if unit.accumulated is not None:  # added in place
            machine.release([flat])
            flat = unit.accumulated
        unit.accumulated = None if self.last_micro_batch else flat
        if not self.rank.job.keeps_gathered or self.last_micro_batch:
            self._free(unit)
        if not self.last_micro_batch:
            return []
        if self._shards == 1:
            return self._reduce_whole(flat, elements, width)
        cast = machine.take(elements * widths.reduce, _REDUCING) if widths.reduce != width and unit.trained else None
        output = machine.take(elements * (widths.reduce if unit.trained else width) / self._shards, _REDUCING)
        if cast is not None:
            machine.release([cast])
        if unit.trained and widths.reduce != widths.gradient:
            copies = self.rank.job.parallel.data_replicate > 1  # which agree on another stream
            narrow = machine.take(elements * widths.gradient / self._shards, _COPYING if copies else _REDUCING)
            machine.release([output])
            output = narrow
        self._clock += 1
        machine.allocator.free(flat, USED_ELSEWHERE)
        self._reducing.append((self._clock, flat))
        return self._kept([output])

    def _reduce_whole(self, flat: int, elements: int, width: int) -> list[int]:
        """Reduce a gradient that each rank has whole, in the type of reductions, and cast it to that of gradients."""
        widths = self._widths
        for next_width in dict.fromkeys((widths.reduce, widths.gradient)):
            if next_width == width:
                continue
            cast = self.machine.take(elements * next_width, _REDUCING)
            self._clock += 1
            self.machine.allocator.free(flat, USED_ELSEWHERE)
            self._reducing.append((self._clock, flat))
            flat, width = cast, next_width
        return self._kept([flat])

    def _kept(self, gradients: list[int]) -> list[int]:
        """Return the gradients that stay until the step; those that are copied to the host stay until it begins."""
        if self._offloads:
            self._on_gpu += gradients
            return []
        return gradients
