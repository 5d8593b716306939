"""Data parallelism, really applied: FSDP2 in the units that accelerate wraps, and DDP's gradient buckets."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from ..model.build import DTYPES, transformer_blocks
from ..model.experts import TitanExperts
from ..replaced import replaced
from ..request.protocol import UnsupportedError
from .sizes import BUCKET_BYTES, FIRST_BUCKET_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..memory.tracker import StorageTracker
    from ..request.request import Loop, Parallel

# A process group with all of the job's ranks in a single process, whose collectives do nothing.
#
# The trace runs as rank 0, which holds the most where a dimension does not divide evenly.


@contextlib.contextmanager
def fake_process_group(world_size: int) -> Iterator[None]:
    """Open a fake process group of this size; none for a single rank."""
    if world_size == 1:
        yield
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    coordinate = getattr(DeviceMesh, "_compute_coordinate_on_dim", None)
    if coordinate is not None:
        DeviceMesh._compute_coordinate_on_dim = lambda mesh: _without_fake_mode(coordinate, mesh)
    try:
        yield
    finally:
        if coordinate is not None:
            DeviceMesh._compute_coordinate_on_dim = coordinate
        dist.destroy_process_group()


def device_mesh(parallel: Parallel, device: str = "cpu") -> Any:
    """Return a mesh of devices with those of the dimensions ``replicate``, ``shard`` and ``tensor`` that exceed 1."""
    sizes = {"replicate": parallel.copies, "shard": parallel.data_shard, "tensor": parallel.tensor}
    return device_mesh_of({name: size for name, size in sizes.items() if size > 1}, device)


def device_mesh_of(sizes: dict[str, int], device: str = "cpu") -> Any:
    """Return a mesh of devices with these dimensions."""
    from torch.distributed.device_mesh import init_device_mesh

    return _without_fake_mode(lambda: init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes)))


def meta_propagation_untracked(tracker: StorageTracker) -> contextlib.AbstractContextManager[None]:
    """Pause the tracker where DTensor runs an operation on fake tensors to infer the shape of its result."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    original = ShardingPropagator._propagate_tensor_meta_non_cached

    def run(*args: Any, **kwargs: Any) -> Any:
        with tracker.paused():
            return original(*args, **kwargs)

    return replaced((ShardingPropagator, "_propagate_tensor_meta_non_cached", run))


def _without_fake_mode(function: Any, *args: Any) -> Any:
    """Call a function on real tensors: a mesh reads its ranks' values."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        return function(*args)


# torchtitan's experts under FSDP2: over the ranks that hold the same experts, and gathered a block ahead.
#
# Sources: torchtitan 0.2.0 to 0.2.2 ``models/llama4/infra/parallelize.py`` (``apply_fsdp``), its main branch of
# August 2026 ``distributed/fsdp.py`` (``apply_fsdp_to_decoder``).


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


def apply_fsdp2(model: Any, parallel: Parallel, mesh: Any, compute_dtype: Any, loop: Loop) -> None:
    """Shard a model in place with FSDP2, in the units that accelerate makes (``utils/fsdp_utils.py``, 1.15).

    Units: each block, the embedding, norm and head together (not resharded after forward), and the rest under the root.

    Args:
        model: a transformers model.
        parallel: of the job.
        mesh: of the job.
        compute_dtype: of gathered parameters under mixed precision; None: their own dtype.
        loop: which units a framework makes otherwise: with embedding, norm and head in the root.

    Raises:
        UnsupportedError: this torch has no ``fully_shard``, or the model does not name its blocks.
    """
    try:
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
    except ImportError:
        raise UnsupportedError(f"torch {torch.__version__} has no fully_shard; it came with 2.6") from None
    names = ("replicate", "shard") if parallel.data_replicate > 1 else ("shard",)
    reduce_dtype = DTYPES[parallel.reduce_dtype or "fp32"]
    if parallel.param_dtype is not None:
        compute_dtype = DTYPES[parallel.param_dtype]
    options = {
        "mesh": mesh[names],
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=compute_dtype, reduce_dtype=reduce_dtype, output_dtype=compute_dtype
        ),
        "offload_policy": CPUOffloadPolicy(pin_memory=False) if parallel.cpu_offload == "all" else OffloadPolicy(),
    }
    block_options = {**options, "reshard_after_forward": parallel.reshard_after_forward}
    if parallel.fsdp_units == "model":
        fully_shard(model, **options)
        return
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    with_embedding = _modules_sharing_parameters(model, embedding)
    blocks = _blocks(model)
    for block in blocks:
        if not any(module in with_embedding for module in block.modules()):
            stays = loop.last_block_stays and block is blocks[-1]
            own = {**block_options, "reshard_after_forward": False} if stays else block_options
            shard_block(block, own, parallel, loop.experts, fully_shard)
    if parallel.fsdp_units == "blocks" or loop.root_unit:
        fully_shard(model, **options)
        prefetch_experts(blocks, [], parallel)
        return
    tied = head in with_embedding
    if not tied:
        fully_shard(with_embedding, **block_options)
    last = [module for module in (_final_norm(model), *(with_embedding if tied else (head,))) if module is not None]
    last += [other for module in last for other in _modules_sharing_parameters(model, module) if other not in last]
    if last:
        fully_shard(last, **{**block_options, "reshard_after_forward": False})
    fully_shard(model, **options)
    prefetch_experts(blocks, last, parallel, embedding=None if tied else embedding)


class ReplicaBuckets:
    """The buckets into which DistributedDataParallel copies gradients: one element per trained one.

    Args:
        model: whose gradients are reduced.
        tracker: learns what the buckets are.
        viewing: the model that runs, which may have fewer layers, if its gradients are views of the buckets
            (``gradient_as_bucket_view``): one that autograd has just made is copied there and freed, and later ones are
            added in place. Under ``no_sync`` they are tensors of their own until the micro-batch that is reduced
            (``autograd_hook`` in torch/csrc/distributed/c10d/reducer.cpp). None: gradients are tensors of their own.
    """

    def __init__(self, model: Any, tracker: StorageTracker, *, viewing: Any = None) -> None:
        self.syncs = True
        """This micro-batch's gradients are reduced."""
        self._buckets: list[Any] = []
        limit, filled = FIRST_BUCKET_BYTES, 0
        waiting: dict[Any, list[Any]] = {}
        with tracker.labelling("communication" if viewing is None else "gradients"):
            for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
                waiting.setdefault(parameter.dtype, []).append(parameter)
                filled += parameter.numel() * parameter.element_size()
                if filled >= limit:
                    self._buckets += [_make_bucket(each) for each in waiting.values()]
                    limit, filled, waiting = BUCKET_BYTES, 0, {}
            self._buckets += [_make_bucket(each) for each in waiting.values()]
        for parameter in () if viewing is None else viewing.parameters():
            if parameter.requires_grad:
                view = self._view_like(parameter)
                parameter.register_post_accumulate_grad_hook(lambda p, view=view: self._move_gradient(p, view))

    def _view_like(self, parameter: Any) -> Any:
        """Return a view of a bucket for a gradient: of any that is large enough, as fake tensors have no values."""
        buckets = [bucket for bucket in self._buckets if bucket.dtype == parameter.dtype]
        return max(buckets, key=lambda bucket: bucket.numel())[: parameter.numel()].view(parameter.shape)

    def _move_gradient(self, parameter: Any, view: Any) -> None:
        if self.syncs and parameter.grad is not view:
            view.copy_(parameter.grad)
            parameter.grad = view


def _make_bucket(parameters: list[Any]) -> Any:
    """Return the bucket of parameters of one dtype, into which their gradients go."""
    return torch.empty(sum(parameter.numel() for parameter in parameters), dtype=parameters[0].dtype)


def _blocks(model: Any) -> list[Any]:
    blocks = list(transformer_blocks(model).values())
    if not blocks:
        raise UnsupportedError(f"{type(model).__name__} does not name the blocks that FSDP wraps")
    return blocks


def _modules_sharing_parameters(model: Any, module: Any) -> list[Any]:
    """Return the module and all that share a parameter with it: they have to be gathered together."""
    own = {id(parameter) for parameter in module._parameters.values() if parameter is not None}
    return [other for other in model.modules() if own & set(map(id, other._parameters.values()))]


def _final_norm(model: Any) -> Any:
    """Return the last norm among the base model's children, or None."""
    base = getattr(model, getattr(model, "base_model_prefix", ""), model)
    norms = [child for child in base.children() if "Norm" in type(child).__name__]
    return norms[-1] if norms else None


# FSDP2's communication under the tracker: buffers labelled, and copies to and from the host made visible.


_STREAM = 3
"""Position of the stream among the arguments of ``foreach_reduce``; what allocates follows."""


class _OnStream:
    """A reduce-scatter whose tensors are allocated on a stream.

    Args:
        communication: torch's.
        stream: the stream.
    """

    def __init__(self, communication: Any, stream: Any) -> None:
        self._communication = communication
        self._stream = stream

    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        """Return a tensor."""
        with torch.cpu.stream(self._stream):
            return self._communication.allocate(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Reduce."""
        return self._communication(*args, **kwargs)


@contextlib.contextmanager
def communication_labelled(tracker: StorageTracker, *, own_pool: bool = False) -> Iterator[None]:
    """Label the tensors that FSDP2 all-gathers and reduce-scatters as communication.

    Args:
        tracker: of the storages.
        own_pool: the input of a reduce-scatter is allocated on the reducing stream, and freed as soon as it is issued,
            as before torch 2.5.
    """
    with replaced(*labels_of_fsdp2(tracker, own_pool=own_pool)):
        yield


def labels_of_fsdp2(tracker: StorageTracker, *, own_pool: bool = False) -> Iterator[tuple[Any, str, Any]]:
    """Yield what labels FSDP2's communication."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as group_module

    group = group_module.FSDPParamGroup
    methods = {name: getattr(group, name) for name in ("unshard", "wait_for_unshard", "post_backward")}
    functions = {name: getattr(group_module, name) for name in ("foreach_all_gather", "foreach_reduce")}

    def in_own_pool(original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            stream, communication = args[_STREAM], args[_STREAM + 1]
            if not hasattr(communication, "allocate"):  # torch before 2.9
                return original(*args, **kwargs)
            changed = (*args[: _STREAM + 1], _OnStream(communication, stream), *args[_STREAM + 2 :])
            result = original(*changed, **kwargs)
            return result[0].new_empty(0), *result[1:]

        return run if own_pool else original

    def post_backward(self: Any, *unused: Any) -> Any:
        component = "communication" if self.reduce_grads else "gradients"
        tracker.label(_unsharded_gradients(self), component)
        with tracker.labelling(component):
            return methods["post_backward"](self, *unused)

    yield group, "unshard", tracker.labelled(methods["unshard"])
    yield group, "wait_for_unshard", tracker.labelled(methods["wait_for_unshard"])
    yield group, "post_backward", post_backward
    yield group_module, "foreach_all_gather", tracker.labelled(functions["foreach_all_gather"])
    yield group_module, "foreach_reduce", tracker.labelled(in_own_pool(functions["foreach_reduce"]))


@contextlib.contextmanager
def offload_copies(tracker: StorageTracker) -> Iterator[None]:
    """Make the copies of ``CPUOffloadPolicy`` between host and GPU, which FSDP2 skips for tensors on the CPU.

    A parameter's shard is copied to the GPU in its own dtype, then cast, when its unit is gathered; a unit's reduced
    gradient stays on the GPU until it has been copied out (``FSDPParam.all_gather_inputs``, ``foreach_reduce``).
    """
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    keep = FSDPParam.to_sharded_dtensor

    def all_gather_inputs(self: Any) -> list[Any]:
        on_gpu = self._sharded_param_data.clone()
        return [on_gpu if self.param_dtype is None else on_gpu.to(self.param_dtype)]

    def to_sharded_dtensor(self: Any, shard: Any) -> Any:
        on_host = shard.clone()
        tracker.label((on_host,), "gradients")
        tracker.mark_on_host((on_host,))
        return keep(self, on_host)

    with replaced(
        (FSDPParam, "all_gather_inputs", property(all_gather_inputs)),
        (FSDPParam, "to_sharded_dtensor", to_sharded_dtensor),
    ):
        yield


def _unsharded_gradients(group: Any) -> Iterator[Any]:
    for parameter in group.fsdp_params:
        whole = getattr(parameter, "_unsharded_param", None)
        if whole is not None and whole.grad is not None:
            yield whole.grad
