"""Bytes that the allocator holds beyond what is allocated at the peak, from a replay of two steps."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...common.errors import CannotTellError
from ...common.records import replace
from ...job.gpu_catalogue import Gpu
from ...job.job import Job
from ...job.resolved_job import ResolvedJob, resolve_job
from ...job.rules.frameworks import FRAMEWORKS
from ...job.rules.optimizers.optimizer import Optimizer
from ...model.architecture import Architecture
from ...model.count_parameters import count_parameters
from ...model.rank_share import Stage
from ...worker.memory.allocator_settings import AllocatorSettings
from ..activations.layer_context import layer_context
from ..activations.temporary import score_masks
from ..peak_moments import highest_phase, phase_peaks
from ..plan import Plan, make_plan
from ..rank_memory import RankMemory, rank_memory
from .block import GRADIENT, OUTPUT, Kind, block_weights, record_block, selective_programs, without_input
from .communication import Buckets, Communication, ConstantBuffers
from .fsdp import Units
from .head_and_loss import record_tail
from .machine import SLOTS, Machine
from .recorder import SMALLEST_BYTES, BlockProgram
from .stored_parameters import stored_parameters

_MICRO_BATCHES = 2
"""Micro-batches of an accumulated step: the third needs no more memory than the second."""


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
        self._parameters = stored_parameters(rank.job, rank.stage)
        self._layers = rank.stage.layers
        self._recomputes = rank.job.recomputes or rank.job.training.activation_offload
        self.take_batches_of(rank)
        self._gradients: list[int] = []
        self._states: list[int] = []
        self._held: list[int] = []
        """Outputs that a variable of the training loop holds."""
        self._base = SLOTS
        self._communication = _communication(rank)(machine, rank, self._parameters)

    def take_batches_of(self, rank: RankMemory) -> None:
        """Take steps on batches of another size: those of a rank that differs in nothing else."""
        self._rank = rank
        self._plain, self._graph = _programs(rank)
        self._tail = _tail(rank) if rank.stage.last else None

    def load(self) -> None:
        """Load the weights."""
        job = self._rank.job
        if not job.offloads_weights:
            self._communication.load([p.weight for p in self._parameters if p.weight >= SMALLEST_BYTES])
        self._communication.begin()
        if job.gradient_buffer:
            self.machine.take(self._rank.states.gradients)

    def train(self, *, steps: int = 2) -> None:
        """Run training steps."""
        job = self._rank.job
        micro_batches = min(job.training.gradient_accumulation, _MICRO_BATCHES)
        for _ in range(steps):
            for micro_batch in range(micro_batches):
                self._base = (1 + micro_batch * (self._layers + 2)) * SLOTS
                self._forward()
                self._communication.last_micro_batch = micro_batch == micro_batches - 1
                self._backward(first=micro_batch == 0)
            self._step()
            self.machine.release(self._gradients)
            self._gradients = []

    def _forward(self) -> None:
        machine, communication, rank = self.machine, self._communication, self._rank
        communication.begin_forward()
        outside = rank.saved.outside_blocks_bytes - (self._tail.saved_bytes if self._tail else 0)
        pieces = -(-outside // max(SMALLEST_BYTES, rank.residual_bytes)) if outside >= SMALLEST_BYTES else 0
        self._outside = machine.take_all([outside / max(1, pieces)] * pieces)
        machine.allocator.malloc(self._base - SLOTS + OUTPUT, max(SMALLEST_BYTES, rank.residual_bytes))
        casts: list[int] = []
        for block in range(self._layers):
            base = self._base + block * SLOTS
            program = self._plain[block]
            communication.before_block(block)
            machine.run(program.forward, base)
            casts += [base + slot for slot in program.casts]
            communication.after_block(block)
        if self._tail is not None:
            communication.before_head()
            self._run_tail(self._tail, self._base + self._layers * SLOTS)
        communication.end_forward()
        if self._tail is not None and self._tail.returned is not None:
            machine.passing(4 * rank.job.scored_tokens * rank.arch.vocab)
            machine.allocator.free(self._base + self._layers * SLOTS + self._tail.returned)
        machine.release(casts)

    def _run_tail(self, tail: BlockProgram, base: int) -> None:
        """Run final norm, head and loss forward; a variable that holds the outputs before drops them."""
        machine = self.machine
        machine.run(tail.forward[: tail.replaces], base)
        machine.release(self._held)
        machine.run(tail.forward[tail.replaces :], base)
        self._held = [] if tail.held is None else [machine.keep(base + tail.held)]

    def _backward(self, *, first: bool) -> None:
        machine, communication, job = self.machine, self._communication, self._rank.job
        each: Callable[[int], None] | None = None
        if job.gradient_buffer or (not first and not job.strategy.fsdp):
            each = communication.take_gradient  # added to what exists
        elif job.steps_in_backward:
            each = self._step_one
        base, kept, head = self._base + self._layers * SLOTS, list[int](), None
        self._loss_backward(base)
        if self._tail is not None:
            found = machine.run_backward(self._tail, base, each)
            head = max(found, key=machine.size, default=None)
            self._gradients += communication.after_head_backward(found)
            gradient = base + GRADIENT
        else:
            machine.allocator.free(base - SLOTS + OUTPUT)
            gradient = machine.take(self._rank.residual_bytes)
        for block in reversed(range(self._layers)):
            base = self._base + block * SLOTS
            program = self._graph[block]
            if program is None:
                continue
            communication.before_block_backward(block)
            if self._recomputes:
                machine.run(program.forward, base)
                machine.allocator.free(base + OUTPUT)
            found = machine.run_backward(program, base, each)
            if job.keeps_block_inputs:
                kept += [machine.keep(base - SLOTS + OUTPUT), machine.take(self._rank.residual_bytes)]
            elif self._recomputes:
                machine.allocator.free(base - SLOTS + OUTPUT)
            self._gradients += communication.after_block_backward(block, found)
        if head not in self._gradients and head not in communication.waiting:
            head = None  # it was reduced, or added to what exists
        found = self._embedding_backward(head, passing=each is not None)
        machine.release([gradient, *self._outside, *kept])
        self._gradients += communication.after_backward(found)
        if not job.keeps_between_steps:
            machine.release(self._held)
            self._held = []

    def _loss_backward(self, base: int) -> None:
        if self._tail is not None:
            self.machine.run(self._tail.backward[: self._tail.begins], base)
        self._communication.begin_backward()

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
                third = rank.states.optimizer / 3
                self._states = machine.take_all([third] * 3)
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
    """Load the weights, and run the forward pass of inference, which fills the key-value cache."""
    job, stage = rank.job, rank.stage
    context = layer_context(job, rank.arch, stage)
    held = stage.layers - stage.passing_blocks
    kinds = [(kind, at >= held) for at, kind in enumerate(_kinds(rank))]
    programs = {
        (kind, passes): record_block(
            context, block_weights(stage, kind), kind, saved_bytes=0, gradient_width=0, graph=False, passes=passes
        )
        for kind, passes in set(kinds)
    }
    machine.take_all(p.weight for p in stored_parameters(job, stage) if p.weight >= SMALLEST_BYTES)
    parts = [rank.residual_bytes] if context.follows_plan and stage.splits_embedding else []
    part = machine.take_all(parts)  # of which ``Partial.redistribute`` reduces a copy
    machine.allocator.malloc(OUTPUT, max(SMALLEST_BYTES, rank.residual_bytes))
    machine.release(part)
    kinds_of_masks = score_masks(context)
    mask = [context.widths.compute * context.length * context.tokens] if kinds_of_masks else []
    masks = machine.take_all(mask * kinds_of_masks if stage.first else [])
    for block, kind in enumerate(kinds):
        program = programs[kind].forward
        if stage.first and not block:  # a variable of the model holds the embedding's output
            program = tuple(without_input(program))
        copied = machine.take_all([] if stage.first else mask)  # by the block's hook
        machine.run(program, (1 + block) * SLOTS)
        machine.release(copied)
    if stage.first and kinds:
        machine.allocator.free(OUTPUT)
    machine.release(masks)
    if rank.returned_logits:
        machine.take(rank.returned_logits)
    if stage.last:
        machine.run(_tail(rank).forward, (1 + stage.layers) * SLOTS)


def _reduces_units(job: ResolvedJob) -> bool:
    """Return True if FSDP gathers units and reduces their gradients."""
    return job.strategy.fsdp and (job.flattens or job.shards.weights > 1)


def _communication(rank: RankMemory) -> type[Communication]:
    """Return the strategy's part in a step."""
    job = rank.job
    if _reduces_units(job) and not rank.buffers.step and not job.strategy.megatron_fsdp:
        return Units
    if job.strategy.buckets and job.parallel.data_ranks > 1 and not job.framework.gradient_buffer:
        return Buckets
    return ConstantBuffers if rank.buffers.forward or rank.buffers.block else Communication


def _programs(rank: RankMemory) -> tuple[list[BlockProgram], list[BlockProgram | None]]:
    """Return the program of each block's forward pass, and of what has a graph when it runs backward."""
    job, stage, arch = rank.job, rank.stage, rank.arch
    context = layer_context(job, arch, stage)
    kinds = _kinds(rank)
    recomputes = job.recomputes or job.training.activation_offload
    width = job.widths.compute if _reduces_units(job) else job.widths.gradient
    saved = rank.saved.layer_bytes
    if not recomputes and rank.saved.order is None:
        saved = rank.saved.all_layers_bytes // max(1, stage.layers)
    made: dict[Kind, tuple[BlockProgram, BlockProgram]] = {}
    for kind in set(kinds):
        weights = block_weights(stage, kind)
        graph = record_block(
            context, weights, kind, saved_bytes=saved, gradient_width=width, graph=True, keeps_input=recomputes
        )
        plain = graph
        if recomputes:
            plain = record_block(
                context, weights, kind, saved_bytes=saved, gradient_width=width, graph=False, keeps_input=True
            )
        made[kind] = selective_programs(plain, graph) if job.recomputes_selectively else (plain, graph)
    return [made[kind][0] for kind in kinds], [made[kind][1] for kind in kinds]


def _kinds(rank: RankMemory) -> Sequence[Kind]:
    arch, layers = rank.arch, rank.stage.layers
    moe = round(layers * arch.moe_layers / max(1, arch.layers))
    cross = round(layers * arch.decoder_layers / max(1, arch.layers)) if arch.encoder_decoder else 0
    special: Kind = "cross" if cross else "moe"
    count = cross or moe
    plain: Kind = "dense"
    return [*[plain] * (layers - count), *[special] * count]


def _tail(rank: RankMemory) -> BlockProgram:
    job = rank.job
    width = job.widths.compute if _reduces_units(job) else job.widths.gradient
    return record_tail(rank, layer_context(job, rank.arch, rank.stage), gradient_width=width)


REPLAYED_BYTES = 1 << 50
"""Most bytes that are replayed. No GPU has as many; the allocator's model has addresses for 4,096 times that."""
_KEPT = 512
"""Results that are remembered."""
_SHALLOW_BLOCKS = 4
"""Blocks of a model whose lengths are varied; ``cache_of_lengths`` says why so few."""
_LENGTH_SHARES = (*(0.1 + 0.9 * ((0.41 + 0.618034 * step) % 1) for step in range(12)), 1.0)
"""The longest sequence of each batch as a share of the maximum: spread evenly, in an order without a pattern."""
_known: OrderedDict[Any, float] = OrderedDict()
"""Results of the last replays, by all that they depend on: screens ask for the same job again and again."""


def replayed_slack(rank: RankMemory, conf: str | None = None) -> int:
    """Return the highest reserved bytes of two training steps, or of prompts, less the highest allocated of the last.

    The two need not be of one moment: what a phase has reserved stays reserved, since nobody calls ``empty_cache``.

    Args:
        rank: of a job, which allocates ``REPLAYED_BYTES`` at most.
        conf: the allocator's settings, as in ``PYTORCH_CUDA_ALLOC_CONF``; None: those that the job's framework makes.
    """
    job = rank.job
    conf = job.allocator_conf if conf is None else conf
    key = _settings(job), rank.stage, rank.arch, rank.tied, rank.states.optimizer, rank.workspace, conf
    return round(_remembered(key, lambda: _replayed_slack(rank, conf)))


def _replayed_slack(rank: RankMemory, conf: str | None) -> int:
    machine = Machine(AllocatorSettings.from_conf(conf))
    if rank.job.trains:
        run = TrainingRun(rank, machine)
        run.load()
        run.train(steps=1)
        machine.allocator.peak_allocated = 0  # the first step may gather more than later ones (Megatron-FSDP)
        run.train(steps=1)
    else:
        run_prompts(rank, machine)
    allocator, stated = machine.allocator, highest_phase(phase_peaks(rank)).allocated_bytes
    slack = allocator.reserved - allocator.peak_allocated
    # a stream that allocates more than the closed form says has something that is not kept
    return round(slack * min(1.0, stated / max(1, allocator.peak_allocated)))


def lengths_cache(
    job: Job, arch: Architecture | CannotTellError, gpu: Gpu | None = None, conf: str | None = None
) -> int:
    """Return how many bytes the allocator keeps besides if the job's batches differ in length; 0 if they do not.

    Args:
        job: the job.
        arch: the model's shape, or why it is not known.
        gpu: the GPU.
        conf: the allocator's settings; None: those that the job's framework makes.
    """
    vary = job.training.varying_lengths
    vary = FRAMEWORKS[job.training.framework].pads_batches if vary is None else vary
    if not vary or job.training.mode != "train" or isinstance(arch, CannotTellError):
        return 0
    plan = make_plan(job, arch, count_parameters(arch), gpu=gpu)
    whole = (highest_phase(phase_peaks(rank_memory(plan, stage))) for stage in plan.distinct_stages)
    return 0 if any(phase.allocated_bytes > REPLAYED_BYTES for phase in whole) else cache_of_lengths(plan, conf)


def cache_of_lengths(plan: Plan, conf: str | None = None) -> int:
    """Return how many bytes more the allocator reserves where lengths differ from step to step.

    What a longer step allocates does not fit into the blocks that shorter ones have left: each length that is new takes
    memory of its own, until the GPU is full and the allocator gives its cache back. Most of it are logits, so that a
    few blocks show it as well as all of them: with four, 0 to 30 % more than with 28 or 32, in steps of models of 1 to
    8 billion parameters.

    Args:
        plan: of a job that trains.
        conf: the allocator's settings; None: those that the job's framework makes.
    """
    job = plan.job
    conf = job.allocator_conf if conf is None else conf
    stage = plan.distinct_stages[-1]
    key = _settings(plan.job), stage, plan.arch, conf, "lengths"
    return round(_remembered(key, lambda: _growth(plan, stage, conf)))


def _growth(plan: Plan, stage: Stage, conf: str | None) -> float:
    shallow, settings = _shallow(stage, _SHALLOW_BLOCKS), AllocatorSettings.from_conf(conf)
    fixed = TrainingRun(rank_memory(plan, shallow), Machine(settings))
    fixed.load()
    fixed.train()
    varying = TrainingRun(rank_memory(plan, shallow), Machine(settings))
    varying.load()
    for share in _LENGTH_SHARES:
        varying.take_batches_of(rank_memory(_with_length(plan, share), shallow))
        varying.train(steps=1)
    return max(0, varying.machine.allocator.reserved - fixed.machine.allocator.reserved)


def _with_length(plan: Plan, share: float) -> Plan:
    job = plan.job.job
    length = max(1, round(share * job.training.sequence_length))
    scored = job.training.loss_length
    training = msgspec.structs.replace(
        job.training, sequence_length=length, loss_length=None if scored is None else min(length, scored)
    )
    shorter = resolve_job(msgspec.structs.replace(job, training=training))
    return msgspec.structs.replace(plan, job=shorter)


def _shallow(stage: Stage, blocks: int) -> Stage:
    """Return the stage with fewer blocks; the last stage of a pipeline may have none."""
    if not stage.layers:
        return replace(stage, runs=None)
    layers = min(blocks, stage.layers)
    kept = (
        replace(
            held,
            tensors=max(1, held.tensors * layers // stage.layers),
            elements=held.elements * max(1, held.tensors * layers // stage.layers) // max(1, held.tensors),
            quantized_bytes=None if held.quantized_bytes is None else held.quantized_bytes * layers // stage.layers,
        )
        if held.group.layered
        else held
        for held in stage.parameters
    )
    return replace(stage, layers=layers, parameters=tuple(kept), runs=None)


def _settings(job: ResolvedJob) -> tuple[bytes, Optimizer]:
    """Return all settings of a job on which a replay depends."""
    return msgspec.json.encode((job.training, job.lora, job.parallel, job.software, job.model.attention)), job.optimizer


def _remembered(key: Any, compute: Callable[[], float]) -> float:
    found = _known.get(key)
    if found is None:
        found = _known[key] = compute()
        if len(_known) > _KEPT:
            _known.popitem(last=False)
    return found
