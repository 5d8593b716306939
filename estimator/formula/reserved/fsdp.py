"""FSDP's gathers and reductions: the units' buffers and parameters, on the streams that allocate them.

FSDP2, from torch 2.13 (``distributed/fsdp/_fully_shard/_fsdp_collectives.py``): the gathering stream allocates the
shards' casts and the flat buffer, the main stream the parameters that are copied out of it and the input of a
reduce-scatter, the reducing stream its output, of which the sharded gradients are views. In the forward pass a flat
buffer stays until the next unit's parameters exist; in the backward pass the next unit is gathered ahead.

FSDP1 (``distributed/fsdp/_runtime_utils.py``, ``_flat_param.py``) is taken to do the same, but that its parameters are
views of the flat buffer, whose block, as that of a reduction's input, returns to its pool when the GPU is done with it
(``record_stream``), and that each unit is put together on the GPU when the model is wrapped. Units inside of blocks are
taken as part of them.
"""

from collections import deque
from collections.abc import Sequence

from ...worker.memory.allocator_blocks import RETURNED, USED_ELSEWHERE
from ..fsdp1 import prefetch, unit_rule
from ..rank_memory import RankMemory
from .communication import Communication
from .machine import Machine
from .stored_parameters import StoredParameter

_GATHERING, _REDUCING = 1, 2
_EMBEDDING, _AFTER = -1, -2
_IN_FLIGHT = 2
"""Freed flat parameters for which the CPU does not wait (FSDP1's ``_FreeEventQueue``)."""
_REDUCTIONS_IN_FLIGHT = 3
"""Freed inputs of reductions that are not known to be done when the CPU has waited for that.

Collectives of a group run one after another: that the GPU is done with a unit which was gathered after a reduction
tells of the reduction, three of which are issued in the meantime.
"""


class _Unit:
    """Parameters that are gathered together."""

    def __init__(self, parameters: Sequence[StoredParameter], width: int, shards: int) -> None:
        self.parameters = parameters
        self.sizes = [
            round(p.elements * p.padding) * width if width else p.weight * shards // p.counted for p in parameters
        ]
        self.whole = sum(self.sizes)
        self.shard = -(-sum(size * p.counted for size, p in zip(self.sizes, parameters, strict=True)) // shards)
        self.trained = sum(p.elements * p.padding for p in parameters if p.trained)
        """Elements of the input of the reduction."""
        self.reduced = sum(p.elements * p.padding * p.counted for p in parameters if p.trained) / shards
        """Elements of gradients that the rank keeps."""
        self.flat: list[int] = []
        self.gathered: list[int] = []


class Units(Communication):
    """FSDP's units: blocks, and what is around them, in units of their own or in the root's."""

    def __init__(self, machine: Machine, rank: RankMemory, parameters: Sequence[StoredParameter]) -> None:
        super().__init__(machine, rank, parameters)
        job, stage = rank.job, rank.stage
        self._widths = job.widths
        self._shards = job.shards.weights
        self._casts = job.widths.casts
        self._views = job.strategy.flat_parameters
        """Parameters are views of the flat buffer."""
        self._prefetches = prefetch(job, stage) if self._views else "pre"
        """When the backward pass gathers the block that it needs next."""
        self._in_use: deque[int] = deque()
        """Freed buffers that the GPU still computes with."""
        self._reduced: deque[int] = deque()
        """Freed buffers that the GPU still reduces."""
        width = job.widths.compute if self._casts else 0
        by_block: dict[int, list[StoredParameter]] = {}
        for parameter in parameters:
            by_block.setdefault(parameter.block, []).append(parameter)
        embedding, after = by_block.pop(_EMBEDDING, []), by_block.pop(_AFTER, [])
        rule = unit_rule(job)
        in_one = job.parallel.fsdp_units == "model" or not (rule.blocks or rule.minimum or rule.names)
        if in_one:
            embedding, after = list(parameters), []
            by_block = {}
        root = in_one or not job.units_around_blocks
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

    def load(self, weights: Sequence[int]) -> None:
        """Load the rank's shards; FSDP1 puts each unit together on the GPU first, the root's after the blocks'."""
        if not self._views or self.rank.job.quantization is not None:
            super().load(weights)
            return
        for unit in (*self._blocks.values(), self._root):
            stored = [p.weight * self._shards for p in unit.parameters]
            whole = self.machine.take_all([*stored, sum(stored)])
            self.machine.take_all(p.weight for p in unit.parameters)
            self.machine.release(whole)

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
        if self._prefetches in ("pre", "late"):
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
        if self._prefetches == "pre":
            self._prefetch(self._order.index(block) - 1)

    def after_block_backward(self, block: int, gradients: list[int]) -> list[int]:
        """Reduce the block's gradients."""
        unit = self._blocks.get(block)
        if unit is None:
            self.waiting += gradients
            return []
        if self._prefetches in ("late", "post"):
            self._prefetch(self._order.index(block) - 1)
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
        self._wait(0)  # the loss is read
        return kept

    def _gather(self, unit: _Unit) -> None:
        if unit.flat or unit.gathered or not unit.whole:
            return
        if self.rank.job.parallel.limit_all_gathers is not False:
            self._wait(_IN_FLIGHT - 1)
        shard = self.machine.take(unit.shard, _GATHERING) if self._casts else None
        unit.flat = [self.machine.take(unit.whole, _GATHERING)]
        if shard is not None:
            self.machine.release([shard])

    def _copy_out(self, unit: _Unit) -> None:
        if not unit.gathered:
            self._gather(unit)
            if self._views:
                unit.gathered, unit.flat = unit.flat, []
            else:
                unit.gathered = self.machine.take_all(unit.sizes)

    def _forward(self, unit: _Unit) -> None:
        self._gather(unit)
        self._copy_out(unit)
        self.end_forward()
        self._previous = unit

    def _reshard(self, unit: _Unit) -> None:
        if self._views:
            self.machine.release(unit.gathered, USED_ELSEWHERE)
            self._in_use += unit.gathered
        else:
            self.machine.release(unit.gathered)
        unit.gathered = []

    def _wait(self, left: int) -> None:
        """Have the GPU compute until so many freed buffers are left that it still needs."""
        for held, most in ((self._in_use, left), (self._reduced, _REDUCTIONS_IN_FLIGHT if left else 0)):
            while len(held) > most:
                self.machine.allocator.free(held.popleft(), RETURNED)

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
        flat = [machine.take(unit.trained * widths.reduce, _REDUCING if own_pool else 0)]
        machine.release(gradients)
        machine.release(self._accumulated.pop(name, []))
        output = machine.take(unit.reduced * widths.reduce, _REDUCING)
        if widths.reduce != widths.weight:
            narrow = machine.take(unit.reduced * widths.weight, _REDUCING)
            machine.release([output])
            output = narrow
        self._reducing = [] if own_pool or self._views else flat
        if own_pool:  # work of the same stream may take its place at once
            machine.release(flat)
        elif self._views:
            machine.release(flat, USED_ELSEWHERE)
            self._reduced += flat
        if self.rank.job.offloads_weights:
            machine.release([output])  # copied to the host
            return []
        return [output]
