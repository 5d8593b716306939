"""Bytes that the allocator holds beyond what is allocated at the peak, from a replay of two steps."""

from collections import OrderedDict
from collections.abc import Callable
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
from ..peak_moments import highest_phase, phase_peaks
from ..plan import Plan, make_plan
from ..rank_memory import RankMemory, rank_memory
from .machine import Machine
from .steps import TrainingRun, run_prompts

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

    What evaluation allocates after them may fit into nothing that they have left.

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
        run.train(steps=1)
        machine.allocator.peak_allocated = 0  # of what follows the first step
        run.train(steps=1)
        run.evaluate()
    else:
        run_prompts(rank, machine)
    allocator, phase = machine.allocator, highest_phase(phase_peaks(rank))
    stated = rank.with_vllm(phase.components, phase.name, sign=-1).total_bytes - phase.outside_bytes
    slack = allocator.reserved - allocator.peak_allocated
    # a stream that allocates more than the closed form says has something that is not kept
    return round(slack * min(1.0, stated / max(1, allocator.peak_allocated)))


def evaluation_cache(rank: RankMemory) -> int:
    """Return how many more bytes the allocator reserves once a batch has been evaluated than after training alone."""
    run = TrainingRun(rank, Machine(AllocatorSettings.from_conf(rank.job.allocator_conf)))
    run.train()
    trained = run.machine.allocator.reserved
    run.evaluate()
    return run.machine.allocator.reserved - trained


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
    conf = plan.job.allocator_conf if conf is None else conf
    stage = plan.distinct_stages[-1]
    key = _settings(plan.job), stage, plan.arch, conf, "lengths"
    return round(_remembered(key, lambda: _growth(plan, stage, conf)))


def _growth(plan: Plan, stage: Stage, conf: str | None) -> float:
    shallow, settings = _shallow(stage, _SHALLOW_BLOCKS), AllocatorSettings.from_conf(conf)
    fixed, varying = (TrainingRun(rank_memory(plan, shallow), Machine(settings)) for _ in range(2))
    fixed.train()
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
    return msgspec.json.encode(msgspec.structs.replace(job.job, name="")), job.optimizer


def _remembered(key: Any, compute: Callable[[], float]) -> float:
    found = _known.get(key)
    if found is None:
        found = _known[key] = compute()
        if len(_known) > _KEPT:
            _known.popitem(last=False)
    return found
