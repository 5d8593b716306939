"""FSDP1's gathers and reductions: flat parameters and flat gradients, on the streams that allocate them.

From torch 2.13 (``distributed/fsdp/_runtime_utils.py``, ``_flat_param.py``): the unshard stream allocates what is
gathered and the pre-unshard stream the shard in the compute type; both are used on other streams, and so their blocks
return to their pools when the GPU is done with them (``record_stream``). The CPU runs ahead of the GPU until
``limit_all_gathers`` makes it wait for the unit that was freed two gathers ago, and until it reads the loss. A flat
gradient is put together on the main stream and reduced on the post-backward stream, which allocates the sharded
gradients. The collectives of a process group run one after another, so a gather that is done tells that the
reductions before it are.

Under CPU offload the pre-unshard stream allocates the copy of a shard that the host holds, which stays with the unit
where nothing casts it, and the sharded gradients stay until the backward pass is over. Units that no ranks share are
cast or copied on the pre-unshard stream, and their flat gradients are reduced in place.
"""

from collections import deque
from collections.abc import Sequence

from ....worker.memory.allocator_blocks import RETURNED, USED_ELSEWHERE
from ...fsdp1 import casts_units, keeps_copies
from ...rank_memory import RankMemory
from ..communication import Communication
from ..machine import Machine
from ..parameters import StoredParameter

_GATHERING, _REDUCING, _CASTING, _COPYING = 1, 2, 3, 4
_IN_FLIGHT = 2
"""Freed units for which the CPU does not wait (``_FreeEventQueue``)."""


class _Unit:
    """One flat parameter, and the adapters in its module."""

    __slots__ = ("accumulated", "adapters", "copy", "flat", "gathered_at", "trained", "whole")

    def __init__(self, parameters: Sequence[StoredParameter], width: int, shards: int, *, has_adapters: bool) -> None:
        own = [p for p in parameters if not (has_adapters and p.trained)]
        self.whole = sum(p.elements * width if width else p.weight * shards for p in own)
        elements = sum(p.elements for p in own)
        self.trained = elements if any(p.trained for p in own) else 0
        self.adapters = sum(p.elements for p in parameters if has_adapters and p.trained)
        self.flat: int | None = None
        self.copy: int | None = None
        """The shard that was copied from the host."""
        self.gathered_at = 0
        self.accumulated: int | None = None


class FlatUnits(Communication):
    """FSDP1's units: the blocks, and the root."""

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
        width = job.widths.compute if self._casts else 0
        adapters = job.adapter_units
        in_blocks = job.parallel.fsdp_units != "model"
        by_block: dict[int, list[StoredParameter]] = {}
        around: list[StoredParameter] = []
        for parameter in parameters:
            if parameter.block >= 0 and in_blocks:
                by_block.setdefault(parameter.block, []).append(parameter)
            else:
                around.append(parameter)
        self._root = _Unit(around, width, self._shards, has_adapters=adapters)
        self._blocks = {at: _Unit(held, width, self._shards, has_adapters=adapters) for at, held in by_block.items()}
        self._order = sorted(self._blocks)
        self._gradients: list[int] = []
        """Of parameters whose unit's gradient does not exist yet."""
        self._clock = 0
        self._freed: deque[tuple[int, int]] = deque()
        """Units that were freed, and gathered before that, in positions of the order of issue."""
        self._waiting: deque[tuple[int, int]] = deque()
        """What the main stream uses until a position, and its key."""
        self._reducing: deque[tuple[int, int]] = deque()
        """What the post-backward stream uses until a position, and its key."""

    def begin_forward(self) -> None:
        """Gather the root."""
        self._gather(self._root)

    def before_block(self, block: int) -> None:
        """Gather the block."""
        if block in self._blocks:
            self._gather(self._blocks[block])

    def after_block(self, block: int) -> None:
        """Free it."""
        if block in self._blocks and not self.rank.job.keeps_gathered:
            self._free(self._blocks[block])

    def begin_backward(self) -> None:
        """Gather the last block ahead."""
        if self._prefetch == "pre" and self._root.whole:
            self._gather_at(len(self._order) - 1)

    def after_head_backward(self, gradients: list[int]) -> list[int]:
        """Keep the head's gradients until the root's unit is reduced."""
        self._gradients += gradients
        return []

    def before_block_backward(self, block: int) -> None:
        """Gather the block unless it is gathered, and the next one ahead."""
        if block in self._blocks:
            self._gather(self._blocks[block])
            if self._prefetch == "pre":
                self._gather_at(self._order.index(block) - 1)

    def after_block_backward(self, block: int, gradients: list[int]) -> list[int]:
        """Reduce the block's gradients."""
        if block not in self._blocks:
            self._gradients += gradients
            return []
        kept = self._reduce(self._blocks[block], gradients)
        if self._prefetch == "post":
            self._gather_at(self._order.index(block) - 1)
        return kept

    def after_backward(self, gradients: list[int]) -> list[int]:
        """Reduce the root's gradients; then the loss is read, and the GPU is done with everything."""
        waiting, self._gradients = [*self._gradients, *gradients], []
        kept = self._reduce(self._root, waiting)
        self._return(self._clock, self._clock)
        self._freed.clear()
        self.machine.release(self._on_gpu)
        self._on_gpu = []
        return kept

    def _gather(self, unit: _Unit) -> None:
        if unit.flat is not None or not unit.whole or not self._computes:
            return
        machine = self.machine
        if self._shards == 1:
            unit.flat = machine.take(unit.whole, _CASTING)
            return
        shard = machine.take(unit.whole / self._shards, _CASTING) if self._casts or self._offloads else None
        if self._limit and len(self._freed) >= _IN_FLIGHT:
            self._return(*self._freed.popleft())
        self._clock += 1
        unit.gathered_at = self._clock
        unit.flat = machine.take(unit.whole, _GATHERING)
        if shard is not None and self._keeps_copies:
            unit.copy = shard
        elif shard is not None:
            self._free_later(shard)

    def _gather_at(self, at: int) -> None:
        if at >= 0:
            self._gather(self._blocks[self._order[at]])

    def _free(self, unit: _Unit) -> None:
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

    def _reduce(self, unit: _Unit, gradients: list[int]) -> list[int]:
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
