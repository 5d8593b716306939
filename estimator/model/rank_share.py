"""The share of a model that one rank holds: its pipeline stage, its tensor- and expert-parallel part, its adapters."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import msgspec
from msgspec import structs

from ..common.errors import InputError
from ..common.records import replace
from ..job.resolved_job import ResolvedJob
from ..job.settings import Parallel
from .adapters import QuantizedLayers, adapter_elements, adapter_groups
from .inventory import Inventory, ParameterGroup, Role
from .placement import Placement, share_of
from .tensor_plans import Plan, plan_of_job, splits
from .trained_parameters import BlockRun, TrainedParameters, trained_by_count, trained_parameters

_MLP_ROLES: tuple[Role, ...] = ("mlp", "expert", "router")


class LocalParameters(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one parameter group that a rank holds before data-parallel sharding."""

    group: ParameterGroup
    elements: int
    tensors: int
    trainable: bool
    quantized: bool
    adapter: bool
    copied: bool = False
    """A trained copy of frozen parameters, which peft makes of ``modules_to_save``."""
    quantized_bytes: int | None = None
    """Bytes of this part as bitsandbytes stores it; None: not quantized."""
    layers_per_tensor: int = 1
    """Linear layers that a tensor stands for: experts that transformers 4 holds one by one."""
    data_ranks: int = 1
    """Data-parallel ranks over which it is split already: expert parallelism takes its ranks from these."""

    padding: float = 1
    """Elements that all ranks' shards have for each of its own: FSDP2 cuts it along the first dimension into parts of
    one size, such as fused experts, 8 over 16 ranks, into 16 parts of one expert (``_chunk_with_empty`` and
    ``padded_sharded_param_size`` in ``distributed/fsdp/_fully_shard/_fsdp_param.py`` of torch 2.13). Of them the first
    ranks have one each."""

    def counted(self, shards: int) -> int:
        """Return how many of ``shards`` parts of it a rank keeps: as many as ranks that have split it already."""
        return min(shards, self.data_ranks)

    @property
    def largest_tensor(self) -> int:
        """Elements of the largest tensor."""
        return -(-self.elements // max(1, self.tensors))


@dataclass(frozen=True, eq=False, kw_only=True)  # not slotted: its totals are cached
class Stage:
    """One rank of a job: the tensor-parallel part of a pipeline stage."""

    layers: int
    """Blocks on this stage."""
    first: bool
    """True if it holds the embeddings."""
    last: bool
    """True if it holds the head and computes the loss."""
    in_flight: int
    """Micro-batches whose activations are alive at once (1F1B schedule)."""
    parameters: tuple[LocalParameters, ...]
    runs: tuple[BlockRun, ...] | None = None
    """Runs of blocks in which the same own parameters train, in their order; None: all blocks are alike."""
    passing_bytes: int = 0
    """The largest weight of a block that comes from CPU RAM while it is used: the stage runs more than it holds."""
    passing_head_bytes: int = 0
    """The head's weight, if it comes from there."""
    buffer_bytes: int = 0
    """Bytes of buffers, which are whole on every rank that has their module; 0 if the model was not built."""

    @cached_property
    def token_embedding(self) -> LocalParameters | None:
        """The token embedding; None if the stage does not hold it."""
        embeddings = (local for local in self.parameters if local.group.role == "embedding" and not local.group.layered)
        return max(embeddings, key=lambda local: local.elements, default=None)

    @cached_property
    def base_elements(self) -> int:
        """Elements of the model's own parameters, without adapters."""
        return sum(local.elements for local in self.parameters if not local.adapter)

    @cached_property
    def quantized_layers(self) -> tuple[LocalParameters, ...]:
        """The quantized parameters of its blocks."""
        return tuple(local for local in self.parameters if local.quantized and local.group.layered)

    @cached_property
    def head(self) -> tuple[LocalParameters, ...]:
        """Parameters of the task head, with its adapters."""
        return tuple(local for local in self.parameters if local.group.role == "head")

    @cached_property
    def partly_trained(self) -> bool:
        """True if some, but not all of the model's own parameters train."""
        return len({local.trainable for local in self.parameters if not local.adapter}) > 1

    @cached_property
    def trained_blocks(self) -> float:
        """Share of the blocks in which something trains."""
        if self.runs is None or any(local.adapter for local in self.parameters):
            return 1.0
        return sum(run.count for run in self.runs if run.trained) / max(1, self.layers)

    @cached_property
    def trains_head(self) -> bool:
        """True if the weight that computes the logits trains, which is the embedding if they are tied."""
        heads = [local for local in self.head if local.group.linear and not local.adapter]
        if not heads and self.token_embedding is not None:
            return any(h.trainable for h in self.parameters if h.group == self.token_embedding.group)
        return any(local.trainable for local in heads)

    @cached_property
    def trains_embeddings(self) -> bool:
        """True if something before the first block trains, so that all blocks pass gradients on."""
        around = [local.group for local in self.parameters if local.trainable and not local.group.layered]
        return any(group.role == "embedding" or "embeddings." in group.name for group in around)

    @cached_property
    def mlp_share(self) -> float:
        """Share of the blocks' trainable parameters that belongs to their MLPs."""
        mlp = sum(self.elements(trainable=True, layered=True, role=role) for role in _MLP_ROLES)
        return mlp / max(1, self.elements(trainable=True, layered=True))

    def elements(self, *, trainable: bool | None = None, layered: bool | None = None, role: Role | None = None) -> int:
        """Elements of its parameters, filtered by the arguments that are given."""
        key = (trainable, layered, role)
        if key not in self._totals:
            self._totals[key] = sum(
                local.elements
                for local in self.parameters
                if (trainable is None or local.trainable == trainable)
                and (layered is None or local.group.layered == layered)
                and (role is None or local.group.role == role)
            )
        return self._totals[key]

    @cached_property
    def _totals(self) -> dict[tuple[bool | None, bool | None, Role | None], int]:
        return {}


def unpacked_bytes(parameters: Iterable[LocalParameters], *, width: int, experts: bool = False) -> int:
    """Bytes of the largest quantized weight among these, dequantized to the compute type for one product.

    Lightning dequantizes to fp16, the type before quantization, and then casts (``_Linear4bit.quantize``).

    Args:
        parameters: the candidates.
        width: bytes per element while a weight is dequantized.
        experts: those of a block together: the products keep them for their gradients.
    """
    quantized = [each for each in parameters if each.quantized]
    fused = sum(each.largest_tensor for each in quantized if experts and each.group.role == "expert")
    return width * max([fused, *(-(-each.largest_tensor // each.layers_per_tensor) for each in quantized)])


class _Partitioning(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a job that decide which parameters its ranks hold."""

    parallel: Parallel
    adapters: tuple[ParameterGroup, ...] | None
    """None: no adapters; every parameter is trained."""
    quantized: QuantizedLayers
    trains: bool
    trained: TrainedParameters | None
    """The model's own parameters that train; None: without adapters all, else none."""
    by_plan: bool
    """True if tensor parallelism follows the plan in a transformers model."""
    plan: Plan | None
    """The job's own tensor-parallel plan; None: the model's."""
    accumulation: int
    row_shards: int
    """Ranks over which FSDP2 cuts parameters along their first dimension; 1: it does not."""


_MAX_KINDS = 64
"""Most pipeline stages whose micro-batches in flight are counted one by one; published pipelines have at most 64."""


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
    parallel = job.parallel
    if parallel.fsdp_wrap_classes is not None or isinstance(parallel.device_map, dict):
        # lists and tables cannot be hashed, and do not decide what a rank holds
        parallel = structs.replace(parallel, fsdp_wrap_classes=None, device_map=None)
    partitioning = _Partitioning(
        parallel=parallel,
        adapters=adapter_groups(inventory, job) if job.lora else None,
        quantized=QuantizedLayers.of(job, inventory),
        trains=job.trains,
        trained=model_trained_parameters(job, inventory),
        by_plan=job.framework.tensor_parallel_plan,
        plan=plan_of_job(job.job),
        accumulation=job.training.gradient_accumulation if count > 1 else 1,
        row_shards=job.shards.weights if job.strategy.fsdp2 and job.framework.transformers_models else 1,
    )
    return _stages(inventory, partitioning) if placement is None else _placed(inventory, partitioning, placement)


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
def _stages(inventory: Inventory, partitioning: _Partitioning) -> tuple[Stage, ...]:
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


def _placed(inventory: Inventory, partitioning: _Partitioning, placement: Placement) -> tuple[Stage, ...]:
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
    partitioning: _Partitioning,
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
        tied_copy = inventory.tied_head and last and group.role == "embedding" and not _is_position_table(group)
        if not group.layered and not (
            (first and group.role == "embedding") or tied_copy or (last and group.role != "embedding")
        ):
            continue
        tensors = -(-group.repeat * layers // inventory.layers) if group.layered else group.repeat
        parameters += _local_parameters(partitioning, group, tensors, blocks=blocks)
    trained = partitioning.trained
    if trained is not None and trained.outside and last:
        parameters.append(_own_layers(trained.outside))
    share = layers / max(1, inventory.layers)  # of the layers' buffers; every stage needs all others: the positions
    return Stage(
        layers=layers,
        first=first,
        last=last,
        in_flight=in_flight,
        parameters=tuple(parameters),
        runs=trained.runs(*blocks) if trained and _differ(trained, partitioning) else None,
        buffer_bytes=round(sum(b.total_bytes * (share if ".*." in b.name else 1) for b in inventory.buffers)),
    )


def _local_parameters(
    partitioning: _Partitioning, group: ParameterGroup, tensors: int, *, blocks: tuple[int, int]
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
        elements = -(-group.elements * kept // group.repeat // _split_ranks(partitioning, group))
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
            data_ranks=_expert_ranks(partitioning, group),
            padding=_padding(partitioning, group),
        )


def _own_layers(elements: int) -> LocalParameters:
    """Return the layers that a program adds to the model by itself: what is known is how many parameters they train."""
    group = ParameterGroup(name="own_layers", shape=(elements,), repeat=1, role="head", linear=False, layered=False)
    return LocalParameters(group=group, elements=elements, tensors=1, trainable=True, quantized=False, adapter=False)


def _differ(trained: TrainedParameters, partitioning: _Partitioning) -> bool:
    """Return True if not all blocks train the same: everything, or adapters alone."""
    if partitioning.adapters is not None:
        return any(trained.trained.values())
    return any(len(trained.trained[group]) < len(blocks) for group, blocks in trained.tensors.items())


def _split_ranks(partitioning: _Partitioning, group: ParameterGroup) -> int:
    """Ranks over which tensor and expert parallelism split a group; norms are whole on every rank."""
    expert = _expert_ranks(partitioning, group)
    whole = group.role in ("norm", "router") or _is_position_table(group)
    if group.role == "embedding" and partitioning.by_plan:
        whole = not group.name.endswith("embed_tokens.weight")  # the plans list the embedding under this name
    if partitioning.plan is not None:
        adapted, adapter, _ = group.name.partition(".lora_")
        whole = not splits(partitioning.plan, f"{adapted}.weight" if adapter else group.name)
    tensor = 1 if whole else partitioning.parallel.tensor
    return expert * tensor


def _expert_ranks(partitioning: _Partitioning, group: ParameterGroup) -> int:
    """Return the ranks over which expert parallelism splits a group."""
    return partitioning.parallel.expert if group.role == "expert" else 1


def _padding(partitioning: _Partitioning, group: ParameterGroup) -> float:
    """Return how many times its elements all shards of a group have, if they have one size."""
    rows, ranks = group.shape[0], partitioning.row_shards
    if _split_ranks(partitioning, group) > 1 or partitioning.quantized.layers_per_tensor(group) > 1:
        return 1
    return -(-rows // ranks) * ranks / rows


_POSITION_TABLE = re.compile(r"\b(wpe|\w*position\w*|token_type\w*)\.weight$")


def _is_position_table(group: ParameterGroup) -> bool:
    """Return True if it embeds positions or kinds of tokens, not tokens.

    Such tables are whole on every tensor-parallel rank, and only the first stage has them (``LanguageModelEmbedding``
    in Megatron-LM's core/models/common/embeddings: "Position embedding (serial)").
    """
    return group.role == "embedding" and _POSITION_TABLE.search(group.name) is not None
