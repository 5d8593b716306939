"""What one rank holds of a model: its pipeline stage, its tensor- and expert-parallel part, and its adapters."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from ..common.errors import InputError
from ..job.job import Job, Parallel
from ..job.quantization import quantization, quantized_bytes
from .lora import adapters_of
from .parameters import Inventory, ParameterGroup, Role

_OF_MLP: tuple[Role, ...] = ("mlp", "expert", "router")


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


@dataclass(frozen=True, eq=False, kw_only=True)  # not slotted: its totals are kept
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

    @cached_property
    def tokens(self) -> Held | None:
        """The token embedding, where the stage holds it."""
        embeddings = (held for held in self.held if held.group.role == "embedding" and not held.group.layered)
        return max(embeddings, key=lambda held: held.elements, default=None)

    @cached_property
    def base_elements(self) -> int:
        """Of the model's own parameters, without adapters."""
        return sum(held.elements for held in self.held if not held.adapter)

    @cached_property
    def quantized_layers(self) -> tuple[Held, ...]:
        """What of its blocks is quantized."""
        return tuple(held for held in self.held if held.quantized and held.group.layered)

    @cached_property
    def head(self) -> tuple[Held, ...]:
        """The task's output, with its adapters."""
        return tuple(held for held in self.held if held.group.role == "head")

    @cached_property
    def share_of_mlp(self) -> float:
        """How much of the blocks' trainable parameters their MLPs hold."""
        mlp = sum(self.elements(trainable=True, layered=True, role=role) for role in _OF_MLP)
        return mlp / max(1, self.elements(trainable=True, layered=True))

    def elements(self, *, trainable: bool | None = None, layered: bool | None = None, role: Role | None = None) -> int:
        """Elements of what it holds, restricted where asked."""
        asked = (trainable, layered, role)
        if asked not in self._totals:
            self._totals[asked] = sum(
                held.elements
                for held in self.held
                if (trainable is None or held.trainable == trainable)
                and (layered is None or held.group.layered == layered)
                and (role is None or held.group.role == role)
            )
        return self._totals[asked]

    @cached_property
    def _totals(self) -> dict[tuple[bool | None, bool | None, Role | None], int]:
        return {}


def stages(job: Job, inventory: Inventory) -> tuple[Stage, ...]:
    """Every pipeline stage, in order.

    Raises:
        InputError: the job is spread over more than the model has, or its adapters fit nothing.
    """
    count = job.parallel.pipeline
    if count > inventory.layers:
        raise InputError(f"parallel.pipeline = {count}: the model has only {inventory.layers} layers to spread")
    training = job.training
    cut = _Cut(
        parallel=job.parallel,
        adapters=adapters_of(inventory, job) if job.lora else None,
        quantization=quantization(job.lora),
        trains=training.mode == "train",
        litgpt=training.framework == "litgpt",
        by_plan=training.framework == "transformers",
        accumulation=training.gradient_accumulation if count > 1 else 1,
    )
    return _stages(inventory, cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cut:
    """What of a job decides what its ranks hold."""

    parallel: Parallel
    adapters: tuple[ParameterGroup, ...] | None
    """None: it has none, and every parameter is trained."""
    quantization: str | None
    trains: bool
    litgpt: bool
    by_plan: bool
    """Tensor parallelism follows the plan of a model of transformers."""
    accumulation: int


@lru_cache(maxsize=256)  # sweeps ask for the same again and again
def _stages(inventory: Inventory, cut: _Cut) -> tuple[Stage, ...]:
    return tuple(_stage(cut, inventory, index) for index in range(cut.parallel.pipeline))


def _stage(cut: _Cut, inventory: Inventory, index: int) -> Stage:
    count = cut.parallel.pipeline
    # as evenly as it goes, the first ones taking what is left over (torchtitan's pipeline_parallel)
    layers = inventory.layers // count + (index < inventory.layers % count)
    first, last = index == 0, index == count - 1
    held: list[Held] = []
    for group in (*inventory.groups, *(cut.adapters or ())):
        adapter = ".lora_" in group.name
        tied_copy = group.role == "embedding" and inventory.tied_head and last
        if not group.layered and not (
            (first and group.role == "embedding") or tied_copy or (last and group.role != "embedding")
        ):
            continue
        tensors = -(-group.repeat * layers // inventory.layers) if group.layered else group.repeat
        elements = -(-group.elements * tensors // group.repeat // _split(cut, group))
        held.append(
            Held(
                group=group,
                elements=elements,
                tensors=tensors,
                trainable=adapter or (cut.adapters is None and cut.trains),
                quantized=_is_quantized(cut, group) and not adapter,
                adapter=adapter,
                quantized_bytes=_quantized_bytes(cut, group, elements) if not adapter else None,
            )
        )
    return Stage(
        index=index,
        layers=layers,
        first=first,
        last=last,
        in_flight=min(count - index, cut.accumulation) if count > 1 else 1,
        held=tuple(held),
        buffer_bytes=_buffer_bytes(inventory, layers),
    )


def _buffer_bytes(inventory: Inventory, layers: int) -> int:
    """Of the layers' buffers this stage's share; the others stand on every stage, since each needs positions."""
    share = layers / max(1, inventory.layers)
    return round(sum(b.total_bytes * (share if ".*." in b.name else 1) for b in inventory.buffers))


def _split(cut: _Cut, group: ParameterGroup) -> int:
    """Over how many ranks a group is split by tensor and expert parallelism; norms are on every rank."""
    expert = cut.parallel.expert if group.role == "expert" else 1
    whole = group.role in ("norm", "router")
    if group.role == "embedding" and cut.by_plan:
        whole = not group.name.endswith("embed_tokens.weight")  # its plans know the embedding by this name
    tensor = 1 if whole else cut.parallel.tensor
    return expert * tensor


def _is_quantized(cut: _Cut, group: ParameterGroup) -> bool:
    """Bitsandbytes replaces linear layers, the head excepted; experts fused into one tensor are no linear layers.

    Lightning's plugin replaces the head too (``BitsandbytesPrecision``, to which LitGPT names no exception).
    """
    if cut.quantization is None:
        return False
    if cut.litgpt:
        return group.linear
    return group.linear and group.role != "head" if group.quantized is None else group.quantized


def _quantized_bytes(cut: _Cut, group: ParameterGroup, elements: int) -> int | None:
    if cut.quantization is None or not _is_quantized(cut, group):
        return None
    whole = quantized_bytes(group.shape, cut.quantization, transposed=group.transposed)
    return round(whole * elements / prod(group.shape))


def unpacked_bytes(job: Job, held: Iterable[Held]) -> int:
    """The largest quantized weight among these, as it is unpacked for one product: in the compute type.

    Under Lightning it is unpacked to fp16, which it was quantized from, and then cast (``_Linear4bit.quantize``).
    """
    width = 4 if job.training.framework == "litgpt" else 2
    return max((width * h.largest for h in held if h.quantized), default=0)
