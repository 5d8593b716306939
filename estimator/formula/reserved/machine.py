"""The allocator's model, with the keys of what is allocated in it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count

from msgspec import Struct

from ...job.resolved_job import ResolvedJob
from ...job.rules.buffer_sizes import BUCKET_BYTES, FIRST_BUCKET_BYTES
from ...model.rank_share import LocalParameters, Stage
from ...worker.memory.allocator import AllocatorSettings, CachingAllocator
from ..buffers import weight_width
from ..model_states import StateRules, state_rules
from ..rank_memory import RankMemory
from .block import INPUT, OUTPUT, RELEASE, BlockProgram, Op

SLOTS = 1024
"""Keys per block: more than a program has slots."""


class Machine:
    """A rank's allocator.

    Args:
        settings: of the allocator.
    """

    def __init__(self, settings: AllocatorSettings) -> None:
        self.allocator = CachingAllocator(settings)
        self._keys = count(-1, -1)

    def take(self, size: float, stream: int = 0) -> int:
        """Allocate a tensor and return its key."""
        key = next(self._keys)
        self.allocator.malloc(key, round(size), stream)
        return key

    def take_all(self, sizes: Iterable[float], stream: int = 0) -> list[int]:
        """Allocate tensors and return their keys."""
        return [self.take(size, stream) for size in sizes]

    def keep(self, key: int) -> int:
        """Return a new key of a tensor whose key is needed again."""
        kept = next(self._keys)
        self.allocator.rename(key, kept)
        return kept

    def size(self, key: int) -> int:
        """Return the bytes of what is allocated under a key."""
        return self.allocator.size_of(key)

    def release(self, keys: Iterable[int]) -> None:
        """Release tensors."""
        for key in keys:
            self.allocator.free(key)

    def passing(self, size: float, stream: int = 0) -> None:
        """Allocate a tensor and release it."""
        self.allocator.free(self.take(size, stream))

    def run(self, ops: Iterable[Op], base: int) -> None:
        """Run a block's program.

        Args:
            ops: of the program.
            base: the key of its slot 0, whose tensor is the output of the block before.
        """
        malloc, free = self.allocator.malloc, self.allocator.free
        for slot, size, stream in ops:
            key = base + slot if slot != INPUT else base - SLOTS + OUTPUT
            if size == RELEASE:
                free(key)
            else:
                malloc(key, size, stream)

    def run_backward(self, program: BlockProgram, base: int, each: Callable[[int], None] | None = None) -> list[int]:
        """Run a block's backward pass, after what it begins with; return the keys of its weights' gradients.

        Args:
            program: of the block.
            base: the key of its slot 0.
            each: called with the key of a gradient that exists, which it may release; None: they stay.
        """
        if each is None:
            self.run(program.backward[program.begins :], base)
            return [base + slot for slot, _ in program.gradients]
        slots = {slot for slot, _ in program.gradients}
        for slot in sorted(slots.difference(slot for slot, _, _ in program.backward)):
            each(base + slot)  # a loss in chunks has it before
        malloc, free = self.allocator.malloc, self.allocator.free
        for slot, size, stream in program.backward[program.begins :]:
            key = base + slot if slot != INPUT else base - SLOTS + OUTPUT
            if size == RELEASE:
                free(key)
            else:
                malloc(key, size, stream)
                if slot in slots:
                    each(key)
        return []


# The parameters of a rank one by one, in the order in which a model creates them and an optimizer steps them.


_MODULE_ORDER = {"attention": 0, "router": 1, "expert": 1, "mlp": 1, "other": 2, "norm": 3}
_LAYER_ORDER = ("q_", "q", "query", "k_", "k", "v_", "v", "gate", "wi_0", "up", "wi_1")


class StoredParameter(Struct, frozen=True, kw_only=True):
    """One parameter of a rank: bytes of its tensors."""

    weight: int
    gradient: int
    """Bytes of its gradient that stay until the step."""
    states: tuple[int, ...]
    """Its optimizer states, a tensor each."""
    step: int
    """Its part of what the optimizer's step copies."""
    elements: int
    trained: bool
    block: int
    """Number of its block; -1: it comes before the blocks, -2: after them."""
    counted: int = 1
    """Number of its shards that the rank keeps."""


def stored_parameters(job: ResolvedJob, stage: Stage) -> tuple[StoredParameter, ...]:
    """Return the parameters of a rank, in the order of the model's modules."""
    return _stored(stage, state_rules(job), job.shards.weights, job.shards.optimizer, job.optimizer.copies)


@lru_cache(maxsize=128)
def _stored(
    stage: Stage, rules: StateRules, weight_shards: int, state_shards: int, copies: float | None
) -> tuple[StoredParameter, ...]:
    found = []
    for held, block in _in_order(stage):
        elements = held.elements / max(1, held.tensors)
        widths = rules.widths
        width = weight_width(held, widths)
        stored = (held.quantized_bytes or 0) / max(1, held.tensors) if held.quantized_bytes else elements * width
        kept, stepped = held.counted(weight_shards), held.counted(state_shards) / state_shards
        gradient = (widths.adapter if held.adapter else widths.gradient) * elements
        found.append(
            StoredParameter(
                weight=round(stored * kept / weight_shards),
                gradient=round(gradient * kept / weight_shards) if held.trainable else 0,
                states=_states(held, rules, elements * stepped) if held.trainable else (),
                step=round((copies or 0) * elements * (widths.adapter if held.adapter else widths.state) * stepped)
                if held.trainable
                else 0,
                elements=round(elements),
                counted=kept,
                trained=held.trainable,
                block=block,
            )
        )
    return tuple(found)


def _states(held: LocalParameters, rules: StateRules, elements: float) -> tuple[int, ...]:
    if rules.optimizer.elsewhere:
        return ()
    whole = rules.states(held) / max(1, held.elements) * elements
    width = rules.widths.adapter if held.adapter else rules.widths.state
    count = max(1, round(whole / (elements * width))) if elements else 1
    master = rules.master(held) / max(1, held.elements) * elements
    sizes = [whole / count] * count if whole else []
    return tuple(round(size) for size in ([master] if master else []) + sizes)


def _in_order(stage: Stage) -> Iterator[tuple[LocalParameters, int]]:
    around = [held for held in stage.parameters if not held.group.layered]
    layered = sorted((held for held in stage.parameters if held.group.layered), key=_place)
    yield from ((held, -1) for held in around if held.group.role == "embedding" for _ in range(held.tensors))
    for block in range(stage.layers):
        for held in layered:
            for _ in range(held.tensors * block // stage.layers, held.tensors * (block + 1) // stage.layers):
                yield held, block
    yield from ((held, -2) for held in around if held.group.role != "embedding" for _ in range(held.tensors))


def _place(held: LocalParameters) -> tuple[int, int]:
    module = held.group.name.removesuffix(".weight").rpartition(".")[2]
    layer = next((at for at, start in enumerate(_LAYER_ORDER) if module.startswith(start)), len(_LAYER_ORDER))
    return _MODULE_ORDER.get(held.group.role, 2), layer


# Allocations of data parallelism around blocks: buckets, gathered weights, gradients under reduction.
#
# A strategy is a subclass of ``Communication``, whose methods are called at the moments of a step; FSDP's units,
# DDP's buckets and the constant buffers of other strategies are here and beside.


class Communication:
    """The moments of a step at which data parallelism allocates; this one does nothing.

    Args:
        machine: allocates.
        rank: the rank.
        parameters: those of the rank.
    """

    def __init__(self, machine: Machine, rank: RankMemory, parameters: Sequence[StoredParameter]) -> None:
        self.machine = machine
        self.rank = rank
        self.parameters = parameters
        self.gathers_before_loss = False
        """``begin_backward`` comes before the loss runs backward."""
        self.flat_states = 0
        """Bytes of each flat optimizer state; the fp32 weights exist before the first step. 0: states are not flat."""
        self.waiting: list[int] = []
        """Gradients that are not reduced yet."""
        self.stepped: Sequence[StoredParameter] = ()
        """Tensors that the optimizer steps, where these are not the parameters one by one."""
        self.states_made = 0
        """Bytes of the optimizer states that exist before the first step."""
        self.steps_before = False
        """The optimizer takes a step before training, for its states."""
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

    def after_head(self) -> None:
        """Before the loss."""

    def end_forward(self) -> None:
        """After the loss."""

    def begin_backward(self) -> None:
        """Before the head runs backward; after the loss has, unless ``gathers_before_loss``."""

    def before_head_backward(self) -> None:
        """Before the head runs backward, after the loss has."""

    def after_head_backward(self, gradients: list[int]) -> list[int]:
        """After final norm and head have run backward; return the gradients that stay until the step."""
        return self.kept(gradients)

    def before_block_backward(self, block: int) -> None:
        """Before a block runs backward, and before it is recomputed."""

    def after_block_backward(self, block: int, gradients: list[int]) -> list[int]:  # noqa: ARG002 - FSDP2's units ask
        """After a block has run backward; return the gradients that stay until the step."""
        return self.kept(gradients)

    def after_backward(self, gradients: list[int]) -> list[int]:
        """After the embedding has run backward; return its gradients that stay until the step."""
        return self.kept(gradients)

    def take_gradient(self, key: int) -> None:
        """Add a gradient that has just been made to a buffer of gradients."""
        self.machine.allocator.free(key)

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
        """Put DeepSpeed's weights together on the GPU, and make their fp32 copy.

        The weights that were loaded leave a cache that only smaller tensors can use (``_put_together`` of stage 3;
        since 0.18.9 stages 1 and 2 make the flat weights on the GPU if there is room, runtime/zero/stage_1_and_2.py).
        """
        job, machine = self.rank.job, self.machine
        loaded = machine.take_all(weights)
        if not job.deepspeed:
            return
        machine.take(sum(weights))
        machine.release(loaded)
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

    def after_head_backward(self, gradients: list[int]) -> list[int]:
        """Reduce gradients that are sharded."""
        return self._reduced(gradients)

    def after_block_backward(self, block: int, gradients: list[int]) -> list[int]:  # noqa: ARG002 - FSDP2's units ask
        """Reduce gradients that are sharded."""
        return self._reduced(gradients)

    def after_backward(self, gradients: list[int]) -> list[int]:
        """Release the buffers."""
        self._hold(0)
        return self._reduced(gradients)

    def _reduced(self, gradients: list[int]) -> list[int]:
        shards = self.rank.job.shards.gradients
        if self._keeps_gradients:
            self.machine.release(gradients)
            return []
        if shards == 1 or not gradients or not self.rank.states.gradients:
            return self.kept(gradients)
        kept = [self.machine.take(self.machine.size(key) / shards) for key in gradients]
        self.machine.release(gradients)
        return kept

    def _hold(self, size: int) -> None:
        self.machine.release(self._held)
        size -= self.rank.buffers.step
        self._held = [self.machine.take(size, self._STREAM)] if size > 0 else []
