"""FSDP's gathers and reductions in the replay: FSDP1's flat parameters, FSDP2's units, Megatron-FSDP's buckets."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from ...worker.memory.allocator import RETURNED, USED_ELSEWHERE
from ..buffers import weight_width
from ..fsdp1 import Part, casts_units, flat_units, keeps_copies, unit_rule
from ..megatron_fsdp import megatron_capacity
from ..rank_memory import RankMemory
from .block import SMALLEST_BYTES
from .machine import Communication, Machine, StoredParameter

# FSDP1's flat parameters in the replay: what each consists of, and in which order they run.


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


# FSDP1's gathers and reductions: flat parameters and flat gradients, on the streams that allocate them.
#
# From torch 2.13 (``distributed/fsdp/_runtime_utils.py``, ``_flat_param.py``): the unshard stream allocates what is
# gathered and the pre-unshard stream the shard in the compute type; both are used on other streams, and so their
# blocks return to their pools when the GPU is done with them (``record_stream``). The CPU runs ahead of the GPU until
# ``limit_all_gathers`` makes it wait for the unit that was freed two gathers ago, and until it reads the loss. A flat
# gradient is put together on the main stream and reduced on the post-backward stream, which allocates the sharded
# gradients. The collectives of a process group run one after another, so a gather that is done tells that the
# reductions before it are.
#
# What a flat parameter will need is allocated once on the main stream and freed before the first step
# (``init_flat_param_attributes``): the cast shard, all of it as it is gathered, and under mixed precision all of it
# in its own type. The cache that this leaves is what the first activations are split from.
#
# Under CPU offload the pre-unshard stream allocates the copy of a shard that the host holds. It stays with the unit
# where nothing casts it, and is freed once it is cast (``_use_low_precision_shard``). The sharded gradients stay
# until the backward pass is over. Units that no ranks share are cast or copied on the pre-unshard stream, the root's
# again in the backward pass, and their flat gradients are reduced in place.


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


# FSDP2's gathers and reductions: the units' flat buffers and parameters, on the streams that allocate them.
#
# From torch 2.13 (``distributed/fsdp/_fully_shard/_fsdp_collectives.py``): the gathering stream allocates the shards'
# casts and the flat buffer, the main stream the parameters that are copied out of it and the input of a
# reduce-scatter, the reducing stream its output, of which the sharded gradients are views. In the forward pass a flat
# buffer stays until the next unit's parameters exist; in the backward pass the next unit is gathered ahead.


_FSDP2_GATHERING, _FSDP2_REDUCING = 1, 2
_EMBEDDING, _AFTER = -1, -2


class _Unit:
    """Parameters that are gathered together."""

    def __init__(self, parameters: Sequence[StoredParameter], width: int, shards: int) -> None:
        self.parameters = parameters
        self.sizes = [p.elements * width if width else p.weight * shards // p.counted for p in parameters]
        self.whole = sum(self.sizes)
        self.shard = -(-sum(size * p.counted for size, p in zip(self.sizes, parameters, strict=True)) // shards)
        self.trained = sum(p.elements for p in parameters if p.trained)
        self.reduced = sum(p.elements * p.counted for p in parameters if p.trained) / shards
        """Elements of gradients that the rank keeps."""
        self.flat: list[int] = []
        self.gathered: list[int] = []


class Units(Communication):
    """FSDP2's units: blocks, and what is around them, in units of their own or in the root's."""

    def __init__(self, machine: Machine, rank: RankMemory, parameters: Sequence[StoredParameter]) -> None:
        super().__init__(machine, rank, parameters)
        job, stage = rank.job, rank.stage
        self._widths = job.widths
        self._shards = job.shards.weights
        self._casts = job.widths.casts
        width = job.widths.compute if self._casts else 0
        by_block: dict[int, list[StoredParameter]] = {}
        for parameter in parameters:
            by_block.setdefault(parameter.block, []).append(parameter)
        embedding, after = by_block.pop(_EMBEDDING, []), by_block.pop(_AFTER, [])
        if job.parallel.fsdp_units == "model":
            embedding, after = list(parameters), []
            by_block = {}
        root = not job.units_around_blocks or job.parallel.fsdp_units == "model"
        if root or (rank.tied and stage.last):
            embedding, after = [*embedding, *after], []
        self._root = _Unit(embedding, width, self._shards)
        self._stays = root or (rank.tied and stage.last)
        self._head = _Unit(after, width, self._shards)
        self._blocks = {at: _Unit(held, width, self._shards) for at, held in by_block.items()}
        self._order = sorted(self._blocks)
        self._previous: _Unit | None = None
        self._reducing: list[int] = []
        self._accumulated: dict[int, list[int]] = {}

    def begin_forward(self) -> None:
        """Gather the embedding, or the root."""
        self._forward(self._root)

    def before_block(self, block: int) -> None:
        """Gather the block, and free the embedding before the first one."""
        if block == 0 and not self._stays:
            self._reshard(self._root)
        if block in self._blocks:
            self._forward(self._blocks[block])

    def after_block(self, block: int) -> None:
        """Free the block's parameters."""
        if block in self._blocks and not self.rank.job.keeps_gathered:
            self._reshard(self._blocks[block])

    def before_head(self) -> None:
        """Gather norm and head."""
        if self._head.sizes:
            self._forward(self._head)

    def end_forward(self) -> None:
        """Free the last flat buffer."""
        if self._previous is not None:
            self.machine.release(self._previous.flat)
            self._previous.flat = []
            self._previous = None

    def begin_backward(self) -> None:
        """Gather the last block ahead."""
        self._prefetch(len(self._order) - 1)

    def after_head_backward(self, gradients: list[int]) -> list[int]:
        """Reduce the head's gradients, unless they wait for the embedding's."""
        if not self._head.sizes:
            self.waiting = gradients
            return []
        self._reshard(self._head)
        return self._reduce(_AFTER, self._head, gradients)

    def before_block_backward(self, block: int) -> None:
        """Take the block that was gathered ahead, and gather the next one."""
        unit = self._blocks.get(block)
        if unit is None:
            return
        self._copy_out(unit)
        self.machine.release(unit.flat)
        unit.flat = []
        self._prefetch(self._order.index(block) - 1)

    def after_block_backward(self, block: int, gradients: list[int]) -> list[int]:
        """Reduce the block's gradients."""
        unit = self._blocks.get(block)
        if unit is None:
            self.waiting += gradients
            return []
        self._reshard(unit)
        return self._reduce(block, unit, gradients)

    def after_backward(self, gradients: list[int]) -> list[int]:
        """Reduce what is left."""
        if not self._stays:
            self._copy_out(self._root)
            self.machine.release(self._root.flat)
            self._root.flat = []
        self._reshard(self._root)
        waiting, self.waiting = self.waiting, []
        kept = self._reduce(_EMBEDDING, self._root, [*waiting, *gradients])
        self.machine.release(self._reducing)
        self._reducing = []
        return kept

    def _gather(self, unit: _Unit) -> None:
        if unit.flat or unit.gathered or not unit.whole:
            return
        shard = self.machine.take(unit.shard, _FSDP2_GATHERING) if self._casts else None
        unit.flat = [self.machine.take(unit.whole, _FSDP2_GATHERING)]
        if shard is not None:
            self.machine.release([shard])

    def _copy_out(self, unit: _Unit) -> None:
        if not unit.gathered:
            self._gather(unit)
            unit.gathered = self.machine.take_all(unit.sizes)

    def _forward(self, unit: _Unit) -> None:
        self._gather(unit)
        self._copy_out(unit)
        self.end_forward()
        self._previous = unit

    def _reshard(self, unit: _Unit) -> None:
        self.machine.release(unit.gathered)
        unit.gathered = []

    def _prefetch(self, at: int) -> None:
        if at >= 0:
            self._gather(self._blocks[self._order[at]])
        elif not self._stays:
            self._gather(self._root)

    def _reduce(self, name: int, unit: _Unit, gradients: list[int]) -> list[int]:
        widths, machine = self._widths, self.machine
        if not unit.trained:
            machine.release(gradients)
            return []
        if not self.last_micro_batch:
            if widths.reduce != widths.compute:
                wide = machine.take_all(p.elements * widths.reduce for p in unit.parameters if p.trained)
                machine.release(gradients)
                gradients = wide
            if name in self._accumulated:
                machine.release(gradients)
            else:
                self._accumulated[name] = gradients
            return []
        machine.release(self._reducing)
        own_pool = self.rank.job.versions.reduces_in_own_pool
        flat = [machine.take(unit.trained * widths.reduce, _FSDP2_REDUCING if own_pool else 0)]
        machine.release(gradients)
        machine.release(self._accumulated.pop(name, []))
        output = machine.take(unit.reduced * widths.reduce, _FSDP2_REDUCING)
        if widths.reduce != widths.weight:
            narrow = machine.take(unit.reduced * widths.weight, _FSDP2_REDUCING)
            machine.release([output])
            output = narrow
        self._reducing = [] if own_pool else flat
        if own_pool:  # work of the same stream may take its place at once
            machine.release(flat)
        if self.rank.job.offloads_weights:
            machine.release([output])  # copied to the host
            return []
        return [output]


# Megatron-FSDP's buckets in the replay: gathered weights on a stream of their own, whole gradients on the main one.
#
# From megatron-fsdp 0.6.1 (``param_and_grad_buffer.py``; compared with its own allocations on fake tensors): a unit's
# weights are one tensor, which the gathering stream allocates, and which the CPU frees when the unit has run, without
# ``record_stream``. As many units are gathered ahead as have half of the capacity's elements; of the modules outside
# of the units only those of the first forward pass gather ahead. What is outside stays gathered. A unit's whole
# gradients are a tensor of the main stream from the first gradient on, freed once more than the capacity waits behind
# it. The cache is emptied before training (``empty_cache``), and ``fully_shard_optimizer`` has taken a step then;
# Megatron-LM's optimizer has not, and its kernels write gradients into the bucket. Older versions (``VersionRules``)
# free what is outside after each pass, gather the first units while the loss runs, and copy a unit's gradients at its
# end.


_MEGATRON_GATHERING, _MEGATRON_REDUCING = 1, 2
_SAME_SIZE = 0.01
"""Relative difference up to which a gradient is taken to be the embedding's."""


class _MegatronUnit:
    """Parameters that are communicated together."""

    def __init__(self, parameters: Sequence[StoredParameter], shards: int) -> None:
        self.parameters = parameters
        self.whole = sum(p.weight for p in parameters) * shards
        self.elements = sum(p.elements for p in parameters)
        self.trained = sum(p.elements for p in parameters if p.trained)
        self.gathered: int | None = None
        self.bucket: int | None = None


class MegatronUnits(Communication):
    """Megatron-FSDP's units: the blocks, and what is outside of them."""

    def __init__(self, machine: Machine, rank: RankMemory, parameters: Sequence[StoredParameter]) -> None:
        super().__init__(machine, rank, parameters)
        job = rank.job
        self._widths, self._stage, self._shards = job.widths, job.zero_stage, job.shards
        by_block: dict[int, list[StoredParameter]] = {}
        for parameter in parameters:
            by_block.setdefault(-1 if job.parallel.fsdp_units == "model" else parameter.block, []).append(parameter)
        outside = [*by_block.pop(-1, []), *by_block.pop(-2, [])]
        self._root = _MegatronUnit(outside, self._shards.weights)
        self._blocks = {at: _MegatronUnit(held, self._shards.weights) for at, held in sorted(by_block.items())}
        elements = sum(unit.elements for unit in self._blocks.values()) / max(1, len(self._blocks))
        self._capacity = megatron_capacity(job, elements)
        self._doubles = job.parallel.double_buffer and bool(self._blocks)
        self._own_kernels = job.framework.gradient_buffer
        self._frees_outside = job.versions.frees_outside_units
        self._whole_modules = job.versions.reduces_whole_modules and not self._own_kernels
        self._gradients: list[int] = []
        """Gradients of the module that runs backward, until all of them exist."""
        self._running: _MegatronUnit = self._root
        """The unit that runs backward."""
        self._has_run_backward = False
        self._unused: set[int] = set()
        """Gathered blocks that are freed before the next one is gathered."""
        self._queue: deque[_MegatronUnit] = deque()
        self._copies: list[int] = []
        """fp32 gradients that the optimizer has of the micro-batches so far."""
        tokens, tied = rank.stage.token_embedding, rank.tied and rank.stage.last
        self._tied_gradient = tokens.largest_tensor * self._widths.compute if tokens and tied else 0
        self._waiting: list[int] = []
        """The gradient of a tied head, which is copied when the backward pass is over."""
        self.stepped = [_stepped(unit.parameters) for unit in (self._root, *self._blocks.values()) if unit.trained]
        self.steps_before = not self._own_kernels and not job.versions.lazy_states
        self._reduces_apart = job.versions.lazy_states
        if self._widths.master:
            self.states_made = sum(4 * unit.trained // self._shards.optimizer for unit in self._all())

    def load(self, weights: Sequence[int]) -> None:  # noqa: ARG002 - buckets have other sizes
        """Allocate this rank's part of each bucket, and its fp32 copy."""
        for unit in self._all():
            self.machine.take_all([unit.whole / self._shards.weights] if unit.whole else [])
            if self._widths.master and unit.trained:
                self.machine.take(4 * unit.trained / self._shards.optimizer)
        if self._doubles:
            largest = max(self._blocks.values(), key=lambda unit: unit.elements)
            sizes = [*([largest.whole] if self._stage == 3 else []), largest.trained * self._widths.reduce]
            self.machine.take_all(sizes * 2 if self._stage >= 2 else [])

    def begin_forward(self) -> None:
        """Gather what is outside of the blocks, which stays, and blocks ahead in the first pass."""
        if self._stage == 3 and self._root.gathered is None and self._root.whole:
            self._root.gathered = self.machine.take(self._root.whole, _MEGATRON_GATHERING)
        if self._frees_outside or not self._has_run_backward:
            self._gather(0, 1, of_block=False)

    def before_block(self, block: int) -> None:
        """Gather the block, and those behind it."""
        self._gather(block, 1)

    def after_block(self, block: int) -> None:
        """Free it."""
        self._free(block)

    def before_head(self) -> None:
        """Gather the first blocks once more, in the first pass."""
        if self._frees_outside or not self._has_run_backward:
            self._gather(0, 1, of_block=False)

    def before_head_backward(self) -> None:
        """Begin the backward pass, which asks for the last blocks."""
        self._running, self._has_run_backward = self._root, True
        self._unused = {at for at, unit in self._blocks.items() if unit.gathered is not None}

    def take_gradient(self, key: int) -> None:
        """Copy a gradient into the whole ones of its unit."""
        machine = self.machine
        tied = self._tied_gradient if self._running is self._root and not self._own_kernels else 0
        if tied and abs(machine.size(key) - tied) <= _SAME_SIZE * tied:
            self._waiting.append(machine.keep(key))
            return
        if self._whole_modules:
            self._gradients.append(machine.keep(key))
            return
        if self._stage >= 2:
            self._fill(self._running)
        machine.allocator.free(key)

    def after_head_backward(self, gradients: list[int]) -> list[int]:
        """Have a bucket for what is outside of the blocks."""
        if self._stage >= 2:
            self._fill(self._root)
        self._copied(gradients)
        return []

    def before_block_backward(self, block: int) -> None:
        """Gather the block, and those before it."""
        self._running = self._blocks.get(block, self._root)
        self._gather(block, -1)
        if self._own_kernels and self._stage >= 2:
            self._fill(self._running)

    def after_block_backward(self, block: int, gradients: list[int]) -> list[int]:
        """Free the block's weights, and reduce its gradients."""
        self._free(block)
        unit = self._blocks.get(block)
        if unit is not None and self._whole_modules and self._stage >= 2:
            self._fill(unit)
        self._copied(gradients)
        if unit is not None:
            self._reduce(unit)
        return []

    def after_backward(self, gradients: list[int]) -> list[int]:
        """Reduce what is left; return the gradients that the optimizer gets as fp32 copies."""
        machine = self.machine
        machine.release([*gradients, *self._waiting])
        self._waiting = []
        self._reduce(self._root)
        self._wait(-1)
        last = self.last_micro_batch
        if self.rank.job.casts_gradients and (last or not self._own_kernels):
            copies = machine.take_all(4 * unit.trained / self._shards.optimizer for unit in self._all() if unit.trained)
            machine.release(self._copies)
            self._copies = copies
        for block in self._blocks:
            self._free(block)
        if self._frees_outside and self._root.gathered is not None:
            machine.release([self._root.gathered])
            self._root.gathered = None
        self._unused.clear()
        kept, self._copies = (self._copies, []) if last else ([], self._copies)
        return kept

    def _all(self) -> Iterable[_MegatronUnit]:
        return (self._root, *self._blocks.values())

    def _gather(self, block: int, step: int, *, of_block: bool = True) -> None:
        """Gather a block, and those behind or before it until they have half of the capacity's elements."""
        if self._stage < 3 or self._doubles or not self._blocks:
            return
        wanted, size, at = ([block], 0, block + step) if of_block else ([], 0, block)
        self._unused.difference_update(wanted)
        while at in self._blocks and size < self._capacity // 2:
            wanted.append(at)
            size += self._blocks[at].elements + 1
            at += step
        for at in sorted(wanted):
            unit = self._blocks.get(at)
            if unit is not None and unit.gathered is None:
                for unused in sorted(self._unused):
                    self._free(unused)
                self._unused.clear()
                unit.gathered = self.machine.take(unit.whole, _MEGATRON_GATHERING)

    def _free(self, block: int) -> None:
        unit = self._blocks.get(block)
        if unit is not None and unit.gathered is not None:
            self.machine.release([unit.gathered])
            unit.gathered = None

    def _fill(self, unit: _MegatronUnit, stream: int = 0) -> None:
        if unit.bucket is None and unit.trained and not (self._doubles and unit is not self._root):
            unit.bucket = self.machine.take(unit.trained * self._widths.reduce, stream)

    def _copied(self, gradients: list[int]) -> None:
        """Let go of gradients that have been copied into a bucket."""
        self.machine.release([*gradients, *self._gradients])
        self._gradients = []

    def _reduce(self, unit: _MegatronUnit) -> None:
        self._wait(self._capacity)
        if self._reduces_apart and self._stage >= 2 and unit.bucket is not None:
            self.machine.passing(unit.trained * self._widths.reduce / self._shards.gradients, _MEGATRON_REDUCING)
        if self._stage < 2 and self._widths.reduce != self._widths.gradient:
            self._fill(unit, _MEGATRON_REDUCING)
        if unit.bucket is not None:
            self._queue.append(unit)

    def _wait(self, capacity: int) -> None:
        size = sum(unit.trained + 1 for unit in self._queue)  # padding makes a bucket larger than its parameters
        while self._queue and size > capacity:
            unit = self._queue.popleft()
            size -= unit.trained + 1
            self.machine.release([] if unit.bucket is None else [unit.bucket])
            unit.bucket = None


def _stepped(parameters: Sequence[StoredParameter]) -> StoredParameter:
    """Return what the optimizer steps of a unit as one tensor: a rank's shard begins and ends anywhere."""
    trained = [p for p in parameters if p.trained]
    count = max(len(p.states) for p in trained)
    return StoredParameter(
        weight=sum(p.weight for p in trained),
        gradient=sum(p.gradient for p in trained),
        states=tuple(sum(p.states[at] for p in trained if at < len(p.states)) for at in range(count)),
        step=sum(p.step for p in trained),
        elements=sum(p.elements for p in trained),
        trained=True,
        block=trained[0].block,
    )
