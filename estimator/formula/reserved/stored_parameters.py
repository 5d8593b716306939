"""The parameters of a rank one by one, in the order in which a model creates them and an optimizer steps them."""

from collections.abc import Iterator
from functools import lru_cache

from msgspec import Struct

from ...job.resolved_job import ResolvedJob
from ...model.inventory import Role
from ...model.rank_share import LocalParameters, Stage
from ..buffers import weight_width
from ..model_states import StateRules, state_rules

_MODULE_ORDER = {"attention": 0, "router": 1, "expert": 1, "mlp": 1, "other": 2, "norm": 3}
_LAYER_ORDER = ("q_", "q", "query", "k_", "k", "v_", "v", "gate", "wi_0", "up", "wi_1")


class StoredParameter(Struct, frozen=True, kw_only=True):
    """One parameter of a rank: bytes of its tensors."""

    weight: int
    gradient: int
    """Bytes of its gradient that stay until the step."""
    states: tuple[int, ...]
    """Its optimizer states, a tensor each."""
    step: int
    """Its part of what the optimizer's step copies."""
    elements: int
    trained: bool
    adapter: bool
    quantized: bool
    role: Role
    block: int
    """Number of its block; -1: it comes before the blocks, -2: after them."""
    counted: int = 1
    """Number of its shards that the rank keeps."""
    padding: float = 1
    """Elements of all shards for each of its own."""

    @property
    def of_mlp(self) -> bool:
        """True if it belongs to the MLP or the experts of its block."""
        return self.role in ("mlp", "router", "expert")


def stored_parameters(job: ResolvedJob, stage: Stage) -> tuple[StoredParameter, ...]:
    """Return the parameters of a rank, in the order of the model's modules."""
    return _stored(stage, state_rules(job), job.shards.weights, job.shards.optimizer, job.optimizer.copies)


@lru_cache(maxsize=128)
def _stored(
    stage: Stage, rules: StateRules, weight_shards: int, state_shards: int, copies: float | None
) -> tuple[StoredParameter, ...]:
    found = []
    for held, block in _in_order(stage):
        elements = held.elements / max(1, held.tensors)
        widths = rules.widths
        width = weight_width(held, widths)
        stored = (held.quantized_bytes or 0) / max(1, held.tensors) if held.quantized_bytes else elements * width
        kept, stepped = held.counted(weight_shards), held.counted(state_shards) / state_shards
        padding = held.padding if weight_shards > 1 else 1
        stepped *= padding
        gradient = (widths.adapter if held.adapter else widths.gradient) * elements
        found.append(
            StoredParameter(
                weight=round(stored * padding * kept / weight_shards),
                gradient=round(gradient * padding * kept / weight_shards) if held.trainable else 0,
                states=_states(held, rules, elements * stepped) if held.trainable else (),
                step=round((copies or 0) * elements * (widths.adapter if held.adapter else widths.state) * stepped)
                if held.trainable
                else 0,
                elements=round(elements),
                counted=kept,
                padding=padding,
                trained=held.trainable,
                adapter=held.adapter,
                quantized=held.quantized,
                role=held.group.role,
                block=block,
            )
        )
    return tuple(found)


def _states(held: LocalParameters, rules: StateRules, elements: float) -> tuple[int, ...]:
    if rules.optimizer.elsewhere:
        return ()
    whole = rules.states(held) / max(1, held.elements) * elements
    width = rules.widths.adapter if held.adapter else rules.widths.state
    count = max(1, round(whole / (elements * width))) if elements else 1
    master = rules.master(held) / max(1, held.elements) * elements
    sizes = [whole / count] * count if whole else []
    return tuple(round(size) for size in ([master] if master else []) + sizes)


def _in_order(stage: Stage) -> Iterator[tuple[LocalParameters, int]]:
    around = [held for held in stage.parameters if not held.group.layered]
    layered = sorted((held for held in stage.parameters if held.group.layered), key=_place)
    yield from ((held, -1) for held in around if held.group.role == "embedding" for _ in range(held.tensors))
    for block in range(stage.layers):
        for held in layered:
            for _ in range(held.tensors * block // stage.layers, held.tensors * (block + 1) // stage.layers):
                yield held, block
    yield from ((held, -2) for held in around if held.group.role != "embedding" for _ in range(held.tensors))


def _place(held: LocalParameters) -> tuple[int, int]:
    module = held.group.name.removesuffix(".weight").rpartition(".")[2]
    layer = next((at for at, start in enumerate(_LAYER_ORDER) if module.startswith(start)), len(_LAYER_ORDER))
    return _MODULE_ORDER.get(held.group.role, 2), layer
