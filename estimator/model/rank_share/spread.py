"""The stages of a job: what a rank of each pipeline stage holds, or each GPU of a device map."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from msgspec import structs

from ...common import InputError
from ...job import Parallel, ResolvedJob
from ..lora import QuantizedLayers, adapter_elements, adapter_groups
from ..parameters import Inventory, ParameterGroup
from ..placement import Placement, plan_of_job, share_of
from ..trained_parameters import TrainedParameters, trained_by_count, trained_parameters
from .splitting import Partitioning, expert_ranks, is_position_table, split_ranks
from .stage import LocalParameters, Stage

_MAX_KINDS = 64
"""Pipeline stages that differ in their micro-batches in flight; pipelines of at most 64 stages are published."""


def stages(job: ResolvedJob, inventory: Inventory, placement: Placement | None = None) -> tuple[Stage, ...]:
    """Return every pipeline stage, in order; with a device map, the part of each GPU.

    Args:
        job: the job.
        inventory: its model.
        placement: where its modules are; None: it has no device map.

    Raises:
        InputError: there are more stages than layers, or no layer matches the adapters' targets.
    """
    count = job.parallel.pipeline
    if count > inventory.layers:
        raise InputError(
            f"parallel.pipeline = {count}: the model has only {inventory.layers} layers to spread; give at most as many"
        )
    partitioning = Partitioning(
        parallel=_hashable(job.parallel),
        adapters=adapter_groups(inventory, job) if job.lora else None,
        quantized=QuantizedLayers.of(job, inventory),
        trains=job.trains,
        trained=model_trained_parameters(job, inventory),
        by_plan=job.framework.tensor_parallel_plan,
        plan=plan_of_job(job.job),
        accumulation=job.training.gradient_accumulation if count > 1 else 1,
    )
    return _stages(inventory, partitioning) if placement is None else _placed(inventory, partitioning, placement)


def _hashable(parallel: Parallel) -> Parallel:
    """Return the parallelism without its lists and tables, which do not decide what a rank holds."""
    plain = parallel.fsdp_wrap_classes is None and not isinstance(parallel.device_map, dict)
    return parallel if plain else structs.replace(parallel, fsdp_wrap_classes=None, device_map=None)


def model_trained_parameters(job: ResolvedJob, inventory: Inventory) -> TrainedParameters | None:
    """Return which of the model's own parameters train; None: all of them, or none beside adapters."""
    if not job.trains:
        return None
    count = job.training.trainable_parameters
    if count is None:
        return None if job.trainable is None else trained_parameters(inventory, job.trainable)
    own = max(0, count - adapter_elements(inventory, job)) if job.lora else count
    return trained_by_count(inventory, own, job.trainable, adapters=job.lora is not None)


@lru_cache(maxsize=256)  # sweeps repeat the same arguments
def _stages(inventory: Inventory, partitioning: Partitioning) -> tuple[Stage, ...]:
    """Return every stage; those that are alike are one object."""
    count, made = partitioning.parallel.pipeline, {}
    found, start = [], 0
    for index in range(count):
        # evenly, with the remainder on the first stages (torchtitan's pipeline_parallel)
        layers = inventory.layers // count + (index < inventory.layers % count)
        kind = layers, index == 0, index == count - 1, _in_flight(index, count, partitioning.accumulation)
        key = (kind, None if partitioning.trained is None else start)
        if key not in made:
            made[key] = _local_stage(partitioning, inventory, kind, blocks=(start, start + layers))
        found.append(made[key])
        start += layers
    return tuple(found)


def _placed(inventory: Inventory, partitioning: Partitioning, placement: Placement) -> tuple[Stage, ...]:
    """Return the part of each GPU of a device map; the first that holds anything runs what no GPU holds."""
    found, run_by = [], next((at for at, held in enumerate(placement.gpus) if held), 0)
    for at, held in enumerate(placement.gpus):
        kind, start = share_of(held)
        stage = _local_stage(partitioning, inventory, (*kind, 1), blocks=(start, start + kind[0]))
        if at == run_by and placement.offloaded:
            (layers, first, last), _ = share_of((*held, *placement.offloaded))
            blocks = (module.largest for module in placement.offloaded if module.block)
            heads = (module.largest for module in placement.offloaded if module.head)
            stage = replace(
                stage,
                layers=layers,
                first=first,
                last=last,
                passing_bytes=max(blocks, default=0),
                passing_blocks=layers - kind[0],
                passing_head_bytes=max(heads, default=0) if last and not kind[2] else 0,
            )
        found.append(stage)
    return tuple(found)


def _in_flight(index: int, count: int, accumulation: int) -> int:
    """Return the micro-batches in flight; of many stages, neighbours count as those of the one that has the most."""
    if count == 1:
        return 1
    step = -(-count // _MAX_KINDS)
    return min(-(-(count - index) // step) * step, count, accumulation)


def _local_stage(
    partitioning: Partitioning,
    inventory: Inventory,
    kind: tuple[int, bool, bool, int],
    *,
    blocks: tuple[int, int],
) -> Stage:
    """Return the stage with these layers, first or not, last or not, with these micro-batches in flight.

    Args:
        partitioning: the job's settings.
        inventory: the model.
        kind: layers, first, last, in flight.
        blocks: its first block's number, and the next stage's.
    """
    layers, first, last, in_flight = kind
    parameters: list[LocalParameters] = []
    for group in (*inventory.groups, *(partitioning.adapters or ())):
        tied_copy = inventory.tied_head and last and group.role == "embedding" and not is_position_table(group)
        if not group.layered and not (
            (first and group.role == "embedding") or tied_copy or (last and group.role != "embedding")
        ):
            continue
        tensors = -(-group.repeat * layers // inventory.layers) if group.layered else group.repeat
        parameters += _local_parameters(partitioning, group, tensors, blocks=blocks)
    trained = partitioning.trained
    if trained is not None and trained.outside and last:
        parameters.append(_own_layers(trained.outside))
    return Stage(
        layers=layers,
        first=first,
        last=last,
        in_flight=in_flight,
        parameters=tuple(parameters),
        runs=trained.runs(*blocks) if trained and _differ(trained, partitioning) else None,
        buffer_bytes=_buffer_bytes(inventory, layers),
    )


def _local_parameters(
    partitioning: Partitioning, group: ParameterGroup, tensors: int, *, blocks: tuple[int, int]
) -> Iterator[LocalParameters]:
    """Yield a rank's part of a group: what trains of it, and what is frozen."""
    adapter = ".lora_" in group.name
    every = adapter or (partitioning.adapters is None and partitioning.trains)
    share = float(every)
    if partitioning.trained is not None and not adapter:
        share = partitioning.trained.share(group, *blocks)
    copies = partitioning.adapters is not None and not adapter and share > 0
    kinds = [(False, 1.0, False), (True, share, True)] if copies else [(True, share, False), (False, 1 - share, False)]
    for trainable, part, copied in kinds:
        if not part:
            continue
        kept = tensors if part == 1 else max(1, round(tensors * part))
        elements = -(-group.elements * kept // group.repeat // split_ranks(partitioning, group))
        yield LocalParameters(
            group=group,
            elements=elements,
            tensors=kept,
            trainable=trainable,
            quantized=group in partitioning.quantized and not adapter and not copied,
            adapter=adapter,
            copied=copied,
            quantized_bytes=None if adapter or copied else partitioning.quantized.stored_bytes(group, elements),
            layers_per_tensor=partitioning.quantized.layers_per_tensor(group),
            data_ranks=expert_ranks(partitioning, group),
        )


def _own_layers(elements: int) -> LocalParameters:
    """Return the layers that a program adds to the model by itself: what is known is how many parameters they train."""
    group = ParameterGroup(
        name="own_layers", shape=(elements,), repeat=1, role="head", linear=False, layered=False, dtype=None
    )
    return LocalParameters(group=group, elements=elements, tensors=1, trainable=True, quantized=False, adapter=False)


def _differ(trained: TrainedParameters, partitioning: Partitioning) -> bool:
    """Return True if not all blocks train the same: everything, or adapters alone."""
    if partitioning.adapters is not None:
        return any(trained.trained.values())
    return any(len(trained.trained[group]) < len(blocks) for group, blocks in trained.tensors.items())


def _buffer_bytes(inventory: Inventory, layers: int) -> int:
    """Bytes of this stage's share of the layers' buffers, and of all others: every stage needs the positions."""
    share = layers / max(1, inventory.layers)
    return round(sum(b.total_bytes * (share if ".*." in b.name else 1) for b in inventory.buffers))
