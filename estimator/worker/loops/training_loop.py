"""The forward pass and loss of loops other than the Trainer's, on transformers' model.

torchtitan: ``train.py`` (``pred`` is freed before the backward pass since June 2024). torchtune 0.6:
``recipes/full_finetune_*.py``, ``modules/transformer.py`` (fp32 logits, or chunks of 16-bit ones). NeMo AutoModel 0.1
to 0.5: ``recipes/llm/train_ft.py``, ``components/distributed/parallelizer.py``. Liger-Kernel: ``transformers/model``.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import sys
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from ..model.build import recomputing, transformer_blocks, without_adapters
from ..model.experts import Router, exchanging
from ..replaced import replaced
from ..request.protocol import UnsupportedError
from .litgpt import litgpt_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from ..request.request import Loop, Parallel, Request

# sdpa's mask of all pairs of positions, which transformers makes while torch.compile traces a model.
#
# Source: transformers 5.23 ``masking_utils.py`` (``_ignore_causal_mask_sdpa``): whether a batch has padding cannot be
# read then. A mask keeps sdpa from flash attention, and from sharing keys among query heads. The partitioner keeps
# one mask in the compute type for all blocks. FSDP's hooks, which are not compiled, end a graph before each block
# (torch 2.13 ``_dynamo/config.py``, ``skip_fsdp_hooks``; FSDP1's are skipped): each block reads the mask of bools
# that the model made, and keeps one in the compute type of its own.


@contextlib.contextmanager
def masks_made(*, per_block: bool) -> Iterator[None]:
    """Give sdpa a mask of all pairs of positions.

    Args:
        per_block: it is of bools, of which each block makes its own; otherwise blocks share one in the compute type.
    """
    from transformers import masking_utils

    registry = masking_utils.AttentionMaskInterface._global_mapping
    before = registry["sdpa"]
    registry["sdpa"] = _bools if per_block else _mask
    try:
        yield
    finally:
        registry["sdpa"] = before


def _mask(batch_size: int, q_length: int, kv_length: int, *_: Any, dtype: Any = None, **__: Any) -> Any:
    low = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else dtype or torch.get_default_dtype()
    return torch.empty((batch_size, 1, q_length, kv_length), dtype=low)


def _bools(batch_size: int, q_length: int, kv_length: int, *_: Any, **__: Any) -> Any:
    return torch.empty((batch_size, 1, q_length, kv_length), dtype=torch.bool)


# Stand-in for the fused kernel of Mamba 2's blocks, where the job's interpreter has it.
#
# Source: state-spaces/mamba ``ops/triton/ssd_combined.py`` (``MambaSplitConv1dScanCombinedFn``, 2026-07), which
# transformers 5 calls in Mamba 2, Bamba, Falcon-H1, Zamba 2 and Nemotron-H: it saves the projection that it reads and
# the scan's output, and recomputes the rest. Without it, transformers' plain operations run, and are traced.


KERNEL = "mamba2_split_conv1d_scan_combined"
_LIBRARIES = ("mamba_ssm", "causal_conv1d")


def kernel_versions(modules: Iterable[str] | None = None) -> dict[str, str]:
    """Return the versions of the kernels' libraries; empty: one is missing, or no imported block calls them.

    Args:
        modules: Python modules that may call the kernel; None: all that are imported.
    """
    names = [name for name in sys.modules if ".models." in name] if modules is None else modules
    if not any(_has_kernel(name) for name in names):
        return {}
    if not all(importlib.util.find_spec(library) for library in _LIBRARIES):
        return {}
    return {library: importlib.metadata.version(library) for library in _LIBRARIES}


def _has_kernel(name: str) -> bool:
    """Return True if the module has imported the kernel; a module that imports what it is asked for is not asked.

    The aliases of image processors in transformers 5.20 do so, and need torchvision then.
    """
    return KERNEL in getattr(sys.modules.get(name), "__dict__", ())


def fused_state_spaces(modules: Iterable[str]) -> AbstractContextManager[None]:
    """Make the blocks in these modules allocate as with the fused kernel."""
    return replaced(*((sys.modules[name], KERNEL, split_conv1d_scan) for name in modules if _has_kernel(name)))


def split_conv1d_scan(  # noqa: PLR0917 - the kernel's own signature
    zxbcdt: Any,
    conv1d_weight: Any,
    conv1d_bias: Any,
    dt_bias: Any,
    A: Any,  # noqa: N803
    D: Any,  # noqa: N803
    chunk_size: int,
    *,
    rmsnorm_weight: Any = None,
    outproj_weight: Any = None,
    headdim: int = 64,
    ngroups: int = 1,
    **_settings: Any,
) -> Any:
    """Return the output of a block's convolution, scan, norm and projection."""
    del conv1d_bias
    sizes = (headdim, ngroups, chunk_size)
    return _StateSpace.apply(zxbcdt, conv1d_weight, dt_bias, A, D, rmsnorm_weight, outproj_weight, sizes)


class _StateSpace(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Saves the projection, the scan's output, and a reciprocal deviation per group."""

    @staticmethod
    def forward(ctx: Any, projected: Any, *parameters: Any) -> Any:
        *weights, sizes = parameters
        ctx.sizes = sizes
        _convolved, _states = _inputs_and_states(projected, weights, sizes)
        output = projected.new_empty((*projected.shape[:2], weights[3].shape[0] * sizes[0]))
        deviations = projected.new_empty((*projected.shape[:2], sizes[1]), dtype=torch.float32)
        ctx.save_for_backward(projected, output, deviations, *weights)
        return torch.nn.functional.linear(torch.empty_like(output), weights[5])

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        projected, output, _deviations, *weights = ctx.saved_tensors
        _convolved, _states = _inputs_and_states(projected, weights, ctx.sizes)
        normed, of_output = torch.empty_like(output), torch.nn.functional.linear(gradient, weights[5].t())
        of_convolved, of_states = _inputs_and_states(projected, weights, ctx.sizes)
        of_weight = torch.mm(gradient.flatten(0, 1).t(), normed.flatten(0, 1)) if ctx.needs_input_grad[6] else None
        result = torch.empty_like(projected)
        del of_output, of_convolved, of_states
        small = (None if weight is None else torch.empty_like(weight) for weight in weights[:5])
        return (result, *small, of_weight, None)


def _inputs_and_states(projected: Any, weights: Any, sizes: tuple[int, int, int]) -> tuple[Any, Any]:
    """Allocate the convolution's output and the fp32 states between chunks."""
    head_size, groups, chunk = sizes
    batch, length, _ = projected.shape
    channels, heads = weights[0].shape[0], weights[3].shape[0]
    state = (channels - heads * head_size) // groups // 2
    chunks = -(-length // chunk)
    return (
        projected.new_empty((batch, length, channels)),
        projected.new_empty((batch, chunks, heads, head_size, state), dtype=torch.float32),
    )


# Stand-ins for fused kernels: autograd functions that save and allocate what Liger-Kernel's or torch's own kernels
# do.
#
# Liger-Kernel 0.8.2: ``ops/rms_norm.py``, ``ops/swiglu.py``, ``ops/rope.py``, ``transformers/monkey_patch.py``.
# Compiled blocks (torch's min-cut partitioner) save the same, but write no gradient over another tensor.


PROCESSORS = 132
"""Rows of a norm's partial sums: one per multiprocessor of an H100."""
_ROTATION = "apply_rotary_pos_emb"


def fuse_modules(model: Any, loop: Loop) -> None:
    """Make the model's norms and MLPs allocate as the loop's fused kernels do."""
    if "norm" in loop.fused or loop.torch_norm:
        _fuse_norms(model, loop)
    if "mlp" in loop.fused:
        _fuse_mlps(model, loop)


@contextlib.contextmanager
def attention_of_loop(model: Any, loop: Loop) -> Iterator[None]:
    """Make rotary embeddings work in place, and attention copy keys, as the loop does."""
    with contextlib.ExitStack() as stack:
        if "rope" in loop.fused:
            for name in _block_modules(model):
                stack.enter_context(_replaced_in(name, _ROTATION, _rotate_in_place))
        if loop.masks_attention:
            stack.enter_context(masks_made(per_block=loop.masks_per_block))
        if loop.repeats_keys:
            stack.enter_context(_replaced_in("transformers.integrations.sdpa_attention", "use_gqa_in_sdpa", _never))
        if kernel_versions(_block_modules(model)):
            stack.enter_context(fused_state_spaces(_block_modules(model)))
        yield


def is_rms_norm(module: Any) -> bool:
    """Return True if a module is an RMSNorm with a weight."""
    return "RMSNorm" in type(module).__name__ and getattr(module, "weight", None) is not None


def is_gated_mlp(module: Any) -> bool:
    """Return True if a module is an MLP whose two first projections are multiplied."""
    return _gated_forward(module) is not None


def _fuse_norms(model: Any, loop: Loop) -> None:
    in_blocks = {f"{at}.{name}" for at, block in transformer_blocks(model).items() for name, _ in block.named_modules()}
    for name, module in model.named_modules():
        own = name.rpartition(".")[2]
        if not is_rms_norm(module) or (own in ("q_norm", "k_norm") and not loop.fuses_query_norms):
            continue
        fused = "norm" in loop.fused and not (loop.final_norm_eager and name not in in_blocks)
        if fused or loop.torch_norm:
            module.forward = _bound(_norm if fused else _torch_norm, module, loop.in_place)


def _fuse_mlps(model: Any, loop: Loop) -> None:
    for module in model.modules():
        forward = _gated_forward(module)
        if forward is not None:
            module.forward = _bound(forward, module, loop.in_place)


def _gated_forward(module: Any) -> Callable[..., Any] | None:
    """Return the stand-in for a gated MLP's forward pass; None: the module is none."""
    linear = {name for name, child in module.named_children() if hasattr(child, "weight") or hasattr(child, "lora_A")}
    if {"gate_proj", "up_proj", "down_proj"} <= linear:
        return _gated_mlp
    return _fused_gated_mlp if {"gate_up_proj", "down_proj"} <= linear else None


def _bound(function: Callable[..., Any], module: Any, in_place: bool) -> Callable[..., Any]:
    return lambda hidden, *_args, **_kwargs: function(module, hidden, in_place)


def _norm(module: Any, hidden: Any, in_place: bool) -> Any:
    return _Norm.apply(hidden, module.weight, in_place)


def _torch_norm(module: Any, hidden: Any, _in_place: bool) -> Any:
    """Run torch's RMSNorm as on CUDA before torch 2.9 (``rms_norm_composite`` in ATen/native/layer_norm.cpp)."""
    wide = hidden.float()
    normalized = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (normalized * module.weight).to(hidden.dtype)


def _gated_mlp(module: Any, hidden: Any, in_place: bool) -> Any:
    return module.down_proj(_Product.apply(module.gate_proj(hidden), module.up_proj(hidden), in_place))


def _fused_gated_mlp(module: Any, hidden: Any, in_place: bool) -> Any:
    gate, up = module.gate_up_proj(hidden).chunk(2, dim=-1)
    return module.down_proj(_Product.apply(gate.contiguous(), up.contiguous(), in_place))


class _Norm(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """RMSNorm in one kernel: saves its input and the reciprocal deviation."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, in_place: bool) -> Any:
        deviation = hidden.new_empty(hidden.shape[:-1], dtype=torch.float32)
        ctx.in_place = in_place
        ctx.save_for_backward(hidden, weight, deviation)
        if not in_place and torch.is_autocast_enabled("cpu"):  # compiled with the cast that what reads it makes
            return torch.empty_like(hidden, dtype=torch.get_autocast_dtype("cpu"))
        return torch.empty_like(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        hidden, weight, _deviation = ctx.saved_tensors
        sums = weight.new_empty((PROCESSORS, weight.shape[-1]), dtype=torch.float32)
        result = gradient if ctx.in_place else torch.empty_like(hidden)
        return result, sums.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None, None


class _Product(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Product of a gate's activation and another projection: saves both, and not the activation."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any, in_place: bool) -> Any:
        ctx.in_place = in_place
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        gate, up = ctx.saved_tensors
        if ctx.in_place:
            return gate, up, None
        return torch.empty_like(gate), torch.empty_like(up), None


class _Rotation(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """Rotary embedding in place."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any) -> Any:
        del ctx
        return query.view_as(query), key.view_as(key)

    @staticmethod
    def backward(ctx: Any, query: Any, key: Any) -> Any:
        del ctx
        return query, key


def _rotate_in_place(query: Any, key: Any, *_args: Any, **_kwargs: Any) -> Any:
    return _Rotation.apply(query, key)


def _never(*_args: Any, **_kwargs: Any) -> bool:
    return False


def _block_modules(model: Any) -> list[str]:
    """Return the Python modules of the model's blocks, which hold the function that rotates."""
    return sorted({type(block).__module__ for block in transformer_blocks(model).values()})


def _replaced_in(module: str, name: str, replacement: Any) -> contextlib.AbstractContextManager[None]:
    """Replace a function of a module; nothing, if that is not imported or has no such function."""
    owner = sys.modules.get(module)
    known = getattr(owner, name, None) is not None
    return replaced((owner, name, replacement)) if known else contextlib.nullcontext()


# Losses that a training loop takes itself, and those that never have all logits at once: their memory on fake
# tensors.
#
# Sources: torchtune 0.6 ``modules/loss/ce_chunked_output_loss.py``, torchtitan ``components/loss.py``, NeMo AutoModel
# 0.3 ``components/loss/masked_ce.py`` and ``linear_ce.py`` (cut_cross_entropy), Liger-Kernel 0.8.2
# ``ops/fused_linear_cross_entropy.py`` and ``ops/cross_entropy.py``.


CHUNKS = 8
"""``num_output_chunks`` of torchtune, ``num_chunks`` of torchtitan."""


def full_loss(logits: Any, labels: Any, *, in_place: bool = False, compiled: bool = False) -> Any:
    """Cross entropy on fp32 logits, over which a fused kernel writes the gradient; or compiled, which has no copy."""
    flat = logits.reshape(-1, logits.shape[-1])
    if compiled:
        return _CompiledCrossEntropy.apply(flat)
    if in_place:
        return _InPlaceCrossEntropy.apply(flat.float())
    return torch.nn.functional.cross_entropy(flat.float(), labels.reshape(-1), reduction="sum")


def chunked_loss(logits: list[Any], labels: Any, *, compiled: bool = False) -> Any:
    """Cross entropy of one chunk of positions after the other."""
    total: Any = 0.0
    for part, target in zip(logits, labels.chunk(len(logits), dim=1)):  # noqa: B905 - not in Python 3.9
        total += full_loss(part, target, compiled=compiled)
    return total


def chunks_at_once_loss(hidden: Any, labels: Any, head: Any, *, compiled: bool = False) -> Any:
    """Loss of which each chunk of positions runs forward and backward through the head before the next one.

    torchtitan's ``ChunkedCELoss`` (2026-04-27, pull request 2937; today ``ChunkedLossWrapper``): FSDP2 keeps the head
    gathered for all chunks and reduces its gradient in the last one; gradients of the chunks are put together in fp32.

    Args:
        hidden: what the head reads.
        labels: the targets.
        head: the output layer.
        compiled: the loss is one compiled kernel; the head is not.
    """
    sharded = hasattr(head, "set_requires_gradient_sync")
    parts = [part.contiguous().detach().requires_grad_() for part in hidden.chunk(CHUNKS, dim=1)]
    gradient = torch.zeros_like(hidden, dtype=torch.float32)
    total = hidden.new_zeros((), dtype=torch.float32)
    if sharded:
        head.set_reshard_after_forward(False)
        head.set_reshard_after_backward(False)
        head.set_requires_gradient_sync(False, recurse=False)
        head.unshard()
    start = 0
    for part, target in zip(parts, labels.chunk(CHUNKS, dim=1)):  # noqa: B905 - not in Python 3.9
        if sharded and part is parts[-1]:
            head.set_requires_gradient_sync(True, recurse=False)
        logits = head(part)  # the variable holds it until the next chunk's is there
        loss = full_loss(logits, target, compiled=compiled)
        total = total + loss.detach()
        loss.backward()
        gradient[:, start : start + part.shape[1]] = part.grad.to(gradient.dtype)
        start, part.grad = start + part.shape[1], None
    if sharded:
        head.set_reshard_after_forward(True)
        head.set_reshard_after_backward(True)
        head.reshard()
    return _KnownGradient.apply(hidden, gradient.to(hidden.dtype), total)


def fused_linear_loss(hidden: Any, weight: Any, *, in_backward: bool, fp32_sums: bool) -> Any:
    """Loss of hidden states and the head's weight.

    Args:
        hidden: what the head reads.
        weight: of the head.
        in_backward: gradients are computed in the backward pass (cut_cross_entropy), else in the forward pass.
        fp32_sums: each chunk's gradient of the head is cast to fp32 before it is added.
    """
    flat = hidden.flatten(0, 1)
    if in_backward:
        return _CutCrossEntropy.apply(flat, weight)
    return _FusedLinearCrossEntropy.apply(flat, weight, fp32_sums)


class _KnownGradient(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    """A loss whose gradient is there already (torchtitan's ``_DecoderOutputGradientBackProp``)."""

    @staticmethod
    def forward(ctx: Any, _hidden: Any, gradient: Any, loss: Any) -> Any:
        ctx.save_for_backward(gradient)
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        return ctx.saved_tensors[0], None, None


class _InPlaceCrossEntropy(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        ctx.save_for_backward(logits.detach())
        return logits.new_zeros(logits.shape[0]).sum()

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        return ctx.saved_tensors[0]


class _CompiledCrossEntropy(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    @staticmethod
    def forward(ctx: Any, logits: Any) -> Any:
        sums = logits.new_empty(logits.shape[0], dtype=torch.float32)
        ctx.save_for_backward(logits, sums)
        return sums.sum()

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        return torch.empty_like(ctx.saved_tensors[0])


class _CutCrossEntropy(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any) -> Any:
        sums = hidden.new_empty(hidden.shape[0], dtype=torch.float32)
        ctx.save_for_backward(hidden, weight, sums)
        return sums.sum()

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        hidden, weight, _sums = ctx.saved_tensors
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        return torch.zeros_like(hidden), of_weight


class _FusedLinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc] # torch is not type-checked
    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, fp32_sums: bool) -> Any:
        tokens, size = hidden.shape
        parts = -(-weight.shape[0] // size)
        chunk = 1 << (-(-tokens // parts) - 1).bit_length()
        gradient = torch.zeros_like(hidden)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        losses = hidden.new_zeros(tokens, dtype=torch.float32)
        for start in range(0, tokens, chunk):
            rows = hidden[start : start + chunk]
            logits = rows @ weight.t()
            gradient[start : start + chunk] = logits @ weight
            if of_weight is not None and fp32_sums:
                of_weight += torch.mm(logits.t(), rows).float()
            elif of_weight is not None:
                torch.addmm(of_weight, logits.t(), rows.to(logits.dtype), out=of_weight)
        ctx.save_for_backward(gradient.detach(), None if of_weight is None else of_weight.detach())
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, _gradient: Any) -> Any:
        return (*ctx.saved_tensors, None)


# A whole transformers model under torch.compile, its loss included, as the Trainer and accelerate compile it.
#
# The min-cut partitioner (torch 2.13 ``_functorch/partitioners.py``) keeps what norms read and products of matrices
# read and make, and of the loss 16-bit logits and a sum per token. Blocks of RMSNorms and gated MLPs keep that as
# stand-ins do (``fused_kernels``); others are not traced. While it is traced, transformers makes sdpa's mask of all
# pairs of positions (5.23 ``masking_utils.py``, ``_ignore_causal_mask_sdpa``), so that keys are copied to all query
# heads.


def compile_model(model: Any) -> None:
    """Check that stand-ins exist for all that the partitioner cuts differently, and compile the loss.

    Raises:
        UnsupportedError: there is none for a norm or an MLP of the blocks.
    """
    inner = without_adapters(model)
    for block in transformer_blocks(inner).values():
        name = type(block).__name__
        if not any(is_gated_mlp(module) for module in block.modules()):
            raise UnsupportedError(f"torch.compile of {name}, which has no gated MLP, cannot be traced")
        for module in block.modules():
            if "Norm" in type(module).__name__ and not is_rms_norm(module):
                kind = type(module).__name__
                raise UnsupportedError(f"torch.compile of {name} with {kind} cannot be traced")
    inner.loss_function = _compiled_loss


def check_units(model: Any, parallel: Parallel) -> None:
    """Check that the classes that FSDP1 is to wrap are the blocks, so that its hooks end no graph inside of one.

    Raises:
        UnsupportedError: they are not.
    """
    names = {type(block).__name__ for block in transformer_blocks(model).values()}
    if parallel.flat_sharded and parallel.fsdp_wrap_classes and set(parallel.fsdp_wrap_classes) != names:
        raise UnsupportedError("torch.compile under fsdp1 with units that are not blocks cannot be traced")


def _compiled_loss(logits: Any, labels: Any, *_: Any, **__: Any) -> Any:
    return full_loss(logits, labels, compiled=True)


@contextlib.contextmanager
def shared_casts() -> Iterator[None]:
    """Make adapters that read one tensor share its cast, as equal operations of a graph are one."""
    try:
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError:
        yield
        return
    before = BaseTunerLayer._cast_input_dtype
    latest: list[Any] = [None, None]
    """The tensor that was cast last, and the cast: both belong to the graph."""

    def cast(layer: Any, tensor: Any, dtype: Any) -> Any:
        if tensor is None or torch.is_autocast_enabled("cpu"):  # which would cast it back
            return tensor
        made = latest[1]() if latest[0] is not None and latest[0]() is tensor else None
        if made is None or made.dtype != dtype:
            made = before(layer, tensor, dtype)
            latest[:] = weakref.ref(tensor), weakref.ref(made)
        return made

    with replaced((BaseTunerLayer, "_cast_input_dtype", cast)):
        yield


# torchtitan's selective activation checkpointing: attention's output and every second matrix product are kept.
#
# Source: torchtitan ``distributed/activation_checkpoint.py`` (``_apply_op_sac``; before, ``parallelize_llama.py``).
# Of experts, the tokens that ranks exchange are kept, and a router's product is recomputed and not counted.


_PRODUCT, _EMPTY = torch.ops.aten.mm.default, torch.ops.aten.empty_like.default
_attention_outputs = [0]
"""Number of outputs of attention that are being allocated: stand-ins of kernels are no operations of their own."""


def attention_output(query: Any) -> Any:
    """Allocate attention's output, which selective checkpointing keeps."""
    _attention_outputs[0] += 1
    try:
        return torch.empty_like(query)
    finally:
        _attention_outputs[0] -= 1


def gate_shapes(model: Any) -> frozenset[tuple[int, ...]]:
    """Return the shapes of the transposed weights of the model's routers (``moe.router.gate``)."""
    gates = (module.gate.weight for module in model.modules() if isinstance(module, Router))
    return frozenset((weight.shape[1], weight.shape[0]) for weight in gates)


def keeping_contexts(
    unread_width: int | None, recomputed: frozenset[tuple[int, ...]] = frozenset()
) -> Callable[[], Any]:
    """Return the function that makes the contexts of one block's forward pass and recomputation.

    Args:
        unread_width: width of the inputs of products that are not kept, as nothing reads them in the backward pass,
            which the partitioner of compiled blocks sees; None: all are treated alike.
        recomputed: shapes of matrices whose products are recomputed, and are not among those that are counted.
    """
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def contexts() -> Any:
        products = {True: 0, False: 0}

        def policy(context: Any, func: Any, *args: Any, **_kwargs: Any) -> Any:
            kept = func is _EMPTY and (_attention_outputs[0] > 0 or exchanging())
            if func is _PRODUCT and tuple(args[1].shape) not in recomputed:
                products[context.is_recompute] += 1
                kept = products[context.is_recompute] % 2 == 1 and args[1].shape[0] != unread_width
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    return contexts


LITGPT = "litgpt"
_PARTS = (
    ("mlp", "feed_forward", "ffn"),
    ("self_attn", "attention", "attn", "linear_attn"),
    ("input_layernorm", "attention_norm", "norm1"),
    ("post_attention_layernorm", "ffn_norm", "norm2"),
)
"""Names of the parts of a block that AutoModel checkpoints."""


def takes_own_loss(request: Request) -> bool:
    """Return True if the loop takes the loss itself, or a fused one takes the head's place."""
    fused = request.training.loss != "full" or "cross-entropy" in request.loop.fused
    return request.training.mode == "train" and (request.loop.own_loss or fused)


def prepare_loop(model: Any, request: Request) -> None:
    """Put in fused kernels, checkpoint parts of blocks one by one, and have the model return what the loss reads."""
    if request.training.framework == LITGPT:
        return
    if request.loop.compiles and not request.loop.own_loss:
        compile_model(model)
        check_units(model, request.parallel)
    fuse_modules(model, request.loop)
    if request.loop.checkpoints_parts:
        _checkpoint_parts(model)
    if request.training.activation_checkpointing == "selective":
        width = model.config.intermediate_size if request.loop.compiles else None
        settings = {"use_reentrant": False, "context_fn": keeping_contexts(width, gate_shapes(model))}
        settings |= recomputing(request)
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=settings)
    if takes_own_loss(request) and request.training.loss != "full":
        base, head = _base_and_head(model)
        chunks = request.training.loss == "chunked" and not request.loop.chunks_at_once

        def forward(input_ids: Any) -> Any:
            hidden = base(input_ids=input_ids, use_cache=False)[0]
            return [head(part) for part in hidden.chunk(CHUNKS, dim=1)] if chunks else hidden

        def forward_and_loss(input_ids: Any) -> Any:
            return fused_linear_loss(
                forward(input_ids), head.weight, in_backward=False, fp32_sums=request.loop.fp32_sums
            )

        inside = request.training.loss == "fused-linear" and not request.loop.own_loss
        model.forward = forward_and_loss if inside else forward


def loop_loss(model: Any, inputs: dict[str, Any], request: Request, variables: list[Any]) -> Any:
    """Return the loss of a micro-batch.

    Args:
        model: the model.
        inputs: with labels.
        request: the job.
        variables: what the loop's variables hold; the outputs replace it if the loop keeps them.
    """
    if request.training.framework == LITGPT:
        return litgpt_loss(model, inputs, request, variables)
    loop, kind, labels = request.loop, request.training.loss, inputs.pop("labels")
    if kind == "fused-linear":
        output = model(input_ids=inputs["input_ids"])
        if not loop.own_loss:
            return output
        _base, head = _base_and_head(model)
        variables[0] = output if loop.keeps_outputs else None
        return fused_linear_loss(output, head.weight, in_backward=True, fp32_sums=False)
    if kind == "chunked" and loop.chunks_at_once:
        _base, head = _base_and_head(model)
        hidden = model(input_ids=inputs["input_ids"])
        return chunks_at_once_loss(hidden, labels, head, compiled=loop.compiles_loss)
    if kind == "chunked":
        return chunked_loss(model(input_ids=inputs["input_ids"]), labels, compiled=loop.compiles_loss)
    logits = model(**inputs, use_cache=False).logits
    if loop.casts_logits:
        logits = logits.float()
    variables[0] = logits if loop.keeps_outputs else None
    return full_loss(logits, labels, in_place="cross-entropy" in loop.fused, compiled=loop.compiles_loss)


def _base_and_head(model: Any) -> tuple[Any, Any]:
    inner = without_adapters(model)
    head, base = inner.get_output_embeddings(), getattr(inner, inner.base_model_prefix, None)
    if head is None or base is None:
        raise UnsupportedError(f"{type(inner).__name__} has no head over a vocabulary")
    return base, head


def _checkpoint_parts(model: Any) -> None:
    for block in transformer_blocks(model).values():
        for names in _PARTS:
            part = next((getattr(block, name) for name in names if hasattr(block, name)), None)
            if part is not None:
                part.forward = _checkpointed(part.forward)


def _checkpointed(forward: Any) -> Any:
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)
