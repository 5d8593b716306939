"""Data parallelism, really applied: FSDP2 in the units that accelerate wraps, and DDP's gradient buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..model.build import transformer_blocks
from ..model.dtypes import DTYPES
from ..request.errors import UnsupportedError
from .expert_parallel import prefetch_experts, shard_block

if TYPE_CHECKING:
    from ..memory.tracker import StorageTracker
    from ..request.request import Loop, Parallel

BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20
"""DistributedDataParallel's defaults (``torch/nn/parallel/distributed.py``)."""


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
