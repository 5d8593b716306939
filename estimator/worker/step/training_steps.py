"""Two training steps of the real model on fake tensors, as transformers' Trainer takes them."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch._subclasses.fake_tensor import FakeTensorMode

from ..loops.compiled_model import shared_casts
from ..loops.fused_kernels import attention_of_loop
from ..loops.litgpt.step import build_litgpt
from ..loops.training_loop import LITGPT, prepare_loop
from ..memory.allocation_history import settled
from ..memory.tracker import StorageTracker
from ..model import fake_values
from ..model.build import build_model, prepare_for_training, vocabulary_size
from ..model.quantized.linear import element_count
from ..model.quantized.peft_layers import autocast_seen_by_peft
from ..parallel import data_parallel, fsdp_tracking
from ..parallel.deepspeed.engine import ZeroModel, zero_model
from ..parallel.fsdp1 import labels as fsdp1_labels
from ..parallel.fsdp1.host_copies import host_copies
from ..parallel.fsdp1.streams import ordered_streams
from ..parallel.fsdp1.wrapping import wrap_fsdp1
from ..parallel.megatron_fsdp.engine import MegatronModel, megatron_model
from ..parallel.placed_modules import PlacedModules, keep_highest_gpu, refuse_offloaded_training
from ..parallel.process_group import device_mesh, fake_process_group, meta_propagation_untracked
from ..parallel.tensor_parallel import apply_tensor_parallelism, load_user_plan
from ..request.errors import UnsupportedError
from .blockwise_optimizer import mark_embeddings
from .cuda_autocast import cuda_autocast
from .cuda_kernels import FLASH_NAME, cuda_kernels, register_flash_attention
from .forward_pass import DATA_DEPENDENT_ERRORS, autocast_dtype, run_inference, training_loss, weights_dtype
from .optimizer_step import OptimizerStep, move_step_to_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.allocation_history import AllocationHistory
    from ..request.request import Request

MAX_MICRO_BATCHES = 2
"""Micro-batches run of an accumulated step: the third needs no more memory than the second."""


@dataclass(frozen=True)
class TracedSteps:
    """Result of a trace."""

    history: AllocationHistory
    parameters: int
    trainable: int
    gradients: int
    """Tensors that train, of which the rank holds a part."""
    gpu: int | None = None
    """GPU that the history is about: of a process with several GPUs, the one with the highest peak."""


def trace_steps(request: Request, *, whole: Any = None) -> TracedSteps:
    """Run the job's steps and record every allocation.

    Args:
        request: a job that ``check_supported`` accepts.
        whole: the model of which the request's has some layers only; None: the request's is whole. What a strategy
            allocates for all layers at once is allocated for this one.

    Raises:
        UnsupportedError: the trace does not cover the model.
        RefusedError: the installed transformers cannot build the model.
    """
    try:
        with warnings.catch_warnings(), fake_process_group(request.parallel.world_size), _fake_tensors(request):
            warnings.simplefilter("ignore")
            return _build_and_run(request, whole)
    except DATA_DEPENDENT_ERRORS as error:
        raise UnsupportedError(f"the model depends on the values of its tensors ({error.func})") from None
    except (RuntimeError, ValueError) as error:  # such as parameters that units share
        if not request.parallel.flat_sharded:
            raise
        raise UnsupportedError(f"the model fails under FSDP1: {' '.join(str(error).split())[:200]}") from None


@contextlib.contextmanager
def _fake_tensors(request: Request) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(fake_values.no_padding_mask())
        stack.enter_context(fake_values.grouped_matrix_products())
        stack.enter_context(fake_values.no_truncated_normal())
        if not request.cpu_kernels:
            stack.enter_context(cuda_kernels())
            if request.autocasts and request.loop.autocast:
                stack.enter_context(cuda_autocast())
        if request.autocasts and request.lora is not None and request.lora.quantization != "none":
            stack.enter_context(autocast_seen_by_peft())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _build_and_run(request: Request, whole: Any) -> TracedSteps:
    inference = request.training.mode == "inference"
    model, vocabulary = _prepared_model(request)
    prepare_loop(model, request)
    sizes = [(element_count(parameter), parameter.requires_grad) for parameter in model.parameters()]
    if not inference and not any(trained for _, trained in sizes):
        raise UnsupportedError("no parameter trains, so that there is no backward pass")
    model = parallelize(model, request)
    mark_embeddings(model)
    held = model.parameters() if request.parallel.flat_sharded else ()  # FSDP1's shards begin and end anywhere
    gradients = sum(each.requires_grad and each.numel() > 0 for each in held) or sum(trained for _, trained in sizes)
    dtype = weights_dtype(request)
    zero = zero_model(model, request, dtype) or megatron_model(model, request, dtype)
    # a tensor-parallel head gives each rank its part of the vocabulary
    tracker = StorageTracker(
        {size for size in (vocabulary, -(-vocabulary // request.parallel.tensor)) if size},
        sums_in_place=not request.cpu_kernels,
    )
    running = contextlib.nullcontext() if zero is None else zero.running()
    if request.parallel.device_map and not inference:
        refuse_offloaded_training(request.parallel.device_map)
    placed = PlacedModules(model, parallel.device_map, tracker) if (parallel := request.parallel).device_map else None
    with _tracking(model, request, tracker, running), placed.copying() if placed else contextlib.nullcontext():
        if placed:
            tracker.begin_phase(0, "loading")
            placed.label_weights()
        _track_loaded_model(model, request, tracker, zero)
        if inference:
            run_inference(model, request, tracker)
        else:
            _train(model, request, tracker, zero, whole or model)
        history = settled(tracker.history)
    gpu = keep_highest_gpu(history) if placed else None
    return TracedSteps(
        history=history,
        gpu=gpu,
        parameters=sum(size for size, _ in sizes),
        trainable=0 if inference else sum(size for size, trained in sizes if trained),
        gradients=0 if inference else gradients,
    )


def _prepared_model(request: Request) -> tuple[Any, int]:
    """Return the job's model, ready for training, and the size of its output vocabulary."""
    if request.training.framework == LITGPT:
        model = build_litgpt(request, weights_dtype(request))
        return model, vocabulary_size(model)
    model = build_model(
        request.config,
        request.task,
        attention=_attention_implementation(request),
        dtype=weights_dtype(request),
        code=request.code,
    )
    return prepare_for_training(model, request), vocabulary_size(model)


def _attention_implementation(request: Request) -> str:
    """Return the attention implementation that transformers is to use."""
    if request.attention in ("sdpa", "eager"):
        return request.attention
    try:
        register_flash_attention()
    except ImportError:
        raise UnsupportedError(f"this transformers cannot be traced with {request.attention}") from None
    return FLASH_NAME


def parallelize(model: Any, request: Request) -> Any:
    """Return the model with the job's tensor parallelism and FSDP."""
    parallel = request.parallel
    if parallel.tensor == 1 and not parallel.sharded and not parallel.flat_sharded:
        return model
    mesh = device_mesh(parallel, request.device)
    if parallel.flat_sharded:
        return wrap_fsdp1(model, request, mesh, autocast_dtype(request))
    if parallel.tensor > 1:
        plan = load_user_plan(model, request)
        apply_tensor_parallelism(model, mesh["tensor"], plan=plan, sequence_parallel=parallel.sequence_parallel)
    if parallel.sharded and not hasattr(model, "get_input_embeddings"):
        raise UnsupportedError(f"{type(model).__name__} is no transformers model, whose units FSDP2 would wrap")
    if parallel.sharded:
        data_parallel.apply_fsdp2(model, parallel, mesh, autocast_dtype(request), request.loop)
    return model


@contextlib.contextmanager
def _tracking(model: Any, request: Request, tracker: StorageTracker, running: Any) -> Iterator[None]:
    """Track storages by component and module, with what the job's parallelism needs for that."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(attention_of_loop(model, request.loop))
        if request.loop.compiles and request.lora is not None:
            stack.enter_context(shared_casts())
        stack.enter_context(tracker)
        stack.enter_context(tracker.tracking_resize())
        stack.enter_context(tracker.naming_modules(model))
        stack.enter_context(running)
        if request.parallel.world_size > 1:
            stack.enter_context(meta_propagation_untracked(tracker))
        if request.parallel.sharded:
            own_pool = request.older.reduces_in_own_pool
            stack.enter_context(fsdp_tracking.communication_labelled(tracker, own_pool=own_pool))
            if request.parallel.cpu_offload == "all":
                stack.enter_context(fsdp_tracking.offload_copies(tracker))
        if request.parallel.flat_sharded:
            stack.enter_context(ordered_streams(tracker))
            stack.enter_context(fsdp1_labels.communication_labelled(tracker))
            if request.parallel.cpu_offload == "all":
                stack.enter_context(host_copies(tracker))
        yield


def _track_loaded_model(
    model: Any, request: Request, tracker: StorageTracker, zero: ZeroModel | MegatronModel | None
) -> None:
    tracker.begin_phase(0, "loading")
    weights = list(model.parameters()) if zero is None else zero.parameters()
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    tracker.label((*weights, *model.buffers()), "weights", names)
    if request.parallel.cpu_offload == "all":
        tracker.mark_on_host(weights)


def _train(
    model: Any, request: Request, tracker: StorageTracker, zero: ZeroModel | MegatronModel | None, whole: Any
) -> None:
    parallel = request.parallel
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, parameter in trained:
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: tracker.label((p.grad,), "gradients", (name,))
        )
    tracker.begin_phase(1, "wrapping")
    fsdp = parallel.sharded or parallel.flat_sharded
    replicated = parallel.data_replicate > 1 and not fsdp and zero is None
    viewing = model if parallel.gradient_as_bucket_view else None
    buckets = data_parallel.ReplicaBuckets(whole, tracker, viewing=viewing) if replicated else None
    optimizer, variables = _make_optimizer(request, trained, tracker, zero), [None]
    for step in (1, 2):
        accumulate_gradients(model, request, tracker, optimizer, step, variables=variables, buckets=buckets)
        tracker.begin_phase(step, "optimizer step")
        tracker.label((p.grad for _, p in trained), "gradients", (name for name, _ in trained))
        optimizer.step()
        model.zero_grad(set_to_none=not request.older.zeroes_gradients)
    tracker.begin_phase(3, "end")  # what is freed when this function returns is no part of the step
    if parallel.cpu_offload != "none":
        move_step_to_host(tracker.history)
    del buckets


def _make_optimizer(
    request: Request, trained: list[tuple[str, Any]], tracker: StorageTracker, zero: ZeroModel | MegatronModel | None
) -> Any:
    """Return what scales the loss and steps: the optimizer, or DeepSpeed's or Megatron-FSDP's engine over it."""
    if zero is None:
        return OptimizerStep(request, trained, tracker)
    return zero.make_engine(trained, lambda parts: OptimizerStep(request, parts, tracker, clips=zero.clips), tracker)


def accumulate_gradients(
    model: Any,
    request: Request,
    tracker: StorageTracker,
    optimizer: Any,
    step: int,
    *,
    variables: list[Any],
    buckets: data_parallel.ReplicaBuckets | None,
) -> None:
    """Run the forward and backward passes of one step.

    Args:
        model: the model.
        request: the job.
        tracker: of its storages.
        optimizer: scales the loss and steps.
        step: its number.
        variables: what the loop's variables hold until the next outputs replace it.
        buckets: DistributedDataParallel's; None: the model is not replicated.
    """
    loop, micro_batches = request.loop, min(request.training.gradient_accumulation, MAX_MICRO_BATCHES)
    for micro_batch in range(micro_batches):
        last = micro_batch == micro_batches - 1
        syncs = request.parallel.sync_every_micro_batch
        if request.parallel.sharded and (loop.accumulates_unsharded if syncs is None else not syncs):
            model.set_requires_gradient_sync(last)  # no_sync: gradients stay whole until the last one
        optimizer.begin_micro_batch(last=last)
        if buckets is not None:
            buckets.syncs = last or bool(syncs)
        waits = hasattr(model, "no_sync") and not last and not syncs
        with model.no_sync() if waits else contextlib.nullcontext():
            tracker.begin_phase(step, "forward")
            loss = optimizer.scale(training_loss(model, request, variables))
            tracker.begin_phase(step, "backward")
            loss.backward()
            del loss
            if not loop.keeps_between_steps:
                variables[0] = None
        tracker.wait_for_stream()  # the Trainer reads whether the loss is finite (logging_nan_inf_filter)
        optimizer.end_backward()
