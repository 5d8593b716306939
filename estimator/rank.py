"""What one rank holds of a model: its pipeline stage, its tensor- and expert-parallel part, and its adapters."""

from dataclasses import dataclass
from math import prod

from .adapters import adapters_of
from .errors import InputError
from .inventory import Inventory, ParameterGroup, Role
from .job import Job
from .quantized import quantization, quantized_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The part of one parameter group that a rank holds before data-parallel sharding."""

    group: ParameterGroup
    elements: int
    tensors: int
    trainable: bool
    quantized: bool
    adapter: bool
    quantized_bytes: int | None = None
    """What its part takes as bitsandbytes stores it; None: it is not quantized."""

    @property
    def largest(self) -> int:
        """Elements of one tensor."""
        return -(-self.elements // max(1, self.tensors))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One rank of a job: a pipeline stage's tensor-parallel part."""

    index: int
    layers: int
    """Blocks on this stage."""
    first: bool
    """It holds the embeddings."""
    last: bool
    """It holds the head and computes the loss."""
    in_flight: int
    """Micro-batches whose activations are alive at once (1F1B schedule)."""
    held: tuple[Held, ...]
    buffer_bytes: int = 0
    """Of buffers, whole on every rank that has their module; 0 where the model was not built."""

    def elements(self, *, trainable: bool | None = None, layered: bool | None = None, role: Role | None = None) -> int:
        """Elements of what it holds, restricted where asked."""
        return sum(
            held.elements
            for held in self.held
            if (trainable is None or held.trainable == trainable)
            and (layered is None or held.group.layered == layered)
            and (role is None or held.group.role == role)
        )


def stages(job: Job, inventory: Inventory) -> tuple[Stage, ...]:
    """The stages that can be the fullest: the first, the last, and where there are more than two, the second.

    Raises:
        InputError: the job is spread over more than the model has, or its adapters fit nothing.
    """
    count = job.parallel.pipeline
    if count > inventory.layers:
        raise InputError(f"parallel.pipeline = {count}: the model has only {inventory.layers} layers to spread")
    candidates = sorted({0, min(1, count - 1), count - 1})
    adapters = adapters_of(inventory, job.lora) if job.lora else ()
    return tuple(_stage(job, inventory, adapters, index) for index in candidates)


def _stage(job: Job, inventory: Inventory, adapters: tuple[ParameterGroup, ...], index: int) -> Stage:
    count = job.parallel.pipeline
    layers = -(-inventory.layers // count)
    first, last = index == 0, index == count - 1
    held: list[Held] = []
    for group in (*inventory.groups, *adapters):
        adapter = ".lora_" in group.name
        tied_copy = group.role == "embedding" and inventory.tied_head and last
        if not group.layered and not (
            (first and group.role == "embedding") or tied_copy or (last and group.role != "embedding")
        ):
            continue
        tensors = -(-group.repeat * layers // inventory.layers) if group.layered else group.repeat
        elements = -(-group.elements * tensors // group.repeat // _split(job, group))
        held.append(
            Held(
                group=group,
                elements=elements,
                tensors=tensors,
                trainable=adapter or (job.lora is None and job.training.mode == "train"),
                quantized=_is_quantized(job, group) and not adapter,
                adapter=adapter,
                quantized_bytes=_quantized_bytes(job, group, elements) if not adapter else None,
            )
        )
    return Stage(
        index=index,
        layers=min(layers, inventory.layers - index * layers) if count > 1 else layers,
        first=first,
        last=last,
        in_flight=min(count - index, job.training.gradient_accumulation) if count > 1 else 1,
        held=tuple(held),
        buffer_bytes=_buffer_bytes(inventory, layers if count > 1 else inventory.layers),
    )


def _buffer_bytes(inventory: Inventory, layers: int) -> int:
    """Of the layers' buffers this stage's share; the others stand on every stage, since each needs positions."""
    share = layers / max(1, inventory.layers)
    return round(sum(b.total_bytes * (share if ".*." in b.name else 1) for b in inventory.buffers))


def _split(job: Job, group: ParameterGroup) -> int:
    """Over how many ranks a group is split by tensor and expert parallelism; norms are on every rank."""
    expert = job.parallel.expert if group.role == "expert" else 1
    tensor = 1 if group.role in ("norm", "router") else job.parallel.tensor
    return expert * tensor


def _is_quantized(job: Job, group: ParameterGroup) -> bool:
    """Bitsandbytes replaces linear layers, the head excepted; experts fused into one tensor are no linear layers."""
    if quantization(job.lora) is None:
        return False
    return group.linear and group.role != "head" if group.quantized is None else group.quantized


def _quantized_bytes(job: Job, group: ParameterGroup, elements: int) -> int | None:
    kind = quantization(job.lora)
    if kind is None or not _is_quantized(job, group):
        return None
    return round(quantized_bytes(group.shape, kind, transposed=group.transposed) * elements / prod(group.shape))
