"""Megatron-FSDP's buckets in the replay: gathered weights on a stream of their own, whole gradients on the main one.

From megatron-fsdp 0.6.1 (``param_and_grad_buffer.py``; compared with its own allocations on fake tensors): a unit's
weights are one tensor, which the gathering stream allocates, and which the CPU frees when the unit has run, without
``record_stream``. As many units are gathered ahead as have half of the capacity's elements; of the modules outside
of the units only those of the first forward pass gather ahead. What is outside stays gathered. A unit's whole
gradients are a tensor of the main stream from the first gradient on, freed once more than the capacity waits behind
it. The cache is emptied before training (``empty_cache``), and ``fully_shard_optimizer`` has taken a step then;
Megatron-LM's optimizer has not, and its kernels write gradients into the bucket. Older versions (``VersionRules``)
free what is outside after each pass, gather the first units while the loss runs, and copy a unit's gradients at its
end.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from ..megatron_fsdp import megatron_capacity
from ..rank_memory import RankMemory
from .communication import Communication
from .fsdp1 import SAME_SIZE
from .machine import Machine
from .stored_parameters import StoredParameter

_MEGATRON_GATHERING, _MEGATRON_REDUCING = 1, 2


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
        if tied and abs(machine.size(key) - tied) <= SAME_SIZE * tied:
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
