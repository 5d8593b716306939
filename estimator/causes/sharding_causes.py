"""The table of other ways to shard the same GPUs: sharding that is not applied, or another one than was read."""

from collections.abc import Iterator
from typing import Any

from ..job.resolved_job import ResolvedJob
from ..job.rules.strategies import STRATEGIES
from ..job.settings import StrategyName
from .cause_search import COMMON, RARE, SOME, UNLIKELY, USUAL, Cause, CauseRule, CauseSource

_RANKS_PER_NODE = 8
"""GPUs of a usual machine."""


def _shards(job: ResolvedJob) -> bool:
    """Return True if the strategy is a sharding one and has ranks to shard over."""
    return job.strategy.zero_stage > 0 and job.parallel.data_shard > 1


def _could_shard(job: ResolvedJob) -> bool:
    """Return True if nothing is sharded and there are ranks to shard over."""
    return job.strategy.zero_stage == 0 and job.parallel.data_ranks > 1


def _shard_all(job: ResolvedJob, strategy: StrategyName) -> dict[str, Any]:
    return {
        "parallel.strategy": strategy,
        "parallel.data_shard": job.parallel.data_ranks,
        "parallel.data_replicate": 1,
    }


def _may_offload(job: ResolvedJob) -> bool:
    return bool(job.strategy.cpu_offload) and not job.offloads_optimizer and job.trains


def _other_zero_stages(job: ResolvedJob) -> Iterator[Cause]:
    """Yield the other stages of ZeRO."""
    if not _shards(job) or not job.strategy.deepspeed:
        return
    for other in STRATEGIES.values():
        away = abs(other.zero_stage - job.strategy.zero_stage)
        if other.deepspeed and away:
            yield Cause(
                name=f"stage {other.zero_stage}",
                description=f"the job uses ZeRO stage {other.zero_stage}, not {job.strategy.zero_stage}",
                plausibility=SOME if away == 1 else RARE,
                changes={"parallel.strategy": other.name},
            )


def _other_shardings(job: ResolvedJob) -> Iterator[Cause]:
    """Yield the other sharding strategies of FSDP1 or Megatron-FSDP (``parallel.sharding``)."""
    strategy = job.strategy
    if not _shards(job) or not strategy.stages_by_sharding:
        return
    now = job.parallel.sharding if job.parallel.sharding != "full" else strategy.full_sharding
    for sharding in (*strategy.stages_by_sharding, strategy.full_sharding):
        if sharding != now:
            yield Cause(
                name=f"shards {sharding}",
                description=f"the sharding strategy is {sharding}",
                plausibility=SOME,
                changes={"parallel.sharding": sharding},
            )


def _other_group_sizes(job: ResolvedJob) -> Iterator[Cause]:
    """Yield sharding over half and over twice as many ranks."""
    if not _shards(job):
        return
    shard = job.parallel.data_shard
    sizes = {"fewer ranks": shard // 2 if shard % 2 == 0 and shard > 2 else None, "more ranks": shard * 2}
    for name, size in sizes.items():
        if size is not None:
            yield Cause(
                name=name,
                description=f"the job is sharded over {size} ranks, not {shard}",
                plausibility=UNLIKELY,
                changes={"parallel.data_shard": size},
            )


def _dimensions_off(job: ResolvedJob) -> Iterator[Cause]:
    """Yield a cause for each of tensor, pipeline and context parallelism: it is not applied."""
    parallel = job.parallel
    sizes = {"tensor": parallel.tensor, "pipeline": parallel.pipeline, "context": parallel.context}
    for dimension, size in sizes.items():
        if size > 1:
            yield Cause(
                name=f"{dimension} off",
                description=f"{dimension} parallelism is not applied",
                plausibility=RARE,
                changes={f"parallel.{dimension}": 1, "parallel.data_replicate": parallel.data_replicate * size},
            )


SHARDING_CAUSES: tuple[CauseSource, ...] = (
    CauseRule(
        name="no process group",
        description="each rank trains on its own: no process group, no buckets",
        applies=lambda job: _could_shard(job) and job.strategy.buckets,
        plausibility=RARE,
        changes={"parallel.strategy": "none", "parallel.data_replicate": 1},
        fix="start the script with torchrun or accelerate launch",
    ),
    CauseRule(
        name="sharded",
        description="the states are sharded over the ranks (FSDP or ZeRO-3)",
        applies=_could_shard,
        plausibility=SOME,  # by a configuration that was not found
        changes=lambda job: _shard_all(job, "fsdp2"),
    ),
    CauseRule(
        name="sharded",
        description="the states are sharded over the ranks (ZeRO-2)",
        applies=_could_shard,
        plausibility=SOME,
        changes=lambda job: _shard_all(job, "zero2"),
    ),
    CauseRule(
        name="sharding off",
        description="sharding is not applied: every rank holds everything (DDP)",
        applies=_shards,
        plausibility=COMMON,  # a plain torchrun in place of accelerate launch makes DDP of the same script
        changes=lambda job: {
            "parallel.strategy": "ddp",
            "parallel.data_shard": 1,
            "parallel.data_replicate": job.parallel.data_ranks,
            "parallel.cpu_offload": "none",
        },
        fix="start the script with accelerate launch and the FSDP or DeepSpeed configuration",
    ),
    _other_zero_stages,
    CauseRule(
        name="other FSDP",
        description="the job uses FSDP2, not FSDP1",
        applies=lambda job: _shards(job) and job.strategy.fsdp and not job.strategy.fsdp2,
        plausibility=RARE,
        changes={"parallel.strategy": "fsdp2"},
    ),
    CauseRule(
        name="other FSDP",
        description="the job uses FSDP1, not FSDP2",
        applies=lambda job: _shards(job) and job.strategy.fsdp2,
        plausibility=RARE,  # accelerate's default was FSDP1, and its files state the version
        changes={"parallel.strategy": "fsdp1"},
    ),
    CauseRule(
        name="kept gathered",
        description="weights stay gathered after the forward pass",
        applies=lambda job: _shards(job) and job.strategy.fsdp and job.parallel.reshard_after_forward,
        plausibility=SOME,
        changes={"parallel.reshard_after_forward": False},
    ),
    CauseRule(
        name="resharded",
        description="weights are freed after the forward pass",
        applies=lambda job: _shards(job) and job.strategy.fsdp and not job.parallel.reshard_after_forward,
        plausibility=SOME,
        changes={"parallel.reshard_after_forward": True},
    ),
    _other_shardings,
    CauseRule(
        name="sharded by node",
        description="each node shards on its own (hybrid sharding)",
        applies=lambda job: (
            _shards(job)
            and job.parallel.data_shard > _RANKS_PER_NODE
            and job.parallel.data_shard % _RANKS_PER_NODE == 0
        ),
        plausibility=SOME,
        changes=lambda job: {
            "parallel.data_shard": _RANKS_PER_NODE,
            "parallel.data_replicate": job.parallel.data_ranks // _RANKS_PER_NODE,
        },
    ),
    CauseRule(
        name="sharded over all",
        description="sharding spans all ranks, not each group separately",
        applies=lambda job: _shards(job) and job.parallel.data_replicate > 1,
        plausibility=SOME,
        changes=lambda job: {"parallel.data_shard": job.parallel.data_ranks, "parallel.data_replicate": 1},
    ),
    _other_group_sizes,
    CauseRule(
        name="offload off",
        description="nothing is offloaded to host memory",
        applies=lambda job: job.offloads_optimizer,
        plausibility=USUAL,  # the file that asks for it was not the one that was loaded
        changes={"parallel.cpu_offload": "none"},
    ),
    CauseRule(
        name="offload optimizer",
        description="the optimizer states are in host memory",
        applies=_may_offload,
        plausibility=RARE,
        changes={"parallel.cpu_offload": "optimizer"},
    ),
    CauseRule(
        name="offload all",
        description="weights and optimizer states are in host memory",
        applies=_may_offload,
        plausibility=RARE,
        changes={"parallel.cpu_offload": "all"},
    ),
    _dimensions_off,
)
