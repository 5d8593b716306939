"""FSDP1, torch's ``FullyShardedDataParallel``, really applied to fake tensors."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..memory.tracker import streams_of
from ..model.build import DTYPES, transformer_blocks
from ..replaced import replaced
from ..request.protocol import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..memory.tracker import StorageTracker
    from ..request.request import Parallel, Request

# Units that FSDP1 wraps, as accelerate and the Trainer choose them.


def wrap_policy(model: Any, parallel: Parallel, *, adapters: bool) -> Any:
    """Return the policy that names the modules to wrap beside the root; None: the root alone is a unit.

    With adapters the Trainer takes peft's policy, which makes a unit of every leaf whose weight trains
    (``Trainer._fsdp_qlora_plugin_updates``; ``peft.utils.other.fsdp_auto_wrap_policy``).

    Args:
        model: a transformers model.
        parallel: of the job.
        adapters: the model has peft's adapters.

    Raises:
        UnsupportedError: the model has no class of such a name, or does not name its blocks.
    """
    from torch.distributed.fsdp.wrap import (
        _or_policy,
        lambda_auto_wrap_policy,
        size_based_auto_wrap_policy,
        transformer_auto_wrap_policy,
    )

    if parallel.fsdp_units == "model":
        return None
    if parallel.fsdp_min_unit_parameters is not None and not adapters:
        return functools.partial(size_based_auto_wrap_policy, min_num_params=parallel.fsdp_min_unit_parameters)
    by_class = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=unit_classes(model, parallel))
    if not adapters:
        return by_class
    trained_leaves = functools.partial(lambda_auto_wrap_policy, lambda_fn=_is_trained_leaf)
    return functools.partial(_or_policy, policies=[trained_leaves, by_class])


def unit_classes(model: Any, parallel: Parallel) -> set[type]:
    """Return the classes of modules that become units: those that the job names, else the model's blocks."""
    names = parallel.fsdp_wrap_classes or getattr(model, "_no_split_modules", None) or ()
    kinds = {type(module) for module in model.modules() if type(module).__name__ in names}
    missing = set(parallel.fsdp_wrap_classes or ()) - {kind.__name__ for kind in kinds}
    if missing:
        raise UnsupportedError(f"{type(model).__name__} has no module of the class {', '.join(sorted(missing))}")
    if not kinds:
        raise UnsupportedError(f"{type(model).__name__} does not name the blocks that FSDP wraps")
    return kinds


def _is_trained_leaf(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return not any(True for _ in module.children()) and weight is not None and bool(weight.requires_grad)


# Checkpointing around FSDP1's units, as transformers had it before 4.52.
#
# Its models called ``self._gradient_checkpointing_func(decoder_layer.__call__, ...)`` with ``use_reentrant=True``,
# and the layer is FSDP's unit then (4.48, ``models/llama/modeling_llama.py`` and ``modeling_utils.py``); since 4.52 a
# layer checkpoints itself, inside of its unit (``modeling_layers.py``, ``GradientCheckpointingLayer``).
#
# For a unit whose parameters are frozen FSDP1 registers a hook on the gradients of its inputs
# (``_register_post_backward_reshard_only_hook``). In a reentrant checkpoint these inputs are leaves of a graph of
# their own: the hook keeps ``AccumulateGrad`` of each alive, and that its tensor and gradient, until FSDP removes the
# hook at the end of the backward pass. So each block keeps its input and the gradient of it.


def checkpoint_units(model: Any, wrapped: Any) -> None:
    """Checkpoint the blocks' units from the outside, in place, and no longer the blocks inside of them.

    Args:
        model: the model in FSDP's root, whose blocks checkpoint themselves.
        wrapped: the root.
    """
    from torch.distributed.fsdp import FullyShardedDataParallel

    blocks = set(transformer_blocks(model).values())
    for block in blocks:
        block.gradient_checkpointing = False
    for module in wrapped.modules():
        inner = module.module if isinstance(module, FullyShardedDataParallel) else module
        if inner in blocks and (module is not inner or not _is_wrapped(inner, wrapped)):
            module.forward = _checkpointed(module.forward)


def _is_wrapped(block: Any, wrapped: Any) -> bool:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return any(isinstance(each, FullyShardedDataParallel) and each.module is block for each in wrapped.modules())


def _checkpointed(forward: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(functools.partial(forward, **kwargs), *args, use_reentrant=True)

    return run


# A model wrapped with FSDP1 as accelerate wraps it, on fake tensors.


_PREFETCH = {"pre": "BACKWARD_PRE", "post": "BACKWARD_POST"}


def wrap_fsdp1(
    model: Any,
    request: Request,
    mesh: Any,
    compute_dtype: Any,
    *,
    materialize: Callable[[Any], None] | None = None,
) -> Any:
    """Return the model in FSDP1, with the units and options of accelerate (``Accelerator.prepare_model``, 1.15).

    Args:
        model: a transformers model.
        request: the job.
        mesh: of the job.
        compute_dtype: of gathered parameters under mixed precision; None: their own dtype.
        materialize: gives a module's parameters without storage one, a unit at a time; None: all have theirs.

    Raises:
        UnsupportedError: the model has no such units.
    """
    from torch.distributed.fsdp import (
        BackwardPrefetch,
        CPUOffload,
        FullyShardedDataParallel,
        MixedPrecision,
        ShardingStrategy,
    )

    parallel, policy = request.parallel, None
    if compute_dtype is not None:
        reduced = DTYPES.get(parallel.reduce_dtype or "", compute_dtype)
        policy = MixedPrecision(param_dtype=compute_dtype, reduce_dtype=reduced, buffer_dtype=compute_dtype)
    prefetch = _PREFETCH.get(parallel.fsdp_backward_prefetch or "pre")
    names = tuple(name for name in ("replicate", "shard") if name in mesh.mesh_dim_names)
    wrapped = FullyShardedDataParallel(
        model,
        device_mesh=mesh[names[-1:] if parallel.flat_whole else names],
        sharding_strategy=ShardingStrategy[_sharding_strategy(parallel)],
        auto_wrap_policy=wrap_policy(model, parallel, adapters=request.lora is not None and not request.loop.own_loss),
        cpu_offload=CPUOffload(offload_params=parallel.cpu_offload == "all"),
        mixed_precision=policy,
        backward_prefetch=BackwardPrefetch[prefetch] if prefetch else None,
        limit_all_gathers=parallel.limit_all_gathers is not False,
        use_orig_params=_keeps_parameters(request),
        device_id=torch.device(request.device),
        param_init_fn=materialize,
    )
    if request.checkpoints_units and request.training.activation_checkpointing == "full":
        checkpoint_units(model, wrapped)
    return wrapped


def _keeps_parameters(request: Request) -> bool:
    """Return ``use_orig_params``: true under the Trainer, false in most programs for quantized weights."""
    stated, lora = request.parallel.original_parameters, request.lora
    return stated if stated is not None else lora is None or lora.quantization == "none"


def _sharding_strategy(parallel: Parallel) -> str:
    """Return torch's name of the sharding strategy: a hybrid one exactly where the shards have copies.

    For one rank torch takes ``NO_SHARD`` itself (``_init_core_state`` in ``_init_utils.py``).
    """
    if parallel.flat_whole:
        return "NO_SHARD"
    keeps_gathered = parallel.sharding in ("grad_op", "hybrid_grad_op") or not parallel.reshard_after_forward
    if parallel.data_replicate > 1:
        return "_HYBRID_SHARD_ZERO2" if keeps_gathered else "HYBRID_SHARD"
    return "SHARD_GRAD_OP" if keeps_gathered else "FULL_SHARD"


# FSDP1's CPU offload on fake tensors: what stays in host memory, and the copies of it on the GPU.
#
# From torch 2.13 (``distributed/fsdp/_flat_param.py``, ``_runtime_utils.py``): the shards and the gradients that the
# optimizer sees are pinned host memory. A shard is copied to the GPU whenever its unit is gathered, and the
# parameters are views of the copy until the unit is freed; under mixed precision it is cast there, and the copy goes
# at once. A unit's reduced gradient is copied to the host but stays on the GPU as ``_saved_grad_shard`` until the
# whole backward pass is over (``prepare_gradient_for_optim``). FSDP1 leaves out copies between equal devices, as host
# and GPU are on fake tensors.


@contextlib.contextmanager
def host_copies(tracker: StorageTracker) -> Iterator[None]:
    """Mark what FSDP1 pins as host memory, and make its copies to the GPU, which are communication."""
    from torch.distributed.fsdp import _flat_param

    handle = _flat_param.FlatParamHandle
    pre_unshard, writeback = handle.pre_unshard, handle._writeback_orig_params

    def pin_memory(tensor: Any, *_unused: Any) -> Any:
        tracker.label((tensor,), "gradients")  # the weights are labelled already
        tracker.mark_on_host((tensor,))
        return tensor

    def write_back(self: Any) -> bool:
        result = bool(writeback(self))
        if self.flat_param.grad is not None:  # it was made on the device of the flat parameter, which is the host
            tracker.mark_on_host((self.flat_param.grad,))
        return result

    def copy_and_pre_unshard(self: Any) -> bool:
        pre_unshard(self)
        flat = self.flat_param
        if flat.untyped_storage()._cdata == flat._local_shard.untyped_storage()._cdata:  # as ``flat_param_to``
            with tracker.labelling("communication"):
                flat.data = flat.data.clone()
            if self._use_orig_params and self.is_sharded(flat):
                self._use_sharded_views()
            elif self._use_orig_params:
                self._use_unsharded_views(as_params=True)
        return True

    def use_low_precision_shard(self: Any) -> None:
        flat = self.flat_param
        _flat_param._alloc_storage(flat._mp_shard, flat._local_shard.size())
        flat._mp_shard.copy_(flat._local_shard.clone())
        flat.data = flat._mp_shard

    patches: list[tuple[Any, str, Any]] = [
        (torch.Tensor, "pin_memory", pin_memory),
        (handle, "_writeback_orig_params", write_back),
        (handle, "pre_unshard", copy_and_pre_unshard),
        (handle, "_use_low_precision_shard", use_low_precision_shard),
    ]
    stream = torch.cpu.Stream  # has no such method, which a GPU's stream has
    stream.synchronize = lambda self: tracker.synchronize(tracker.order.record(tracker.stream_number(self)))
    try:
        with replaced(*patches):
            yield
    finally:
        del stream.synchronize


# FSDP1's tensors under the tracker: gathered parameters and unsharded gradients as communication.


def labels_of_fsdp1(tracker: StorageTracker) -> Iterator[tuple[Any, str, Any]]:
    """Yield what labels FSDP1's communication."""
    from torch.distributed.fsdp import _runtime_utils
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    reduce = _runtime_utils._post_backward_hook

    def post_backward(state: Any, handle: Any, flat_param: Any = None, *unused: Any) -> Any:
        component = "communication" if state._sync_gradients else "gradients"
        tracker.label((handle.flat_param.grad,), component)
        with tracker.labelling(component):
            result = reduce(state, handle, flat_param, *unused)
        tracker.label((getattr(handle.flat_param, "_saved_grad_shard", None),), "gradients")
        return result

    yield FlatParamHandle, "pre_unshard", tracker.labelled(FlatParamHandle.pre_unshard)
    yield FlatParamHandle, "unshard", tracker.labelled(FlatParamHandle.unshard)
    yield _runtime_utils, "_post_backward_hook", post_backward


# Streams and events of FSDP1 on the CPU, reported to the tracker as a GPU's would be ordered.
#
# torch's streams and events of the CPU do nothing. Here they carry an order, so that the tracker knows when a storage
# that another stream uses comes back to its pool.


_NCCL = object()
"""Stands for the stream of the process group: NCCL runs the collectives of a group one after another."""


@contextlib.contextmanager
def ordered_streams(tracker: StorageTracker) -> Iterator[None]:
    """Report waits, events and ``record_stream`` to the tracker."""
    tracker.has_streams = True
    with replaced(*streams_of(tracker), *streams_of_fsdp1(tracker)):
        yield


def streams_of_fsdp1(tracker: StorageTracker) -> Iterator[tuple[Any, str, Any]]:
    """Yield what reports FSDP1's collectives and its ``record_stream`` to the tracker."""
    from torch.distributed.fsdp import _flat_param, _runtime_utils

    handle = _flat_param.FlatParamHandle
    all_gather, reduce = handle._all_gather_flat_param, _runtime_utils._reduce_grad
    order, number = tracker.order, tracker.stream_number

    def collective(original: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            stream, nccl = number(torch.cpu.current_stream()), number(_NCCL)
            order.wait(nccl, order.record(stream))
            order.wait(stream, order.record(nccl))
            return result

        return run

    yield handle, "_all_gather_flat_param", collective(all_gather)
    yield _runtime_utils, "_reduce_grad", collective(reduce)
    yield _flat_param, "_no_dispatch_record_stream", tracker.record_stream
    yield _runtime_utils, "_no_dispatch_record_stream", tracker.record_stream
    # fake tensors have no addresses, by which FSDP1 tells storages apart and whether they are sharded
    yield FakeTensor, "data_ptr", lambda tensor: tensor.untyped_storage()._cdata
    yield _flat_param, "_same_storage", lambda a, b: a.untyped_storage()._cdata == b.untyped_storage()._cdata
    yield _flat_param, "_data_ptr_allocated", lambda tensor: tensor.untyped_storage().nbytes() > 0
