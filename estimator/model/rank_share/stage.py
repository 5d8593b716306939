"""The share of one rank: its part of each parameter group, of one pipeline stage or one GPU of a device map."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from ..parameters import ParameterGroup, Role
from ..trained_parameters import BlockRun

_MLP_ROLES: tuple[Role, ...] = ("mlp", "expert", "router")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalParameters:
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
    passing_blocks: int = 0
    """Its last blocks whose weights come from there."""
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
    def splits_embedding(self) -> bool:
        """True if the rank holds a part of each token embedding's tensor."""
        return self.token_embedding is not None and self.token_embedding.elements < self.token_embedding.group.elements

    @cached_property
    def base_elements(self) -> int:
        """Elements of the model's own parameters, without adapters."""
        return sum(local.elements for local in self.parameters if not local.adapter)

    @cached_property
    def quantized_layers(self) -> tuple[LocalParameters, ...]:
        """The quantized parameters of its blocks."""
        return tuple(local for local in self.parameters if local.quantized and local.group.layered)

    @cached_property
    def has_experts(self) -> bool:
        """True if any of its parameters belongs to an expert."""
        return any(local.group.role == "expert" for local in self.parameters)

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
        return any(
            local.trainable and not local.group.layered and local.group.role == "embedding" for local in self.parameters
        ) or any(
            local.trainable and "embeddings." in local.group.name and not local.group.layered
            for local in self.parameters
        )

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


def unpacked_bytes(parameters: Iterable[LocalParameters], *, width: int) -> int:
    """Bytes of the largest quantized weight among these, dequantized to the compute type for one product.

    Lightning dequantizes to fp16, the type before quantization, and then casts (``_Linear4bit.quantize``).

    Args:
        parameters: the candidates.
        width: bytes per element while a weight is dequantized.
    """
    return max((width * -(-h.largest_tensor // h.layers_per_tensor) for h in parameters if h.quantized), default=0)
