"""Allocations of data parallelism around blocks: buckets, gathered weights, gradients under reduction.

A strategy is a subclass of ``Communication``, whose methods are called at the moments of a step; FSDP's units,
DDP's buckets and the constant buffers of other strategies are here and beside.
"""

from collections import deque
from collections.abc import Sequence

from ...job.rules.buffer_sizes import BUCKET_BYTES, FIRST_BUCKET_BYTES
from ...worker.memory.allocator_blocks import RETURNED, USED_ELSEWHERE
from ...worker.memory.record_stream import MOST_LAUNCHES
from ..rank_memory import RankMemory
from ..zero import zero_sizes
from .machine import SMALLEST_BYTES, Machine
from .stored_parameters import StoredParameter


class Communication:
    """Data parallelism that allocates nothing; others allocate at the moments of a step that are methods here.

    Args:
        machine: allocates.
        rank: the rank.
        parameters: those of the rank.
    """

    def __init__(self, machine: Machine, rank: RankMemory, parameters: Sequence[StoredParameter]) -> None:
        self.machine = machine
        self.rank = rank
        self.parameters = parameters
        self.flat_states = 0
        """Bytes of each flat optimizer state; the fp32 weights exist before the first step. 0: states are not flat."""
        self.waiting: list[int] = []
        """Gradients that are not reduced yet."""
        self.last_micro_batch = True
        """The step's last micro-batch runs, after which gradients are reduced."""

    def load(self, weights: Sequence[int]) -> None:
        """Load the rank's weights, each a tensor."""
        self.machine.take_all(weights)

    def begin(self) -> None:
        """Before the first step: what is allocated once."""

    def begin_forward(self) -> None:
        """Before the embedding."""

    def before_block(self, block: int) -> None:
        """Before a block runs forward."""

    def after_block(self, block: int) -> None:
        """After a block has run forward."""

    def before_head(self) -> None:
        """Before the final norm."""

    def end_forward(self) -> None:
        """After the loss."""

    def begin_backward(self) -> None:
        """Before the head runs backward, after the loss has."""

    def after_head_backward(self, gradients: list[int]) -> list[int]:
        """After final norm and head have run backward; return the gradients that stay until the step."""
        return self.kept(gradients)

    def before_block_backward(self, block: int) -> None:
        """Before a block runs backward, and before it is recomputed."""

    def after_block_backward(self, block: int, gradients: list[int]) -> list[int]:  # noqa: ARG002 - FSDP's units ask
        """After a block has run backward; return the gradients that stay until the step."""
        return self.kept(gradients)

    def after_backward(self, gradients: list[int]) -> list[int]:
        """After the embedding has run backward; return its gradients that stay until the step."""
        return self.kept(gradients)

    def kept(self, gradients: list[int]) -> list[int]:
        """Return the gradients that stay until the step: none of those that are moved to the host."""
        if self.rank.states.gradients:
            return gradients
        self.machine.release(gradients)
        return []


class Buckets(Communication):
    """DistributedDataParallel: gradients are copied into buckets that stay."""

    def begin(self) -> None:
        """Allocate the buckets, the last parameters first."""
        filled, limit = 0, FIRST_BUCKET_BYTES
        for parameter in reversed(self.parameters):
            filled += parameter.gradient
            if filled >= limit:
                self.machine.take(filled)
                filled, limit = 0, BUCKET_BYTES
        if filled:
            self.machine.take(filled)


class ConstantBuffers(Communication):
    """Buffers of the closed form's sizes, from the beginning of a pass to its end, on a stream of their own."""

    _STREAM = 1

    def __init__(self, machine: Machine, rank: RankMemory, parameters: Sequence[StoredParameter]) -> None:
        super().__init__(machine, rank, parameters)
        self._held: list[int] = []
        self._keeps_gradients = False
        """This rank's gradients have a buffer of their own, as under stage 3."""
        if rank.job.deepspeed and rank.states.optimizer:
            self.flat_states = rank.states.optimizer // 3

    def load(self, weights: Sequence[int]) -> None:
        """Put DeepSpeed's trained weights together on the GPU, and make their fp32 copy.

        Frozen weights stay as they are. What was loaded leaves a cache that only smaller tensors can use
        (``_put_together`` of stage 3; since 0.18.9 stages 1 and 2 make the flat weights on the GPU if there is room,
        runtime/zero/stage_1_and_2.py).
        """
        job, machine = self.rank.job, self.machine
        loaded = machine.take_all(weights)
        if not job.deepspeed:
            return
        stored = [each for each in self.parameters if each.weight >= SMALLEST_BYTES]
        trained = [(key, each.weight) for key, each in zip(loaded, stored, strict=True) if each.trained]
        machine.take_all([sum(weight for _, weight in trained)] if trained else [])
        machine.release([key for key, _ in trained])
        if not self.flat_states:
            return
        if job.zero_stage == 3:
            converted = machine.take(self.flat_states)
            machine.take(self.flat_states)
            machine.release([converted])
            machine.take_all([self.rank.buffers.step] if self.rank.buffers.step else [])
            machine.take_all([self.rank.states.gradients] if self.rank.states.gradients else [])
            self._keeps_gradients = True
            return
        cloned = machine.take(self.flat_states // 4 * job.widths.compute)
        machine.take(self.flat_states)
        machine.passing(self.flat_states)
        machine.release([cloned])

    def begin(self) -> None:
        """Allocate what is kept between steps."""
        if not self._keeps_gradients:
            self.machine.take_all([self.rank.buffers.step] if self.rank.buffers.step else [], self._STREAM)

    def begin_forward(self) -> None:
        """Allocate the forward pass's buffers."""
        self._hold(self.rank.buffers.forward)

    def end_forward(self) -> None:
        """Release them."""
        self._hold(0)

    def begin_backward(self) -> None:
        """Allocate the backward pass's buffers."""
        buffers = self.rank.buffers
        self._hold(max(buffers.loss_backward, buffers.block))

    def after_backward(self, gradients: list[int]) -> list[int]:
        """Release the buffers."""
        self._hold(0)
        return super().after_backward(gradients)

    def kept(self, gradients: list[int]) -> list[int]:
        """Reduce gradients that are sharded; return what stays of them until the step."""
        shards = self.rank.job.shards.gradients
        if self._keeps_gradients:
            self.machine.release(gradients)
            return []
        if shards == 1 or not gradients or not self.rank.states.gradients:
            return super().kept(gradients)
        kept = [self.machine.take(self.machine.size(key) / shards) for key in gradients]
        self.machine.release(gradients)
        return kept

    def _hold(self, size: int) -> None:
        self.machine.release(self._held)
        size -= self.rank.buffers.step
        self._held = [self.machine.take(size, self._STREAM)] if size > 0 else []


class GatheredWeights(ConstantBuffers):
    """ZeRO stage 3 with overlapping communication: another stream still uses the weights and gradients that it frees.

    Weights are gathered on a stream of their own and freed while the main stream is to compute with them; gradients
    are freed while the reducing stream is to copy them (``record_stream`` in ``partition_parameters.py`` and
    ``stage3.py``, and DeepSpeed's issues 7217 and 7670). In the forward pass nothing but a full queue makes the CPU
    wait for the GPU, in the backward pass the buckets do.
    """

    _BLOCKS_AHEAD = MOST_LAUNCHES // 64
    """Blocks whose forward pass the CPU has launched and the GPU has not run: a Llama block has 40 kernels, beside what
    DeepSpeed's hooks give the stream to wait for."""
    _BUCKETS_AHEAD = 3
    """Buckets that exist at once: two for which the CPU does not wait (``max_param_reduce_events``), and the next."""

    def __init__(self, machine: Machine, rank: RankMemory, parameters: Sequence[StoredParameter]) -> None:
        super().__init__(machine, rank, parameters)
        self._sizes: dict[int, list[int]] = {}
        width = rank.job.widths.compute
        for each in parameters:
            size = each.weight if each.quantized else each.elements * width
            if size >= SMALLEST_BYTES:
                self._sizes.setdefault(each.block, []).append(size)
        sizes = zero_sizes(rank.job)
        self._persist = sizes.persists * width
        self._bucket = sizes.bucket * width
        self._gathered: list[int] = []
        self._in_use: deque[list[int]] = deque()
        """Freed weights of blocks that the main stream is to compute with."""
        self._copied: deque[tuple[int, int]] = deque()
        """Freed gradients that the reducing stream is to copy, with their bytes."""

    def before_block(self, block: int) -> None:
        """Gather the block."""
        self._gathered = self.machine.take_all(
            (size for size in self._sizes.get(block, ()) if size > self._persist), self._STREAM
        )

    def after_block(self, block: int) -> None:  # noqa: ARG002 - FSDP's units ask
        """Free the block's weights."""
        self.machine.release(self._gathered, USED_ELSEWHERE)
        self._in_use.append(self._gathered)
        self._gathered = []
        self._wait(self._BLOCKS_AHEAD)

    def before_block_backward(self, block: int) -> None:
        """Gather the block."""
        self.before_block(block)

    def after_block_backward(self, block: int, gradients: list[int]) -> list[int]:
        """Free the block's weights, and reduce its gradients."""
        kept = super().after_block_backward(block, gradients)
        self.after_block(block)
        return kept

    def after_backward(self, gradients: list[int]) -> list[int]:
        """Release the buffers; the CPU waits for the GPU."""
        kept = super().after_backward(gradients)
        self._wait(0)
        self._wait_for_copies(0)
        return kept

    def kept(self, gradients: list[int]) -> list[int]:
        """Reduce them on another stream, if they have a buffer of their own."""
        if not self._keeps_gradients:
            return super().kept(gradients)
        self._copied += [(key, self.machine.size(key)) for key in gradients]
        self.machine.release(gradients, USED_ELSEWHERE)
        self._wait_for_copies(self._BUCKETS_AHEAD * self._bucket)
        return []

    def _wait(self, blocks: int) -> None:
        while len(self._in_use) > blocks:
            self.machine.release(self._in_use.popleft(), RETURNED)

    def _wait_for_copies(self, most: int) -> None:
        while sum(size for _, size in self._copied) > most:
            self.machine.release([self._copied.popleft()[0]], RETURNED)
