"""What one rank holds of a model: its pipeline stage, its tensor- and expert-parallel part, and its adapters."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Literal

from .errors import InputError
from .inventory import Inventory, ParameterGroup, Role
from .job import Job, Parallel

_PARTS = frozenset({"q_proj", "k_proj", "v_proj"})
_FUSED = frozenset({"query_key_value", "qkv_proj", "c_attn"})

_Targets = tuple[str, ...] | Literal["all-linear"]
_Wanted = tuple[int, _Targets, bool]
"""Of adapters the rank and the targets, and whether LitGPT makes them."""
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

    @cached_property
    def tokens(self) -> Held | None:
        """The token embedding, where the stage holds it."""
        embeddings = (held for held in self.held if held.group.role == "embedding" and not held.group.layered)
        return max(embeddings, key=lambda held: held.elements, default=None)

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
    """The stages that can be the fullest: the first, the last, and where there are more than two, the second.

    Raises:
        InputError: the job is spread over more than the model has, or its adapters fit nothing.
    """
    count = job.parallel.pipeline
    if count > inventory.layers:
        raise InputError(f"parallel.pipeline = {count}: the model has only {inventory.layers} layers to spread")
    lora, training = job.lora, job.training
    cut = _Cut(
        parallel=job.parallel,
        adapters=_wanted(job),
        quantized=lora is not None and lora.quantization != "none",
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
    adapters: _Wanted | None
    quantized: bool
    trains: bool
    litgpt: bool
    by_plan: bool
    """Tensor parallelism follows the plan of a model of transformers."""
    accumulation: int


@lru_cache(maxsize=256)  # sweeps ask for the same again and again
def _stages(inventory: Inventory, cut: _Cut) -> tuple[Stage, ...]:
    count = cut.parallel.pipeline
    candidates = sorted({0, min(1, count - 1), count - 1})
    adapters = _adapters(inventory, cut.adapters) if cut.adapters else ()
    return tuple(_stage(cut, inventory, adapters, index) for index in candidates)


def adapter_parameters(inventory: Inventory, job: Job) -> int:
    """Elements of all adapters.

    Raises:
        InputError: no linear layer has such a name.
    """
    return sum(group.elements for group in adapter_groups(inventory, job))


def _wanted(job: Job) -> _Wanted | None:
    lora = job.lora
    if lora is None:
        return None
    targets = lora.targets if lora.targets == "all-linear" else tuple(lora.targets)
    return lora.rank, targets, job.training.framework == "litgpt"


def adapter_groups(inventory: Inventory, job: Job) -> tuple[ParameterGroup, ...]:
    """The two matrices that LoRA puts beside each adapted linear layer: A (r, in) and B (out, r).

    Raises:
        InputError: no linear layer has such a name.
    """
    wanted = _wanted(job)
    return _adapters(inventory, wanted) if wanted else ()


@lru_cache(maxsize=256)
def _adapters(inventory: Inventory, wanted: _Wanted) -> tuple[ParameterGroup, ...]:
    return tuple(_adapter_groups(inventory, *wanted))


def _adapter_groups(inventory: Inventory, lora_rank: int, targets: _Targets, litgpt: bool) -> Iterator[ParameterGroup]:
    """Of each adapted linear layer.

    The head is adapted where it is named. In LitGPT queries, keys and values are one layer, adapted by its parts.
    With ``all-linear`` experts and router count as the linear layers that they were before transformers 5 made one
    tensor of them (peft, ``utils/transformers_weight_conversion.py``): E adapters side by side, of r for each fused.
    """
    linear = [g for g in inventory.groups if g.linear and len(g.shape) == 2]
    every = targets == "all-linear"
    names = set() if every else set(targets)
    if litgpt and names & _PARTS:
        names |= _FUSED
    wanted = [g for g in linear if (g.role != "head" if every else module_name(g) in names)]
    if not wanted:
        known = ", ".join(sorted({module_name(g) for g in linear}))
        named = targets if isinstance(targets, str) else list(targets)
        raise InputError(f"lora.targets = {named!r} names no linear layer of this model; it has {known}")
    if every and not any(".shared_expert." in g.name for g in linear):
        wanted = [*wanted, *(g for g in inventory.groups if _was_linear(g, inventory))]
    for group in wanted:
        *experts, rows, columns = group.shape
        rank = lora_rank * prod(experts) * (2 if group.name.endswith("gate_up_proj") else 1)
        for letter, shape in (("A", (rank, columns)), ("B", (rows, rank))):
            yield ParameterGroup(
                name=f"{group.name.removesuffix('.weight')}.lora_{letter}.weight",
                shape=shape,
                repeat=group.repeat,
                role=group.role,
                linear=False,
                layered=group.layered,
            )


def _was_linear(group: ParameterGroup, inventory: Inventory) -> bool:
    if group.role == "router":
        return not group.linear and group.name.endswith(".gate.weight")
    biased = any(other.name == f"{group.name}_bias" for other in inventory.groups)  # gpt_oss always had one tensor
    return group.role == "expert" and len(group.shape) == 3 and not biased


def module_name(group: ParameterGroup) -> str:
    """The last part of the module's name, which is what adapters are targeted by: ``q_proj``."""
    return group.name.rpartition(".")[0].rpartition(".")[2]


def _stage(cut: _Cut, inventory: Inventory, adapters: tuple[ParameterGroup, ...], index: int) -> Stage:
    count = cut.parallel.pipeline
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
        held.append(
            Held(
                group=group,
                elements=-(-group.elements * tensors // group.repeat // _split(cut, group)),
                tensors=tensors,
                trainable=adapter or (cut.adapters is None and cut.trains),
                quantized=_is_quantized(cut, group) and not adapter,
                adapter=adapter,
            )
        )
    return Stage(
        index=index,
        layers=min(layers, inventory.layers - index * layers) if count > 1 else layers,
        first=first,
        last=last,
        in_flight=min(count - index, cut.accumulation) if count > 1 else 1,
        held=tuple(held),
    )


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
    return cut.quantized and group.linear and (cut.litgpt or group.role != "head")
