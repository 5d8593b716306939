"""Parallelism, really applied, in a process group that has all the ranks but no other processes.

Rank 0 is looked at: where a dimension does not divide evenly, it holds the most.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ..request.limits import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.tracker import Tracker
    from ..request.request import Parallel

BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20
"""DistributedDataParallel's defaults (``torch/nn/parallel/distributed.py``)."""


@contextlib.contextmanager
def process_group(world: int) -> Iterator[None]:
    """A process group of that many ranks whose collectives do nothing; none for one rank."""
    if world == 1:
        yield
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    coordinate = getattr(DeviceMesh, "_compute_coordinate_on_dim", None)
    if coordinate is not None:
        DeviceMesh._compute_coordinate_on_dim = lambda mesh: _on_real_tensors(coordinate, mesh)
    try:
        yield
    finally:
        if coordinate is not None:
            DeviceMesh._compute_coordinate_on_dim = coordinate
        dist.destroy_process_group()


def _on_real_tensors(function: Any, *args: Any) -> Any:
    """A mesh's ranks are values, which fake tensors do not have."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        return function(*args)


def device_mesh(parallel: Parallel) -> Any:
    """A mesh with the dimensions ``replicate``, ``shard`` and ``tensor``, as far as they are larger than 1."""
    from torch.distributed.device_mesh import init_device_mesh

    sizes = {"replicate": parallel.data_replicate, "shard": parallel.data_shard, "tensor": parallel.tensor}
    named = {name: size for name, size in sizes.items() if size > 1}
    return _on_real_tensors(lambda: init_device_mesh("cpu", tuple(named.values()), mesh_dim_names=tuple(named)))


def shard_fully(model: Any, parallel: Parallel, mesh: Any, compute: Any) -> None:
    """FSDP2 in the units that accelerate makes (``utils/fsdp_utils.py``, 1.15).

    Each block, the embedding, norm and head together (not resharded after forward), and the rest under the root.

    Args:
        model: in place.
        parallel: of the job.
        mesh: of the job.
        compute: the type of gathered parameters under mixed precision; None: as they are stored.

    Raises:
        UnsupportedError: this torch has no ``fully_shard``, or the model does not name its blocks.
    """
    try:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    except ImportError:
        raise UnsupportedError(f"torch {torch.__version__} has no fully_shard; it came with 2.6") from None
    names = ("replicate", "shard") if parallel.data_replicate > 1 else ("shard",)
    reduce = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[parallel.reduce_dtype]
    options = {
        "mesh": mesh[names],
        "mp_policy": MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce, output_dtype=compute),
        "offload_policy": CPUOffloadPolicy(pin_memory=False) if parallel.cpu_offload == "all" else OffloadPolicy(),
    }
    each = {**options, "reshard_after_forward": parallel.reshard_after_forward}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    sharing = _sharing(model, embedding)
    for block in _blocks(model):
        if not any(module in sharing for module in block.modules()):
            fully_shard(block, **each)
    tied = head in sharing
    if not tied:
        fully_shard(sharing, **each)
    tail = [module for module in (_final_norm(model), *(sharing if tied else (head,))) if module is not None]
    tail += [module for own in tail for module in _sharing(model, own) if module not in tail]
    if tail:
        fully_shard(tail, **{**each, "reshard_after_forward": False})
    fully_shard(model, **options)


def allocate_buckets(model: Any, tracker: Tracker) -> list[Any]:
    """The buckets that DistributedDataParallel copies gradients into: one element for each trained one."""
    buckets: list[Any] = []
    limit, filled = FIRST_BUCKET_BYTES, 0
    sizes: dict[Any, int] = {}
    with tracker.inside("communication"):
        for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
            sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
            filled += parameter.numel() * parameter.element_size()
            if filled >= limit:
                buckets += [torch.empty(size, dtype=dtype) for dtype, size in sizes.items()]
                limit, filled, sizes = BUCKET_BYTES, 0, {}
        buckets += [torch.empty(size, dtype=dtype) for dtype, size in sizes.items()]
    return buckets


@contextlib.contextmanager
def labelling_communication(tracker: Tracker) -> Iterator[None]:
    """What FSDP2 gathers and reduces is communication."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_module

    group = group_module.FSDPParamGroup
    before = {name: getattr(group, name) for name in ("unshard", "wait_for_unshard", "post_backward")}
    functions = {name: getattr(group_module, name) for name in ("foreach_all_gather", "foreach_reduce")}

    def inside(original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with tracker.inside("communication"):
                return original(*args, **kwargs)

        return run

    def post_backward(self: Any, *unused: Any) -> Any:
        component = "communication" if self.reduce_grads else "gradients"
        tracker.own(_unsharded_gradients(self), component)
        with tracker.inside(component):
            return before["post_backward"](self, *unused)

    group.unshard, group.wait_for_unshard = inside(before["unshard"]), inside(before["wait_for_unshard"])
    group.post_backward = post_backward
    group_module.foreach_all_gather = inside(functions["foreach_all_gather"])
    group_module.foreach_reduce = inside(functions["foreach_reduce"])
    try:
        yield
    finally:
        for name, original in before.items():
            setattr(group, name, original)
        for name, original in functions.items():
            setattr(group_module, name, original)


@contextlib.contextmanager
def copying_to_and_from_host(tracker: Tracker) -> Iterator[None]:
    """The copies of ``CPUOffloadPolicy``, in whose place fake CPU tensors would be handed on as they are.

    A parameter's shard is copied to the card as it is stored, then cast, when its unit is gathered; a unit's reduced
    gradient lies on the card until it has been copied out (``FSDPParam.all_gather_inputs``, ``foreach_reduce``).
    """
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    before = FSDPParam.all_gather_inputs, FSDPParam.to_sharded_dtensor

    def all_gather_inputs(self: Any) -> list[Any]:
        on_card = self._sharded_param_data.clone()
        return [on_card if self.param_dtype is None else on_card.to(self.param_dtype)]

    def to_sharded_dtensor(self: Any, shard: Any) -> Any:
        on_host = shard.clone()
        tracker.own((on_host,), "gradients")
        tracker.at_home((on_host,))
        return before[1](self, on_host)

    FSDPParam.all_gather_inputs, FSDPParam.to_sharded_dtensor = property(all_gather_inputs), to_sharded_dtensor
    try:
        yield
    finally:
        FSDPParam.all_gather_inputs, FSDPParam.to_sharded_dtensor = before


@contextlib.contextmanager
def without_shape_inference(tracker: Tracker) -> Iterator[None]:
    """DTensor learns the shape of a result by running the operation on fake tensors, which on a card are fake too."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    original = ShardingPropagator._propagate_tensor_meta_non_cached

    def run(*args: Any, **kwargs: Any) -> Any:
        with tracker.blind():
            return original(*args, **kwargs)

    ShardingPropagator._propagate_tensor_meta_non_cached = run
    try:
        yield
    finally:
        ShardingPropagator._propagate_tensor_meta_non_cached = original


def _unsharded_gradients(group: Any) -> Iterator[Any]:
    for parameter in group.fsdp_params:
        whole = getattr(parameter, "_unsharded_param", None)
        if whole is not None and whole.grad is not None:
            yield whole.grad


def _blocks(model: Any) -> list[Any]:
    wanted = set(getattr(model, "_no_split_modules", None) or ())
    blocks = [module for module in model.modules() if type(module).__name__ in wanted]
    if not blocks:
        raise UnsupportedError(f"{type(model).__name__} does not name the blocks that FSDP wraps")
    return blocks


def _sharing(model: Any, module: Any) -> list[Any]:
    """The module and all that share a parameter with it: they have to be gathered together."""
    own = {id(parameter) for parameter in module._parameters.values() if parameter is not None}
    return [other for other in model.modules() if own & set(map(id, other._parameters.values()))]


def _final_norm(model: Any) -> Any:
    """The last norm among the base model's children, or None."""
    base = getattr(model, getattr(model, "base_model_prefix", ""), model)
    norms = [child for child in base.children() if "Norm" in type(child).__name__]
    return norms[-1] if norms else None
