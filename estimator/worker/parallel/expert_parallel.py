"""torchtitan's experts under FSDP2: over the ranks that hold the same experts, and gathered a block ahead.

Sources: torchtitan 0.2.0 to 0.2.2 ``models/llama4/infra/parallelize.py`` (``apply_fsdp``), its main branch of August
2026 ``distributed/fsdp.py`` (``apply_fsdp_to_decoder``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..model.experts.torchtitan import TitanExperts
from .process_group import device_mesh_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..request.request import Parallel


def shard_block(block: Any, options: dict[str, Any], parallel: Parallel, form: str, fully_shard: Any) -> None:
    """Make a block a unit of FSDP2, and its experts what they are in it.

    Args:
        block: the block.
        options: of the unit.
        parallel: of the job.
        form: of the experts: those of ``dispatch`` are parameters of the block's unit that have ranks of their own,
            those of other forms a unit of their own.
        fully_shard: torch's.
    """
    experts = next((module for module in block.modules() if isinstance(module, TitanExperts)), None)
    if experts is None or (parallel.expert == 1 and form != "dispatch"):
        fully_shard(block, **options)
        return
    # whole experts of each rank, unless there are more ranks than experts
    along_rows = parallel.data_shard > experts.num_experts
    if parallel.expert > 1:
        experts.split_over(parallel.expert)
    if form != "dispatch":
        mesh = _mesh_of_same_experts(parallel)
        fully_shard(experts, **{**options, "mesh": mesh}, shard_placement_fn=_placement(along_rows))
        fully_shard(block, **options)
        return
    fully_shard(block, **options, shard_placement_fn=_placements(experts, options["mesh"], parallel, along_rows))


def prefetch_experts(blocks: list[Any], last: list[Any], parallel: Parallel, *, embedding: Any = None) -> None:
    """Have each unit gather the next one's parameters, as torchtitan asks for under expert parallelism."""
    if parallel.expert == 1:
        return
    units = [_units_of(block) for block in blocks]
    if embedding is not None:
        embedding.set_modules_to_forward_prefetch(units[0][:1])
    for block, following in zip(blocks, [*units[1:], last[-1:]]):  # noqa: B905 - not in Python 3.9
        if following:
            block.set_modules_to_forward_prefetch(following)
    if last:
        last[-1].set_modules_to_backward_prefetch(units[-1][:1])
    for block, preceding in zip(blocks, [[embedding] if embedding is not None else [], *units[:-1]]):  # noqa: B905
        if preceding:
            block.set_modules_to_backward_prefetch(preceding)


def _units_of(block: Any) -> list[Any]:
    """Return a block and its experts, if they are a unit of their own."""
    from torch.distributed.fsdp import FSDPModule

    return [
        block,
        *(each for each in block.modules() if isinstance(each, TitanExperts) and isinstance(each, FSDPModule)),
    ]


def _mesh_of_same_experts(parallel: Parallel) -> Any:
    ranks = parallel.data_shard // parallel.expert
    return device_mesh_of({"same": ranks, "expert": parallel.expert})["same"]


def _placement(along_rows: bool) -> Callable[[Any], Any] | None:
    from torch.distributed.tensor import Shard

    return (lambda _parameter: Shard(1)) if along_rows else None


def _placements(experts: Any, mesh: Any, parallel: Parallel, along_rows: bool) -> Callable[[Any], Any] | None:
    """Return where FSDP2 puts each parameter of a block; None: all where the block's are."""
    from torch.distributed.tensor import Shard

    own, rows = set(experts.parameters()), Shard(1 if along_rows else 0)
    if parallel.expert == 1:
        return (lambda parameter: rows if parameter in own else None) if along_rows else None
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult

    same = FSDPMeshInfo(_mesh_of_same_experts(parallel), shard_mesh_dim=0)
    others = FSDPMeshInfo(mesh, shard_mesh_dim=0)

    def place(parameter: Any) -> Any:
        if parameter in own:
            return ShardPlacementResult(placement=rows, mesh_info=same)
        return ShardPlacementResult(placement=Shard(0), mesh_info=others)

    return place
