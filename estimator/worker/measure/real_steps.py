"""The steps of a measurement: the traced step's own code on real tensors, and the memory that it takes by phase."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
import warnings
import weakref
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from ..loops.training_loop import prepare_loop
from ..memory.tracker import block_bytes
from ..model.build import build_model, compute_dtype, is_quantizable, modules_kept_by_bitsandbytes, prepare_for_training
from ..model.quantized import OUTLIER_THRESHOLD, cast_to_fp32, features
from ..parallel.data_parallel import device_mesh
from ..parallel.fsdp1 import wrap_fsdp1
from ..replaced import replaced
from ..request.protocol import RefusedError, UnsupportedError, library_versions
from ..request.request import OlderVersions, changed
from ..step.forward_pass import autocast_dtype, run_inference, weights_dtype
from ..step.training_steps import LiveBytes, OptimizerStep, accumulate_gradients, parallelize, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from ..request.request import Request

# Counters of the memory of real steps by phase: CUDA's caching allocator, or the storages of CPU tensors.
#
# They have those methods of ``memory.tracker.StorageTracker`` that the step calls, so that both run the same step.


OutOfMemoryError: Any = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
"""Out-of-memory errors of torch: ``torch.OutOfMemoryError`` since 2.5, ``torch.cuda.OutOfMemoryError`` before."""
_BYTES = ("requested", "allocated", "active", "inactive_split", "reserved")
_COUNTERS = (
    *(f"{name}_bytes.all.current" for name in _BYTES),
    *("segment.all.current", "num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free"),
)
"""Entries of ``torch.cuda.memory_stats``; older versions of torch lack some."""


class PhaseCounter:
    """Peaks of the phases of each step. Subclasses read the memory."""

    def __init__(self) -> None:
        self.peaks: dict[tuple[int, str], tuple[int, int | None]] = {}
        """Allocated and reserved peaks by step and phase; None: the device has no such figure."""
        self.now: tuple[int, str] = (0, "")
        """Step and phase that is running."""

    def begin_phase(self, step: int, phase: str) -> None:
        """Start a phase; the phase before it ends."""
        if self.now[1]:
            allocated, reserved = self.take_peaks()
            known = self.peaks.get(self.now, (0, None))
            self.peaks[self.now] = max(known[0], allocated), None if reserved is None else max(known[1] or 0, reserved)
        self.now = step, phase

    def take_peaks(self) -> tuple[int, int | None]:
        """Return the allocated and reserved peaks since the last call, and start again."""
        raise NotImplementedError

    def levels(self) -> tuple[int, int | None]:
        """Return the bytes that are allocated and reserved now."""
        raise NotImplementedError

    def retries(self) -> int | None:
        """Return how often the allocator freed its cache because memory was full; None: it has no cache."""
        return None

    def allocator(self) -> dict[str, Any] | None:
        """Return the allocator's name, settings and counters of now; None: it has none."""
        return None

    def counting(self) -> Any:
        """Return the context in which memory is counted."""
        raise NotImplementedError

    def label(self, tensors: Iterable[Any], component: str, names: Iterable[str] = ()) -> None:
        """Do nothing: real tensors are summed where they lie."""

    def mark_on_host(self, tensors: Iterable[Any]) -> None:
        """Do nothing, as above."""

    def wait_for_stream(self) -> None:
        """Wait until the device is done, as reading the loss does."""


class CudaCounter(PhaseCounter):
    """Counters of CUDA's caching allocator."""

    def take_peaks(self) -> tuple[int, int | None]:
        """Return the peaks, and reset torch's counters."""
        found = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        return found

    def levels(self) -> tuple[int, int | None]:
        """Return torch's counters."""
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def retries(self) -> int | None:
        """Return torch's ``num_alloc_retries``."""
        return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))

    def allocator(self) -> dict[str, Any]:
        """Return what torch says of its allocator."""
        counters = torch.cuda.memory_stats()
        return {
            "backend": torch.cuda.get_allocator_backend(),
            "settings": torch.cuda.memory._snapshot().get("allocator_settings", {}),
            "counters": {name: counters[name] for name in _COUNTERS if name in counters},
        }

    def counting(self) -> Any:
        """Return an empty context: the allocator always counts."""
        return contextlib.nullcontext()

    def wait_for_stream(self) -> None:
        """Synchronize."""
        torch.cuda.synchronize()


class CpuCounter(PhaseCounter):
    """Counts the storages of CPU tensors in blocks of the allocator's size; there is no cache to count.

    Args:
        capacity: bytes beyond which an allocation fails; None: those of the machine.
    """

    def __init__(self, capacity: int | None) -> None:
        super().__init__()
        self._live = _CpuStorages(capacity)

    def take_peaks(self) -> tuple[int, int | None]:
        """Return the peak of the counted bytes."""
        peak, self._live.peak = self._live.peak, self._live.live
        return peak, None

    def levels(self) -> tuple[int, int | None]:
        """Return the counted bytes."""
        return self._live.live, None

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the storages that are made inside."""
        with self._live, self._live.counting_resize():
            yield


class _CpuStorages(LiveBytes):
    def __init__(self, capacity: int | None) -> None:
        super().__init__()
        self._capacity = capacity
        self._sizes: dict[int, int] = {}

    def _count(self, tensor: Any) -> None:
        if tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._seen:
            self._seen.add(key)
            weakref.finalize(storage, self._release, key, 0).atexit = False
            self._set(key, block_bytes(storage.nbytes()))

    def _release(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= self._sizes.pop(key, size)

    def _set(self, key: int, size: int) -> None:
        live = self.live + size - self._sizes.get(key, 0)
        if self._capacity is not None and live > self._capacity:
            raise OutOfMemoryError(
                f"Tried to allocate {size} bytes on the CPU; the limit is {self._capacity}, and {self.live} are in use"
            )
        self.live, self._sizes[key] = live, size
        self.peak = max(self.peak, live)

    @contextlib.contextmanager
    def counting_resize(self) -> Iterator[None]:
        """Follow storages that FSDP empties and fills again in place."""
        original = torch.UntypedStorage.resize_

        def resize(storage: Any, size: int) -> Any:
            result = original(storage, size)
            if storage._cdata in self._seen:
                self._set(storage._cdata, block_bytes(size))
            return result

        with replaced((torch.UntypedStorage, "resize_", resize)):
            yield


# Libraries whose own kernels real steps run, where a trace has stand-ins: Liger-Kernel, bitsandbytes' optimizers.


_LIGER_LOSSES = {"fused-linear": "fused_linear_cross_entropy"}
_LIGER_PARTS = {
    "norm": ("rms_norm", "layer_norm"),
    "mlp": ("swiglu", "geglu"),
    "rope": ("rope",),
    "cross-entropy": ("cross_entropy",),
}
"""Options of Liger-Kernel's functions by the job's names (``transformers/monkey_patch.py``, 0.8)."""


def uses_liger(request: Request) -> bool:
    """Return True if the job has Liger-Kernel's kernels, which run on a GPU only."""
    return bool(request.loop.fused) or request.training.loss in _LIGER_LOSSES


def without_stand_ins(request: Request) -> Request:
    """Return the job as a model runs it that Liger-Kernel has patched: it takes its loss itself."""
    if not uses_liger(request):
        return request
    training = changed(request.training, loss="full")
    return changed(request, training=training, loop=changed(request.loop, fused=()))


def with_own_kernels(request: Request, model: Any) -> Request:
    """Return the job whose loss is the patched model's and whose optimizer is the library's, not their stand-ins.

    Raises:
        RefusedError: bitsandbytes is not installed, or does not work here.
    """
    request, optimizer = without_stand_ins(request), request.optimizer
    if optimizer is None or optimizer.library is None or request.device != "cuda":
        return request
    if optimizer.options["whole_embeddings"] and optimizer.options["bits"] == 8:
        _keep_embeddings_whole(model)
    return changed(request, optimizer=changed(optimizer, path=optimizer.library, options={}))


def apply_liger(model: Any, request: Request) -> None:
    """Put Liger-Kernel's own kernels into a model of transformers, as ``use_liger_kernel`` of the Trainer does.

    Raises:
        RefusedError: Liger-Kernel is not installed, or does not work here.
    """
    patch = _imported("liger_kernel.transformers", "fused kernels need liger-kernel")._apply_liger_kernel_to_instance
    wanted = {name for part in request.loop.fused for name in _LIGER_PARTS[part]}
    wanted.add(_LIGER_LOSSES.get(request.training.loss, ""))
    options = [name for names in _LIGER_PARTS.values() for name in names] + list(_LIGER_LOSSES.values())
    patch(model=model, **{name: name in wanted for name in options})


def _keep_embeddings_whole(model: Any) -> None:
    """Let bitsandbytes' 8-bit optimizers have fp32 states for embeddings, as the Trainer does."""
    library = _imported("bitsandbytes", "this optimizer needs bitsandbytes")
    manager = library.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


def _imported(name: str, need: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:  # noqa: BLE001 - native libraries fail in many ways
        text = " ".join(str(error).split())[:200]
        raise RefusedError(f"{need}, which cannot be imported here: {text}") from None


# The job's model on its devices, with random weights: whole, sharded, split or copied as the job says.


STANDARD_DEVIATION = 0.02
"""Standard deviation of random weights: transformers' usual ``initializer_range``."""


def placed_model(request: Request, device: Any) -> Any:
    """Build the model of this rank.

    What is split is made without weights first: no rank ever holds the whole.

    Args:
        request: a job that ``check_measurable`` accepts.
        device: of this rank.

    Raises:
        RefusedError: the installed libraries cannot build it.
    """
    older = OlderVersions(**dict.fromkeys(vars(request.older), False))
    request = changed(request, older=older)  # the installed versions run, nothing is imitated
    if request.training.compile:
        request = changed(request, loop=changed(request.loop, fused=(), compiles=False))  # of which torch does all
    parallel, lora = request.parallel, request.lora
    quantized = lora is not None and lora.quantization != "none"
    without_weights = quantized or parallel.sharded or parallel.flat_sharded or parallel.tensor > 1
    with torch.device(device), weights_on_meta() if without_weights else contextlib.nullcontext():
        model = build_model(
            request.config,
            request.task,
            attention=request.attention,
            dtype=weights_dtype(request),
            code=request.code,
        )
        if uses_liger(request):
            apply_liger(model, request)
            request = without_stand_ins(request)
        if quantized and lora is not None:
            quantize(model, request, device)
            request = changed(request, lora=changed(lora, quantization="none"))
        model = prepare_for_training(model, request)
    prepare_loop(model, request)
    if parallel.flat_sharded:
        mesh = device_mesh(parallel, request.device)
        return wrap_fsdp1(model, request, mesh, autocast_dtype(request), materialize=_materializer(device))
    model = parallelize(model, request)
    if without_weights:
        fill_weights(model, torch.device("cpu") if parallel.cpu_offload == "all" else device)
    if parallel.data_replicate > 1 and not parallel.sharded:
        model = _copied(model, request, device)
    # behind DistributedDataParallel, as accelerate does it (``Accelerator.prepare_model``, 1.15)
    return torch.compile(model) if request.training.compile else model


@contextlib.contextmanager
def weights_on_meta() -> Iterator[None]:
    """Build parameters without storage; buffers have theirs, as a model computes them when it is built.

    Each parameter is replaced as soon as it is registered (accelerate's ``init_empty_weights``).
    """
    original = torch.nn.Module.register_parameter

    def register(module: Any, name: str, parameter: Any) -> None:
        original(module, name, parameter)
        if parameter is not None and not parameter.is_meta:
            empty = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
            module._parameters[name] = empty

    with replaced((torch.nn.Module, "register_parameter", register)):
        yield


def fill_weights(model: Any, device: Any) -> None:
    """Give the parameters that have no storage one on the device, with random values; tied ones stay tied."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_meta:
                continue
            made = torch.nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
            torch.utils.swap_tensors(parameter, made)
            _fill(getattr(parameter, "_local_tensor", parameter), name)


def _fill(tensor: Any, name: str) -> None:
    if tensor.dim() > 1:
        tensor.normal_(std=STANDARD_DEVIATION)
    else:
        tensor.fill_(0.0 if name.endswith("bias") else 1.0)


def _materializer(device: Any) -> Callable[[Any], None]:
    """Return what gives a module's own parameters storage on the device, as FSDP1 calls it before it shards a unit.

    The Trainer moves a unit at a time to the GPU, too: its model is loaded in CPU RAM.
    """
    made: dict[Any, weakref.ref[Any]] = {}  # tied parameters are one; nothing here keeps them

    def materialize(module: Any) -> None:
        with torch.no_grad():
            for name, parameter in list(module._parameters.items()):
                if parameter is None or not parameter.is_meta:
                    continue
                known = made[parameter]() if parameter in made else None
                if known is None:
                    known = torch.nn.Parameter(torch.empty_like(parameter, device=device), parameter.requires_grad)
                    _fill(known, name)
                    made[parameter] = weakref.ref(known)
                module._parameters[name] = known

    return materialize


class _Copy(DistributedDataParallel):  # type: ignore[misc] # torch is not type-checked
    """DistributedDataParallel whose model's attributes are its own, as FSDP1's are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._modules["module"], name)


def _copied(model: Any, request: Request, device: Any) -> Any:
    """Return the model in DistributedDataParallel, with the Trainer's options (``Trainer._wrap_model``, 5.0)."""
    return _Copy(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        find_unused_parameters=request.training.activation_checkpointing == "none",
        gradient_as_bucket_view=request.parallel.gradient_as_bucket_view,
    )


_CPU = torch.device("cpu")
_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""In errors of CUDA's libraries and NCCL, which allocate outside of torch."""
_LIBRARIES = ("peft", "bitsandbytes", "flash_attn", "liger_kernel")


def run_steps(request: Request, plan: dict[str, Any], stages: Stages) -> dict[str, Any]:
    """Run the job's steps as one of its ranks, and return the memory that they take.

    Args:
        request: the job.
        plan: ``steps``; ``varying``, whether batches differ in length; and by rank ``limits``, the bytes that it may
            allocate, and ``keeps``, the bytes of its GPU that it must leave free; None: none.
        stages: where they are reported.

    Raises:
        RefusedError: the installed libraries cannot run it, or there is no CUDA.
        UnsupportedError: the model returns no loss, for example.
    """
    rank = int(os.environ.get("RANK", "0"))
    stages.wait("ready", {})
    counter = _start_counting(request, plan, rank, stages)
    device = torch.device(request.device, torch.cuda.current_device()) if request.device == "cuda" else _CPU
    parts: dict[str, int | None] = {"weights": None, "gradients": None, "optimizer": None}
    try:
        with warnings.catch_warnings(), _process_group(request), counter.counting():
            warnings.simplefilter("ignore")
            counter.begin_phase(0, "loading")
            model = placed_model(request, device)
            request = with_own_kernels(request, model)
            if request.training.mode == "train":
                _train(model, request, counter, plan, parts, stages=stages)
            else:
                parts["weights"] = _bytes_of([*model.parameters(), *model.buffers()], request.device)
                cache = run_inference(model, request, counter)  # type: ignore[arg-type] # it has the tracker's methods
                stages.wait("first step", {})
                _decode(model, cache, request, counter, plan["steps"])
            figures = _figures(counter, parts)
            stages.wait("steady", figures)
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        allocated, reserved = counter.levels()
        step, phase = counter.now
        failed = {"step": step, "phase": phase, "message": " ".join(str(error).split())[:600]}
        counter.begin_phase(step, "end")
        levels = {"allocated_bytes": allocated, "reserved_bytes": reserved}
        return {"out_of_memory": {**failed, **levels}, **_figures(counter, parts)}
    return figures


def versions() -> dict[str, str]:
    """Return the versions of what has taken part."""
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in _LIBRARIES}
    found["cuda"] = getattr(getattr(torch, "version", None), "cuda", None)
    return {**library_versions(), **{name: str(version) for name, version in found.items() if version}}


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, OutOfMemoryError) or any(text in str(error) for text in _OUT_OF_MEMORY)


def _start_counting(request: Request, plan: dict[str, Any], rank: int, stages: Stages) -> PhaseCounter:
    """Take this rank's device, as far as it may be used, and return its counter."""
    if request.device == "cpu":
        stages.wait("context", {})
        return CpuCounter(plan["limits"][rank])
    if not torch.cuda.is_available():
        raise RefusedError(f"torch {torch.__version__} sees no CUDA GPU; --cpu runs a tiny model on the CPU instead")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
    except RuntimeError as error:  # the GPU is full, prohibited, or another program's alone
        text = " ".join(str(error).split())[:200]
        raise RefusedError(f"CUDA cannot be started on GPU {torch.cuda.current_device()}: {text}") from None
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    keep, limit = plan["keeps"][rank], plan["limits"][rank]
    allowed = [] if limit is None else [limit]
    if keep is not None:  # others hold memory there: the allocator must fail before they do
        allowed.append(free - keep + torch.cuda.memory_reserved())
        if allowed[-1] <= 0:
            raise RefusedError("another program has taken the rest of the GPU's memory; try again")
    if allowed:
        torch.cuda.set_per_process_memory_fraction(min(1.0, min(allowed) / total))
    stages.wait("context", {})
    return CudaCounter()


@contextlib.contextmanager
def _process_group(request: Request) -> Iterator[None]:
    """Join the job's other ranks, which torchrun has started.

    A rank that fails does not leave the group: since torch 2.6 that waits until NCCL has finished everywhere
    (``ProcessGroupNCCL::shutdown``), and the others wait for this rank. It reports, and ends (``__main__``).
    """
    if request.parallel.world_size == 1:
        yield
        return
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo,cuda:nccl" if request.device == "cuda" else "gloo")
    yield
    dist.destroy_process_group()


class _RealStep(OptimizerStep):
    """The optimizer's step with a gradient scaler that looks at the gradients."""

    def __init__(self, request: Request, trained: list[tuple[str, Any]], counter: Any) -> None:
        super().__init__(request, trained, counter)
        if self._scaler is not None:
            self._scaler = torch.amp.GradScaler(request.device)

    def state_tensors(self) -> Iterator[Any]:
        """Yield the tensors of the states."""
        for state in self._optimizer.state.values() if self._optimizer is not None else ():
            yield from tensors_in(state)


def _train(
    model: Any,
    request: Request,
    counter: PhaseCounter,
    plan: dict[str, Any],
    parts: dict[str, int | None],
    *,
    stages: Stages,
) -> None:
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    if not trained:
        raise UnsupportedError("no parameter is trained, so there is no backward pass")
    parts["weights"] = _bytes_of([*model.parameters(), *model.buffers(), *_quantization_states(model)], request.device)
    counter.begin_phase(0, "wrapping")
    optimizer, variables = _RealStep(request, trained, counter), [None]
    tracker: Any = counter
    for step in range(1, plan["steps"] + 1):
        batch = _of_length(request, step, plan["steps"]) if plan.get("varying") else request
        accumulate_gradients(model, batch, tracker, optimizer, step, variables=variables, buckets=None)
        parts["gradients"] = _bytes_of((each.grad for _, each in trained), request.device)
        counter.begin_phase(step, "optimizer step")
        optimizer.step()
        counter.wait_for_stream()
        if not request.training.optimizer_in_backward:
            parts["optimizer"] = _bytes_of(optimizer.state_tensors(), request.device)
        model.zero_grad(set_to_none=True)
        if step == 1:
            stages.wait("first step", {})
    counter.begin_phase(plan["steps"], "end")


def _of_length(request: Request, step: int, steps: int) -> Request:
    """Return the job with the length of one step's batch: any from an eighth on; the step in the middle has all."""
    longest = request.training.sequence_length
    drawn = random.Random(step).randint(-(-longest // 8), longest)  # noqa: S311 - the same ones in every run
    length = longest if step == (steps + 1) // 2 else drawn
    return changed(request, training=changed(request.training, sequence_length=length))


def _decode(model: Any, cache: Any, request: Request, counter: PhaseCounter, steps: int) -> None:
    """Generate a token at a time behind the prompt, as far as the model keeps a cache."""
    if cache is None or request.task != "causal-lm":
        return
    with torch.no_grad(), torch.device(request.device):
        tokens = torch.zeros((request.training.sequences, 1), dtype=torch.long)
        for step in range(3, steps + 3):  # the prompt is step 2
            counter.begin_phase(step, "decoding")
            outputs = model(input_ids=tokens, past_key_values=cache, use_cache=True)
            tokens = outputs.logits[:, -1:].argmax(-1)
            del outputs
    counter.wait_for_stream()
    counter.begin_phase(steps + 3, "end")


def _figures(counter: PhaseCounter, parts: dict[str, int | None]) -> dict[str, Any]:
    return {
        "peaks": [
            {"step": step, "phase": phase, "allocated": allocated, "reserved": reserved}
            for (step, phase), (allocated, reserved) in counter.peaks.items()
            if phase not in ("wrapping", "end")
        ],
        "components": dict(parts),
        "retries": counter.retries(),
        "allocator": counter.allocator(),
    }


def _bytes_of(tensors: Iterable[Any], device: str) -> int:
    """Return the bytes of the storages of tensors that are on this kind of device, each storage once."""
    sizes = {}
    for tensor in tensors:
        local = getattr(tensor, "_local_tensor", tensor)
        if local is not None and local.device.type == device:
            storage = local.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


def _quantization_states(model: Any) -> Iterator[Any]:
    """Yield the constants with which bitsandbytes' weights are scaled back."""
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        yield from tensors_in(getattr(state, "__dict__", {}))
        for name in ("CB", "SCB"):
            if isinstance(getattr(parameter, name, None), torch.Tensor):
                yield getattr(parameter, name)


# bitsandbytes' own quantized layers in a model without weights, filled with random ones a layer at a time.


def quantize(model: Any, request: Request, device: Any) -> None:
    """Replace the linear layers that transformers' quantizers choose (``replace_with_bnb_linear``), in place.

    Args:
        model: without weights.
        request: the job, with adapters over quantized weights.
        device: that holds the quantized weights.

    Raises:
        RefusedError: bitsandbytes is not installed, or does not work here.
    """
    lora = request.lora
    assert lora is not None  # noqa: S101 - the caller has asked
    try:
        import bitsandbytes
    except Exception as error:  # noqa: BLE001 - its native library fails in many ways
        text = " ".join(str(error).split())[:200]
        raise RefusedError(f"quantized weights need bitsandbytes, which cannot be imported here: {text}") from None
    product_dtype = compute_dtype(request.training)
    kept = modules_kept_by_bitsandbytes(model)
    for path, module in list(model.named_modules()):
        if is_quantizable(path, module, kept):
            made = _quantized_layer(bitsandbytes, module, lora.quantization, product_dtype, device)
            model.set_submodule(path, made)
    setattr(model, "is_loaded_in_8bit" if lora.quantization == "int8" else "is_loaded_in_4bit", True)
    cast_to_fp32(model, lora.fp32_parameters)


def _quantized_layer(library: Any, linear: Any, kind: str, product_dtype: Any, device: Any) -> Any:
    inputs, outputs = features(linear)
    nested = kind == "nf4-double"
    with torch.device("meta"):
        if kind == "int8":
            layer = library.nn.Linear8bitLt(
                inputs, outputs, linear.bias is not None, has_fp16_weights=False, threshold=OUTLIER_THRESHOLD
            )
        else:
            layer = library.nn.Linear4bit(
                *(inputs, outputs, linear.bias is not None),
                compute_dtype=product_dtype,
                compress_statistics=nested,
                quant_type="nf4",
            )
    weight = torch.empty((outputs, inputs), dtype=linear.weight.dtype, device=device).normal_(std=STANDARD_DEVIATION)
    if kind == "int8":
        packed = library.nn.Int8Params(weight.half(), requires_grad=False, has_fp16_weights=False)
    else:
        options = {"compress_statistics": nested, "quant_type": "nf4"}
        packed = library.nn.Params4bit(weight, requires_grad=False, **options)
    layer._parameters["weight"] = packed.to(device)  # the quantization runs here
    if linear.bias is not None:
        layer._parameters["bias"] = torch.nn.Parameter(linear.bias.detach(), requires_grad=False)
    return layer


# Stages of a measurement, through files in a folder that the caller made: each rank writes, the caller answers.
#
# ``RANK.STAGE.json`` is written when a rank reaches a stage; at those at which memory is read from outside, it waits
# for the caller's ``STAGE.go``.


WAIT_SECONDS = 3600.0
"""Time after which a rank goes on without an answer; it waits for its turn while another job has the GPU."""
_POLL_SECONDS = 0.01
_PR_SET_PDEATHSIG = 1


class Stages:
    """What a rank reports.

    Args:
        folder: of the caller.
        rank: its number.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank

    def report(self, stage: str, figures: dict[str, Any]) -> None:
        """Write a stage and its figures."""
        path = self._folder / f"{self._rank}.{stage}.json"
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(json.dumps({"pid": os.getpid(), **figures}), encoding="utf-8")
        unfinished.rename(path)

    def wait(self, stage: str, figures: dict[str, Any]) -> None:
        """Write a stage, and wait until the caller has read the memory."""
        self.report(stage, figures)
        until = time.monotonic() + WAIT_SECONDS
        while not (self._folder / f"{stage}.go").exists() and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)


class NoStages(Stages):
    """Stages of which nobody reads anything."""

    def __init__(self) -> None:
        """Have no folder."""

    def report(self, stage: str, figures: dict[str, Any]) -> None:
        """Do nothing."""

    def wait(self, stage: str, figures: dict[str, Any]) -> None:
        """Go on at once."""


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends, even in the middle of a kernel launch."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)
