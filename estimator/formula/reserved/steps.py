"""Two training steps as the allocator sees them: what the closed form says of each moment, in tensors of usual sizes.

A block saves what the closed form says, in tensors of the size of its MLP and of the residual stream, and takes what
the closed form says while it runs. The order is that of a step: forward, loss, backward block by block, optimizer.
"""

from collections.abc import Callable, Iterable
from math import ceil

from ...job.resolved_job import ResolvedJob
from ...model.rank_share import unpacked_bytes
from ..activations.attention import scores_per_token
from ..activations.layer_context import layer_context
from ..activations.saved_activations import forward_pass_bytes
from ..rank_memory import RankMemory, in_evaluation
from .communication import Buckets, Communication, ConstantBuffers, GatheredWeights
from .fsdp import Units
from .machine import SMALLEST_BYTES, Machine
from .stored_parameters import StoredParameter, stored_parameters

_MICRO_BATCHES = 2
"""Micro-batches of an accumulated step: the third needs no more memory than the second."""
_MOST_PIECES = 32
"""Most tensors of one size in which something is allocated."""


class TrainingRun:
    """A rank's training, step by step.

    The second step finds the cache of the first, in which optimizer states did not exist yet while activations were
    allocated: that is what most of the reserved memory beyond the allocated one comes from.

    Args:
        rank: the rank.
        machine: allocates.
    """

    def __init__(self, rank: RankMemory, machine: Machine) -> None:
        self.machine = machine
        self.take_batches_of(rank)
        self._parameters = stored_parameters(rank.job, rank.stage)
        self._of_block: dict[int, list[StoredParameter]] = {}
        for parameter in self._parameters:
            self._of_block.setdefault(parameter.block, []).append(parameter)
        self._gradients: list[int] = []
        self._states: list[int] = []
        self._held: list[int] = []
        """Outputs that a variable of the training loop holds."""
        self._communication = _communication(rank)(self.machine, rank, self._parameters)
        self._load()

    def take_batches_of(self, rank: RankMemory) -> None:
        """Take steps on batches of another size: those of a rank that differs in nothing else."""
        self._rank = rank
        self._recomputes = rank.job.recomputes or rank.job.training.activation_offload
        arch, widths = rank.arch, rank.job.widths
        tokens = rank.job.local_tokens
        wide = widths.compute * tokens * arch.mlp_size / rank.job.parallel.tensor
        self._stream = max(SMALLEST_BYTES, rank.residual_bytes)
        self._unpacked = unpacked_bytes(
            rank.stage.quantized_layers,
            width=rank.job.framework.unpacked_width,
            experts=rank.job.quantizes_experts,
        )
        self._wide_stream = 4 * tokens * arch.hidden
        self._narrow = min(self._stream, max(SMALLEST_BYTES, widths.compute * tokens * arch.hidden))
        scores = widths.compute * tokens * scores_per_token(layer_context(rank.job, arch, rank.stage))
        self._sizes = {"mlp": (wide, self._narrow), "attention": (scores, self._narrow)}
        """Usual sizes of the tensors of both halves of a block."""

    def _load(self) -> None:
        job = self._rank.job
        if not job.offloads_weights:
            self._communication.load([p.weight for p in self._parameters if p.weight >= SMALLEST_BYTES])
        self._communication.begin()
        if job.gradient_buffer:
            self.machine.take(self._rank.states.gradients)

    def train(self, *, steps: int = 2) -> None:
        """Run training steps."""
        micro_batches = min(self._rank.job.training.gradient_accumulation, _MICRO_BATCHES)
        for _ in range(steps):
            for micro_batch in range(micro_batches):
                self._forward()
                self._communication.last_micro_batch = micro_batch == micro_batches - 1
                self._backward(first=micro_batch == 0)
            self._step()
            self.machine.release(self._gradients)
            self._gradients = []

    def evaluate(self) -> None:
        """Run a forward pass of evaluation, if the job has one; nothing of it stays allocated."""
        training = self._rank
        if not training.job.training.evaluation_batch:
            return
        rank = in_evaluation(training, training.job.training.evaluation_batch)
        self.take_batches_of(rank)
        self._forward(graph=False)
        passed = [*self._loss, *self._head_casts] if rank.stage.last else []
        self.machine.release([*self._outside, *passed, *self._held])
        self._held = []
        self.take_batches_of(training)

    def _forward(self, *, graph: bool = True) -> None:
        rank, machine, communication = self._rank, self.machine, self._communication
        layers, saved = rank.stage.layers, rank.saved
        communication.begin_forward()
        self._outside = machine.take_all(pieces(saved.outside_blocks_bytes, self._stream))
        cached = machine.take_all([rank.kv_cache / max(1, layers)] * layers if rank.kv_cache else [])
        self._saved: list[list[int]] = []
        """What each block keeps, the first tensors of its MLP."""
        self._returned: list[int] = []
        """Outputs that are cast to fp32 after the forward pass."""
        trained_casts: list[int] = []
        without_graph = saved.no_graph_bytes if graph else forward_pass_bytes(rank.job, rank.arch, rank.stage)
        for block in range(layers):
            communication.before_block(block)
            done = layers - 1 - block
            in_graph = graph and done < rank.blocks_backward
            kept = self._kept(done) if in_graph else 0
            casts = machine.take_all(self._casts(block))
            norm = pieces(saved.norm_backward_bytes, self._wide_stream)[:3]
            machine.release(machine.take_all(norm))
            passes = not in_graph or (self._recomputes and not rank.job.recomputes_selectively)
            heads = machine.take_all([self._narrow] * 3 if passes else [])
            middle = machine.take_all([self._stream] if passes else [])
            machine.release(heads)
            machine.release(machine.take_all(norm))
            running = saved.forward_temporary_bytes if in_graph else without_graph
            taken = machine.take_all(pieces(running - self._unpacked, *self._sizes["mlp"]))
            self._unpack(block)
            self._saved.append(self._save(kept, 0 if self._recomputes else saved.mlp_half_bytes) if in_graph else [])
            machine.release([*taken, *middle])
            if in_graph and not self._recomputes:
                self._saved[-1] += casts
            elif rank.trained_casts:
                trained_casts += casts
            else:
                machine.release(casts)
            communication.after_block(block)
        if rank.stage.last:
            communication.before_head()
            self._loss_forward()
        communication.end_forward()
        cast = machine.take_all(pieces(self._logits(4), self._logits(4))) if self._returned else []
        machine.release(self._returned)
        if rank.loss.cloned_bytes:
            cast += machine.take_all([self._logits(4 if rank.job.widths.mixed else rank.job.widths.compute)])
        machine.release([*cached, *cast, *trained_casts])

    def _unpack(self, block: int, *, mlp: bool | None = None) -> None:
        """Allocate and free the weights of quantized layers as they are multiplied, one after another."""
        width = self._rank.job.framework.unpacked_width
        for parameter in self._of_block.get(block, ()):
            if parameter.quantized and mlp in (None, parameter.of_mlp):
                self.machine.passing(width * parameter.elements)

    def _kept(self, done: int) -> float:
        """Return what the block keeps that runs backward after so many others."""
        saved = self._rank.saved
        if saved.order is None:
            return saved.all_layers_bytes / max(1, self._rank.stage.layers)
        return saved.order.saved_bytes(done) - saved.order.saved_bytes(done + 1)

    def _save(self, size: float, mlp: float) -> list[int]:
        """Allocate what a block saves: so many bytes of its MLP first, then those of its attention."""
        mlp = min(size, mlp)
        return self.machine.take_all(
            [*pieces(mlp, *self._sizes["mlp"]), *pieces(size - mlp, *self._sizes["attention"])]
        )

    def _casts(self, block: int) -> list[float]:
        """Return the bytes of autocast's copies of a block's weights."""
        rank = self._rank
        matrices = [
            p.elements for p in self._of_block.get(block, ()) if p.elements > rank.arch.hidden and p.role != "expert"
        ]
        whole = rank.casts / max(1, rank.stage.layers)
        return [whole * each / sum(matrices) for each in matrices] if whole and matrices else []

    def _logits(self, width: int) -> float:
        return width * self._rank.job.scored_tokens * self._rank.arch.vocab

    def _loss_forward(self) -> None:
        """Run head and loss forward; what runs them backward is kept."""
        rank, machine, loss = self._rank, self.machine, self._rank.loss
        self._head_casts = machine.take_all(pieces(rank.loss_casts, rank.loss_casts))
        low, wide = self._logits(rank.job.widths.compute), self._logits(4)
        output = machine.take(min(low, loss.forward_bytes))
        machine.release(self._held)
        size = machine.size(output)
        held = loss.retained_bytes
        self._held = [output] if held == size else machine.take_all(pieces(held, held))
        own = [] if self._held == [output] else [output]
        forward = loss.forward_bytes - loss.retained_before_bytes
        if loss.forward_bytes == 2 * low:  # computed in the compute type
            wide = low
        returned = bool(self._held) and bool(own) and held == wide and low
        if low and (returned or forward == low + (2 * wide if low != wide else wide)):
            copy = machine.take_all([] if returned or low == wide else [wide])
            self._loss = machine.take_all([wide])
            machine.release([*copy, *own])
            self._loss_backward = [wide], [wide], low
            return
        if loss.upcast_bytes and not self._held:
            self._loss, self._returned = machine.take_all([low, wide]), own
            self._loss_backward = [wide], [low], low
            return
        beside = held if own else 0
        kept = max(0, min(forward, loss.backward_bytes - beside) - size)
        self._loss = [*own, *machine.take_all(pieces(kept, wide))]
        machine.release(machine.take_all(pieces(forward - size - kept, wide)))
        self._loss_backward = [], pieces(loss.backward_bytes - beside - size - kept, wide), size

    def _backward(self, *, first: bool) -> None:
        machine, communication, rank = self.machine, self._communication, self._rank
        job = rank.job
        each: Callable[[int], None] | None = None
        if job.gradient_buffer or (not first and not job.strategy.fsdp):
            each = machine.allocator.free  # added to what exists
        elif job.steps_in_backward:
            each = self._step_one
        head: int | None = None
        gradient = self._loss_runs_backward() if rank.stage.last else []
        communication.begin_backward()
        if rank.stage.last:
            head = self._head_backward(gradient, each)
        stream = machine.take(self._stream)
        kept: list[int] = []
        for done in range(rank.blocks_backward if rank.stage.layers else 0):
            block = rank.stage.layers - 1 - done
            communication.before_block_backward(block)
            if job.keeps_block_inputs:
                kept += self._saved[block]
                self._saved[block] = []
            machine.release([stream])
            found = self._block_backward(block, each)
            stream = machine.take(self._stream)
            if job.keeps_block_inputs:
                kept.append(machine.take(self._stream))
            self._gradients += communication.after_block_backward(block, found)
        if head not in self._gradients and head not in communication.waiting:
            head = None  # it was reduced, or added to what exists
        found = self._embedding_backward(head, passing=each is not None)
        machine.release([stream, *self._outside, *kept])
        self._gradients += communication.after_backward(found)
        if not job.keeps_between_steps:
            machine.release(self._held)
            self._held = []

    def _loss_runs_backward(self) -> list[int]:
        """Run the loss backward; return the gradient of the logits."""
        machine = self.machine
        first, second, size = self._loss_backward
        taken = [machine.take_all(first), machine.take_all(second)]
        machine.release([*taken[0], *self._loss])
        if len(second) == 1 and second[0] == size:
            return taken[1]
        gradient = machine.take_all(pieces(size, size))
        machine.release(taken[1])
        return gradient

    def _head_backward(self, gradient: list[int], each: Callable[[int], None] | None) -> int | None:
        """Run head and last norm backward; return the gradient of the head's weight if it stays."""
        rank, machine = self._rank, self.machine
        after = [p for p in self._of_block.get(-2, ()) if p.trained]
        found = self._weight_gradients(after, [], each)
        tokens = rank.stage.token_embedding
        if rank.tied and tokens is not None and rank.stage.trains_head:
            found += self._new_gradient(tokens.largest_tensor, self._gradient_width(adapter=False), each)
        machine.release([*gradient, *self._head_casts])
        machine.release(machine.take_all(pieces(rank.saved.norm_backward_bytes, self._wide_stream)))
        head = max(found, key=machine.size, default=None)
        self._gradients += self._communication.after_head_backward(found)
        return head

    def _block_backward(self, block: int, each: Callable[[int], None] | None) -> list[int]:
        """Run a block backward: what was not kept is made again, then its MLP runs backward, then its attention."""
        rank, machine = self._rank, self.machine
        saved, kept = rank.saved, self._saved[block]
        restored = self._save(saved.recomputed_bytes, saved.mlp_half_bytes)
        casts = machine.take_all(self._casts(block)) if self._recomputes else []
        held = self._of_block.get(block, [])
        mlp, rest = [p for p in held if p.of_mlp], [p for p in held if not p.of_mlp]
        found = []
        own = len(pieces(saved.mlp_half_bytes, *self._sizes["mlp"]))
        first = restored if self._recomputes else kept
        for half, size in ((mlp, saved.mlp_backward_bytes), (rest, saved.attention_backward_bytes)):
            taken = machine.take_all(pieces(size - self._unpacked, *self._sizes["mlp" if half is mlp else "attention"]))
            self._unpack(block, mlp=half is mlp)
            found += self._weight_gradients(half[::-1], taken, each)
            if half is mlp:
                machine.release(first[:own])
                del first[:own]
            machine.release(machine.take_all(pieces(saved.norm_backward_bytes, self._wide_stream)))
        machine.release([*restored, *kept, *casts])
        self._saved[block] = []
        return found

    def _gradient_width(self, *, adapter: bool) -> int:
        widths = self._rank.job.widths
        if adapter:
            return widths.adapter
        return widths.compute if reduces_units(self._rank.job) else widths.gradient

    def _weight_gradients(
        self, parameters: Iterable[StoredParameter], passing: list[int], each: Callable[[int], None] | None
    ) -> list[int]:
        """Make the gradients of weights one by one, while what passes is released in as many parts."""
        found: list[int] = []
        trained = [each for each in parameters if each.trained]
        for left in range(len(trained), 0, -1):
            parameter = trained[-left]
            width = self._gradient_width(adapter=parameter.adapter)
            casts = parameter.role != "expert"  # whose matrices autocast does not cast
            found += self._new_gradient(parameter.elements, width, each, casts=casts)
            for _ in range(ceil(len(passing) / left)):
                self.machine.release([passing.pop()])
        self.machine.release(passing)
        return found

    def _new_gradient(
        self, elements: float, width: int, each: Callable[[int], None] | None, *, casts: bool = True
    ) -> list[int]:
        if elements * width < SMALLEST_BYTES:
            return []
        widths = self._rank.job.widths
        computed = (
            self.machine.take(widths.compute * elements)
            if casts and widths.autocast and width > widths.compute
            else None
        )
        made = self.machine.take(elements * width)
        if computed is not None:
            self.machine.release([computed])
        if each is None:
            return [made]
        each(made)
        return []

    def _embedding_backward(self, head: int | None, *, passing: bool) -> list[int]:
        """Run the embedding backward; return its gradient, unless that is added to the head's.

        Autograd makes a tensor of its own of the two, as nothing may write into what a matrix product returned; it
        adds into autocast's cast of the head's (``InputBuffer::accumulate`` of torch 2.13).

        Args:
            head: the gradient of a tied head; None: there is none.
            passing: gradients are released.
        """
        rank, machine = self._rank, self.machine
        tokens = rank.stage.token_embedding
        if tokens is None or not tokens.trainable or not rank.stage.first:
            return []
        widths = rank.job.widths
        width = widths.compute if rank.job.strategy.fsdp and widths.mixed else widths.gradient
        found = [machine.take(tokens.largest_tensor * width)]
        if rank.tied and rank.stage.last:
            if not widths.autocast:
                total = machine.take(tokens.largest_tensor * width)
                if head is None:
                    machine.release([total])
                else:
                    machine.allocator.free(head)
                    machine.allocator.rename(total, head)
            machine.release(found)
            found = []
        if passing:
            machine.release(found)
            found = []
        return found

    def _step_one(self, key: int) -> None:
        """Step a parameter as soon as its gradient exists."""
        self.machine.passing(self._rank.states.step)
        self.machine.allocator.free(key)

    def _step(self) -> None:
        machine, rank = self.machine, self._rank
        trained = [p for p in self._parameters if p.trained]
        flat = self._communication.flat_states
        if flat and rank.job.zero_stage < 3:  # the norm of a gradient, in fp64 (``get_grad_norm_direct``)
            machine.passing(8 * min(max(p.elements for p in trained), flat // 4))
        if not self._states and rank.states.optimizer:
            if flat:
                self._states = machine.take_all([flat] * 2)
            elif rank.job.steps_flat_buffers and not rank.job.strategy.flat_parameters:
                self._states = machine.take_all([rank.states.optimizer / 3] * 3)
            else:
                scale = rank.states.optimizer / max(1, sum(sum(p.states) for p in trained))
                self._states = machine.take_all(
                    size * scale for p in trained for size in p.states if size * scale >= SMALLEST_BYTES
                )
        if rank.states.step < SMALLEST_BYTES or rank.job.steps_in_backward:
            return
        if flat:
            machine.release(machine.take_all([flat] * max(1, round(rank.states.step / flat))))
            return
        copies = sum(p.step for p in trained)
        if copies and copies >= 0.9 * rank.states.step:
            copied = machine.take_all(p.step for p in trained if p.step >= SMALLEST_BYTES)
            machine.release(reversed(copied))
            return
        largest = max((1, *(p.elements for p in trained)))  # split finely, a tensor has less than an element
        tensors = max(1, round(rank.states.step / (4 * largest)))  # fp32 ones like the parameter
        for parameter in trained:
            size = rank.states.step * parameter.elements / largest / tensors
            if size >= SMALLEST_BYTES:
                machine.release(machine.take_all([size] * tensors))


def run_prompts(rank: RankMemory, machine: Machine) -> None:
    """Load the weights and run the forward pass of inference, which fills the key-value cache."""
    job, stage, arch = rank.job, rank.stage, rank.arch
    machine.take_all(p.weight for p in stored_parameters(job, stage) if p.weight >= SMALLEST_BYTES)
    widths, tokens = job.widths, job.local_tokens
    narrow = max(SMALLEST_BYTES, widths.compute * tokens * arch.hidden)
    sizes = widths.compute * tokens * arch.mlp_size / job.parallel.tensor, narrow
    block = forward_pass_bytes(job, arch, stage) if stage.layers else 0
    stream, cached = (
        machine.take(narrow),
        pieces(rank.kv_cache / max(1, stage.layers), rank.kv_cache / max(1, stage.layers) / 2),
    )
    for _ in range(stage.layers):
        normed = _norm(machine, narrow, 4 * tokens * arch.hidden)
        heads = machine.take_all([narrow, *cached])
        machine.release(machine.take_all([narrow] * 3))  # as positions are rotated
        rotated = machine.take_all([narrow, *cached])
        machine.take_all(cached)
        mixed = machine.take_all([narrow] * 2)
        machine.release([*heads, *rotated, normed])
        middle = machine.take(narrow)
        machine.release(mixed)
        normed = _norm(machine, narrow, 4 * tokens * arch.hidden)
        taken = machine.take_all(pieces(block - 4 * narrow, *sizes))
        machine.release(machine.take_all([stage.passing_bytes] if stage.passing_bytes else []))
        output = machine.take(narrow)
        machine.release([*taken, normed, middle, stream])
        stream = output
    if stage.last:
        logits = max(rank.loss.most_forward_bytes, rank.returned_logits)
        machine.take_all(pieces(logits, widths.compute * job.scored_tokens * arch.vocab))


def _norm(machine: Machine, size: float, wide: float) -> int:
    """Run a norm, a chain of operations in fp32; return its output."""
    copied, squares = machine.take(wide), machine.take(wide)
    machine.release([squares])
    scaled, cast = machine.take(wide), machine.take(size)
    machine.release([copied, scaled])
    output = machine.take(size)
    machine.release([cast])
    return output


def pieces(total: float, *sizes: float) -> list[float]:
    """Return bytes as tensors of these sizes, the largest first, and the rest; few where they are many times a size."""
    made: list[float] = []
    for unit in filter(None, sizes):
        size = unit * max(1, ceil(total / unit / _MOST_PIECES))
        count = max(0, int(total // size))
        made += [size] * count
        total -= size * count
    return made + ([total] if total >= SMALLEST_BYTES else [])


def reduces_units(job: ResolvedJob) -> bool:
    """Return True if FSDP gathers units and reduces their gradients."""
    return job.strategy.fsdp and (job.flattens or job.shards.weights > 1)


def _communication(rank: RankMemory) -> type[Communication]:
    """Return the strategy's part in a step."""
    job = rank.job
    if reduces_units(job) and not rank.buffers.step and not job.strategy.megatron_fsdp:
        return Units
    if job.strategy.buckets and job.parallel.data_ranks > 1 and not job.framework.gradient_buffer:
        return Buckets
    if job.zero_stage == 3 and job.shards.weights > 1 and job.zero.overlap_comm is not False:
        return GatheredWeights
    return ConstantBuffers if rank.buffers.forward or rank.buffers.block else Communication
