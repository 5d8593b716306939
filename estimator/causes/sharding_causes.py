"""How a job may be spread otherwise than it was read: sharding that is not applied, or other than thought."""

from collections.abc import Iterator
from typing import Any

from ..job.job import Job, Parallel, StrategyName
from .cause import COMMON, RARE, SOME, UNLIKELY, USUAL, Cause

_RANKS_PER_NODE = 8
_ZERO: tuple[StrategyName, ...] = ("zero1", "zero2", "zero3")


def sharding_causes(job: Job) -> Iterator[Cause]:
    """Other strategies, stages and groups on the same number of GPUs, and what lives in host memory."""
    parallel = job.parallel
    if parallel.strategy in ("none", "ddp"):
        yield from _not_sharded(parallel)
    elif parallel.data_shard > 1:
        yield from _not_applied(job)
        yield from _of_strategy(parallel)
        yield from _of_groups(parallel)
    yield from _of_offload(job)
    yield from _of_other_dimensions(parallel)


def _not_sharded(parallel: Parallel) -> Iterator[Cause]:
    if parallel.data_ranks == 1:
        return
    if parallel.strategy == "ddp":
        yield Cause(
            name="no process group",
            words="each rank trains for itself: no process group, no buckets",
            plausibility=RARE,
            changes={"parallel.strategy": "none", "parallel.data_replicate": 1},
            fix="start it through torchrun or accelerate launch",
        )
    shared = {"parallel.data_shard": parallel.data_ranks, "parallel.data_replicate": 1}
    kinds: tuple[tuple[StrategyName, str], ...] = (("fsdp2", "FSDP or ZeRO-3"), ("zero2", "ZeRO-2"))
    for strategy, words in kinds:
        yield Cause(
            name="sharded",
            words=f"the states are sharded over the ranks ({words})",
            plausibility=SOME,  # by a configuration that was not found
            changes={"parallel.strategy": strategy, **shared},
        )


def _not_applied(job: Job) -> Iterator[Cause]:
    parallel = job.parallel
    changes: dict[str, Any] = {
        "parallel.strategy": "ddp",
        "parallel.data_shard": 1,
        "parallel.data_replicate": parallel.data_ranks,
        "parallel.cpu_offload": "none",
    }
    # a plain torchrun in place of accelerate launch makes DDP of the same script
    yield Cause(
        name="sharding off",
        words="sharding is not applied: every rank holds all of it (DDP)",
        plausibility=COMMON,
        changes=changes,
        fix="start it through accelerate launch with the FSDP or DeepSpeed configuration",
    )


def _of_strategy(parallel: Parallel) -> Iterator[Cause]:
    strategy = parallel.strategy
    if strategy in _ZERO:
        for other in _ZERO:
            if other != strategy:
                away = abs(_ZERO.index(other) - _ZERO.index(strategy))
                yield Cause(
                    name=f"stage {other[-1]}",
                    words=f"it is ZeRO stage {other[-1]}, not {strategy[-1]}",
                    plausibility=SOME if away == 1 else RARE,
                    changes={"parallel.strategy": other},
                )
    if strategy in ("fsdp1", "fsdp2"):
        other_version: StrategyName = "fsdp2" if strategy == "fsdp1" else "fsdp1"
        yield Cause(
            name="other FSDP",
            words=f"it is FSDP{other_version[-1]}, not FSDP{strategy[-1]}",
            plausibility=RARE,  # accelerate's default was FSDP1, and its files say the version
            changes={"parallel.strategy": other_version},
        )
        kept = parallel.reshard_after_forward
        yield Cause(
            name="kept gathered" if kept else "resharded",
            words="weights stay gathered after the forward pass" if kept else "weights are freed after the forward",
            plausibility=SOME,
            changes={"parallel.reshard_after_forward": not kept},
        )
    if strategy == "megatron-fsdp":
        for sharding in ("none", "optim", "optim_grads", "optim_grads_params"):
            if sharding != (parallel.sharding if parallel.sharding != "full" else "optim_grads_params"):
                yield Cause(
                    name=f"shards {sharding}",
                    words=f"the sharding strategy is {sharding}",
                    plausibility=SOME,
                    changes={"parallel.sharding": sharding},
                )


def _of_groups(parallel: Parallel) -> Iterator[Cause]:
    shard, copies = parallel.data_shard, parallel.data_replicate
    if shard > _RANKS_PER_NODE and shard % _RANKS_PER_NODE == 0:
        yield Cause(
            name="sharded by node",
            words="each node shards for itself (hybrid sharding)",
            plausibility=SOME,
            changes={
                "parallel.data_shard": _RANKS_PER_NODE,
                "parallel.data_replicate": copies * shard // _RANKS_PER_NODE,
            },
        )
    if copies > 1:
        yield Cause(
            name="sharded over all",
            words="all ranks shard together, not each group for itself",
            plausibility=SOME,
            changes={"parallel.data_shard": shard * copies, "parallel.data_replicate": 1},
        )
    if shard % 2 == 0 and shard > 2:
        yield Cause(
            name="fewer ranks",
            words=f"it is sharded over {shard // 2} ranks, not {shard}",
            plausibility=UNLIKELY,
            changes={"parallel.data_shard": shard // 2},
        )
    yield Cause(
        name="more ranks",
        words=f"it is sharded over {shard * 2} ranks, not {shard}",
        plausibility=UNLIKELY,
        changes={"parallel.data_shard": shard * 2},
    )


def _of_offload(job: Job) -> Iterator[Cause]:
    parallel = job.parallel
    if parallel.cpu_offload != "none":
        # the file that asks for it was not the one that was loaded
        yield Cause(
            name="offload off",
            words="nothing is offloaded to host memory",
            plausibility=USUAL,
            changes={"parallel.cpu_offload": "none"},
        )
    elif parallel.strategy in ("fsdp1", "fsdp2", *_ZERO) and job.training.mode == "train":
        for what, words in (("optimizer", "the optimizer's states live"), ("all", "weights and states live")):
            yield Cause(
                name=f"offload {what}",
                words=f"{words} in host memory",
                plausibility=RARE,
                changes={"parallel.cpu_offload": what},
            )


def _of_other_dimensions(parallel: Parallel) -> Iterator[Cause]:
    sizes = {"tensor": parallel.tensor, "pipeline": parallel.pipeline, "context": parallel.context}
    for dimension, size in sizes.items():
        if size > 1:
            yield Cause(
                name=f"{dimension} off",
                words=f"{dimension} parallelism is not applied",
                plausibility=RARE,
                changes={f"parallel.{dimension}": 1, "parallel.data_replicate": parallel.data_replicate * size},
            )
