"""Two training steps of the real model on fake tensors, as transformers' Trainer takes them."""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..loops.litgpt import build_litgpt
from ..loops.training_loop import LITGPT, attention_of_loop, prepare_loop, shared_casts
from ..memory.tracker import StorageTracker, phase_spans, settled
from ..model.build import build_model, prepare_for_training, vocabulary_size
from ..model.quantized import autocast_seen_by_peft, element_count
from ..parallel import data_parallel, fsdp1
from ..parallel.data_parallel import device_mesh, fake_process_group, meta_propagation_untracked
from ..parallel.deepspeed import ZeroModel, zero_model
from ..parallel.fsdp1 import host_copies, ordered_streams, wrap_fsdp1
from ..parallel.megatron_fsdp import MegatronModel, megatron_model
from ..parallel.placed_modules import PlacedModules, keep_highest_gpu, refuse_offloaded_training
from ..parallel.tensor_parallel import apply_tensor_parallelism, load_user_plan
from ..replaced import replaced
from ..request.protocol import UnsupportedError
from ..request.user_code import optimizer_class as import_optimizer_class
from .cuda_autocast import cuda_autocast
from .forward_pass import (
    DATA_DEPENDENT_ERRORS,
    FLASH_NAME,
    autocast_dtype,
    cuda_kernels,
    register_flash_attention,
    run_inference,
    training_loss,
    weights_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from ..memory.tracker import AllocationHistory
    from ..request.request import OptimizerClass, Request

# Stand-in for bitsandbytes' optimizers: their states, and steps that take no other memory.
#
# Source: bitsandbytes 0.43 to 0.50 ``optim/optimizer.py`` (``init_state``, ``get_state_buffer``): 8-bit states from
# 4,096 elements on, with an fp32 scale per 256 of them, else fp32 ones; paged states from 100,000 elements on are
# managed memory, which torch does not allocate. Kernels update parameters in place.


PATH = "bitsandbytes"
"""What a request's optimizer has for its path."""
_MIN_QUANTIZED, _BLOCK = 4096, 256
_MIN_PAGED = 100_000
_CODES = 256


class BlockwiseOptimizer(torch.optim.Optimizer):  # type: ignore[misc] # torch is not type-checked
    """An optimizer with 8-bit or fp32 states.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        states: number of states.
        bits: of each.
        paged: large states are managed memory.
        whole_embeddings: parameters marked as embeddings have fp32 states (the Trainer's ``GlobalOptimManager``).
    """

    def __init__(
        self, params: Any, lr: float = 1e-4, *, states: int, bits: int, paged: bool, whole_embeddings: bool
    ) -> None:
        super().__init__(params, {"lr": lr})
        self.states, self.bits, self.paged, self.whole_embeddings = states, bits, paged, whole_embeddings
        self.managed: list[Any] = []
        """States in managed memory."""
        self._codes: list[Any] = []

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self) -> None:
        """Make the states; gradients that are not contiguous are copied."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if not self.state[parameter]:
                    self._make_states(parameter)
                parameter.grad = parameter.grad.contiguous()

    def _make_states(self, parameter: Any) -> None:
        size, state = parameter.numel(), self.state[parameter]
        whole = self.whole_embeddings and getattr(parameter, "vramtop_embedding", False)
        quantized = self.bits == 8 and size >= _MIN_QUANTIZED and not whole
        if quantized and not self._codes:
            self._codes = [torch.zeros(_CODES, dtype=torch.float32) for _ in range(min(2, self.states))]
        for number in range(1, self.states + 1):
            made = torch.zeros_like(parameter, dtype=torch.uint8 if quantized else torch.float32)
            state[f"state{number}"] = made
            if self.paged and size >= _MIN_PAGED:
                self.managed.append(made)
            if quantized:
                state[f"absmax{number}"] = torch.zeros(-(-size // _BLOCK), dtype=torch.float32)
        if quantized:
            state["codes"] = self._codes


def mark_embeddings(model: Any) -> None:
    """Mark the parameters of embeddings, whose states are not quantized."""
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.weight.vramtop_embedding = True


# Counter of the bytes that live storages take, real or fake, with their peak.


def _is_plain(kind: Any) -> bool:
    """Return True if tensors of a class have a storage of their own: bitsandbytes' weights too, not a DTensor."""
    return kind is FakeTensor or kind.__torch_dispatch__ == torch.Tensor.__torch_dispatch__


class LiveBytes(TorchDispatchMode):  # type: ignore[misc] # torch is not type-checked
    """Counts the storages that appear while the mode is active, until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(map(_is_plain, types)):
            return NotImplemented  # a subclass's operation comes back as operations of its inner tensors
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return result

    def ignore(self, tensor: Any) -> None:
        """Do not count the storage of a tensor."""
        self._seen.add(tensor.untyped_storage()._cdata)

    def _count(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.live -= size


# Bytes of state of an optimizer class, from steps of the class itself on parameters of the asked shapes.
#
# On fake tensors a parameter has its real shape and takes no memory. Where the class looks at values, or its kernels
# know no fake tensors, real parameters of several small shapes are stepped, and a formula of their sides is fitted.


STEPS = 3
_SMALL = 4096
"""Elements of vectors below which libraries leave states unquantized."""
_NAME = "model.layers.0.mlp.up_proj.weight"
_TOLERANCE = 0.002


@dataclass(frozen=True)
class Measured:
    """Bytes of one parameter's states, and of temporary memory while it is stepped."""

    states: float
    step: float


@dataclass(frozen=True)
class OptimizerFactory:
    """Makes optimizers of one class.

    Options that the class does not take by keyword belong to the group of matrices (``rank`` of low-rank optimizers).
    """

    kind: Any
    options: dict[str, Any]

    def make(self, named: list[tuple[str, Any]]) -> Any:
        """Return the optimizer of parameters.

        Raises:
            UnsupportedError: the class needs an argument that only its user knows.
        """
        signature = inspect.signature(self.kind)
        names = list(signature.parameters)
        open_ended = any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values())
        own = {name: value for name, value in self.options.items() if name in names or open_ended}
        group = {name: value for name, value in self.options.items() if name not in own}
        for name, each in list(signature.parameters.items())[1:]:
            required = each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
            if required and name not in own:
                if name != "lr":
                    raise UnsupportedError(f"{self.kind.__name__} needs the argument {name}")
                own["lr"] = 1e-4
        if names and names[0] in ("model", "module"):
            raise UnsupportedError(f"{self.kind.__name__} is created from a model, not from parameters")
        if names and names[0] == "named_parameters":
            return self.kind(named, **own)
        parameters = [parameter for _, parameter in named]
        if not group:
            return self.kind(parameters, **own)
        groups = [
            {"params": [parameter for parameter in parameters if parameter.dim() > 1], **group},
            {"params": [parameter for parameter in parameters if parameter.dim() < 2]},
        ]
        return self.kind([each for each in groups if each["params"]], **own)


def without_compiling() -> AbstractContextManager[None]:
    """Let ``torch.compile`` return what it is given: compiling takes minutes, and changes no state."""
    return replaced((torch, "compile", lambda model=None, **_options: (lambda each: each) if model is None else model))


def measure(factory: OptimizerFactory, shapes: list[tuple[int, ...]], dtype: Any) -> tuple[list[Measured | None], str]:
    """Return what each parameter takes, and how it was found: ``fake`` or ``fitted``.

    None stands for vectors that the class does not step: the script has to give them to another optimizer.

    Raises:
        UnsupportedError: the class cannot be stepped, or no formula fits.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            return [_step(factory, shape, dtype) for shape in shapes], "fake"
    except UnsupportedError:
        raise
    except Exception:  # noqa: BLE001, S110 - optimizers that read values fail in as many ways as there are optimizers
        pass
    vectors = [shape for shape in shapes if len(shape) < 2]
    matrices = [shape for shape in shapes if len(shape) > 1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            found = dict(zip(matrices, _fitted_matrices(factory, matrices, dtype)))  # noqa: B905 - 3.9
        except UnsupportedError:
            raise
        except Exception as error:  # noqa: BLE001 - a library's code can raise anything
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise UnsupportedError(f"{factory.kind.__name__} cannot be stepped here: {text}") from None
        try:
            found.update(zip(vectors, _fitted_vectors(factory, vectors, dtype)))  # noqa: B905 - 3.9
        except Exception:  # noqa: BLE001 - such as Muon's, which takes matrices alone
            if not matrices:
                raise UnsupportedError(f"{factory.kind.__name__} cannot step a vector here") from None
    return [found.get(shape) for shape in shapes], "fitted"


def _step(factory: OptimizerFactory, shape: tuple[int, ...], dtype: Any) -> Measured:
    """Step one parameter, and return what exists afterwards beside it and its gradient."""
    parameter = torch.nn.Parameter(0.02 * torch.randn(shape).to(dtype))
    parameter.grad = 0.01 * torch.randn(shape).to(dtype)
    counter = LiveBytes()
    counter.ignore(parameter)
    counter.ignore(parameter.grad)
    with warnings.catch_warnings(), counter:
        warnings.simplefilter("ignore")
        optimizer = factory.make([(_NAME, parameter)])
        if callable(getattr(optimizer, "train", None)):  # schedule-free optimizers evaluate at other weights
            optimizer.train()
        for _ in range(STEPS):
            _take_step(optimizer)
        live, peak = counter.live, counter.peak  # the first step is the highest where projections are computed in some
    return Measured(states=live, step=peak - live)


def _take_step(optimizer: Any) -> None:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        optimizer.step(lambda: torch.zeros(()))
    else:
        optimizer.step()


def _fitted_matrices(factory: OptimizerFactory, shapes: list[tuple[int, ...]], dtype: Any) -> list[Measured]:
    """Return what matrices take, by a formula fitted to small ones."""
    if not shapes:
        return []
    unit, rank = 64, factory.options.get("rank")
    if isinstance(rank, int) and not isinstance(rank, bool):  # the small ones must not be smaller than the rank
        unit = max(unit, -(-min(rank, 1024) // 64) * 32)
    formula = _MatrixFormula.fitted(factory, unit, dtype)
    return [formula.at(shape) for shape in shapes]


def _fitted_vectors(factory: OptimizerFactory, shapes: list[tuple[int, ...]], dtype: Any) -> list[Measured]:
    """Return what vectors take, in proportion to a small and a large one."""
    if not shapes:
        return []
    sizes = (_SMALL // 4, 4 * _SMALL)
    measured = [(_step(factory, (size,), dtype), size) for size in sizes]
    found = []
    for shape in shapes:
        like, size = measured[math.prod(shape) >= _SMALL]
        share = math.prod(shape) / size
        found.append(Measured(states=like.states * share, step=like.step * share))
    return found


@dataclass(frozen=True)
class _MatrixFormula:
    """Bytes as sums over elements, sides and squares of sides: factored, low-rank and preconditioning optimizers."""

    states: list[float]
    step: list[float]

    @classmethod
    def fitted(cls, factory: OptimizerFactory, unit: int, dtype: Any) -> _MatrixFormula:
        """Return the formula of a class.

        Raises:
            UnsupportedError: no such formula describes the states.
        """
        sides = [(4, 2), (2, 4), (3, 4), (5, 3), (2, 6), (5, 5), (8, 4), (3, 7), (6, 5), (2, 2), (4, 8)]
        shapes = [(rows * unit, columns * unit) for rows, columns in sides]
        measured = [_step(factory, shape, dtype) for shape in shapes]
        terms = torch.tensor([cls._terms(shape) for shape in shapes], dtype=torch.float64)
        sizes = torch.tensor([[each.states, each.step] for each in measured], dtype=torch.float64)
        scale = terms.max(dim=0).values
        solved = torch.linalg.lstsq(terms / scale, sizes, driver="gelsd").solution / scale[:, None]
        error = (terms @ solved[:, 0] - sizes[:, 0]).abs().max() / sizes[:, 0].max().clamp(min=1)
        if float(error) > _TOLERANCE:
            raise UnsupportedError(f"the states of {factory.kind.__name__} follow no formula of a matrix's sides")
        return cls(states=solved[:, 0].tolist(), step=solved[:, 1].tolist())

    @staticmethod
    def _terms(shape: tuple[int, ...]) -> list[float]:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        longer, shorter = max(rows, columns), min(rows, columns)
        terms = (rows * columns, longer, shorter, rows, longer**2, shorter**2, rows**2, 1)
        return [float(term) for term in terms]

    def at(self, shape: tuple[int, ...]) -> Measured:
        """Return what a matrix of a shape takes."""
        terms = self._terms(shape)
        states, step = (
            max(0.0, sum(coefficient * term for coefficient, term in zip(each, terms)))  # noqa: B905 - 3.9
            for each in (self.states, self.step)
        )
        return Measured(states=states, step=step)


# The optimizer step as the Trainer takes it: gradients unscaled and clipped, then the job's real optimizer class.


MAX_GRAD_NORM = 1.0
"""The Trainer's default."""


class OptimizerStep:
    """The job's optimizer over this rank's part of the trained parameters.

    It steps the local tensors themselves. A step over DTensors would do the same after inferring, for each of them
    again and again, how its result is sharded.

    Args:
        request: the job.
        trained: parameters and their names.
        tracker: learns which storages are optimizer states.
        clips: it clips gradients; an engine around it may have done so.
    """

    def __init__(
        self, request: Request, trained: list[tuple[str, Any]], tracker: StorageTracker, *, clips: bool = True
    ) -> None:
        self._clips = clips
        self._tracker = tracker
        self._parameters = [(parameter, _local_part(parameter)) for _, parameter in trained]
        self._code = request.code if request.optimizer is not None and request.optimizer.own else None
        for parameter, local in self._parameters:
            local.vramtop_embedding = getattr(parameter, "vramtop_embedding", False)
        self._names = {local: name for (name, _), (_, local) in zip(trained, self._parameters)}  # noqa: B905 - 3.9
        self._optimizer = None
        optimizer_class = request.optimizer
        if optimizer_class is not None and request.training.optimizer_in_backward:
            for parameter in self._names:
                self._step_in_backward(optimizer_class, parameter)
        elif optimizer_class is not None:
            self._optimizer = self._make_optimizer(optimizer_class, list(self._names))
        fused = optimizer_class is not None and optimizer_class.options.get("fused", False)
        self._counters_on_host = not request.cpu_kernels and not fused
        self._scaler = _GradScaler("cpu") if request.training.precision == "fp16-mixed" else None

    def scale(self, loss: Any) -> Any:
        """Return the loss scaled up under fp16, so that small gradients do not vanish; unchanged otherwise."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def begin_micro_batch(self, *, last: bool) -> None:
        """Start a forward pass."""

    def end_backward(self) -> None:
        """End a backward pass."""

    def step(self) -> None:
        """Clip the gradients and step."""
        if self._optimizer is None:
            return
        for parameter, local in self._parameters:
            if local is not parameter and parameter.grad is not None:
                local.grad = _local_gradient(parameter)
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        if self._clips:
            torch.nn.utils.clip_grad_norm_(list(self._names), MAX_GRAD_NORM, foreach=True)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        for parameter, local in self._parameters:
            if local is not parameter:
                local.grad = None
        self._label_states(self._optimizer)

    def _step_in_backward(self, optimizer_class: OptimizerClass, parameter: Any) -> None:
        """Give a parameter its own optimizer, as the Trainer's layerwise optimizers do; nothing is clipped."""
        optimizer = self._make_optimizer(optimizer_class, [parameter])

        def step(_parameter: Any) -> None:
            optimizer.step()
            optimizer.zero_grad()
            self._label_states(optimizer)

        parameter.register_post_accumulate_grad_hook(step)

    def _make_optimizer(self, optimizer_class: OptimizerClass, parameters: list[Any]) -> Any:
        named = optimizer_class.path
        kind = BlockwiseOptimizer if named == PATH else import_optimizer_class(named, self._code)
        return OptimizerFactory(kind, optimizer_class.options).make([(self._names[each], each) for each in parameters])

    def _label_states(self, optimizer: Any) -> None:
        self._tracker.mark_on_host(getattr(optimizer, "managed", ()))
        for local, state in optimizer.state.items():
            tensors = list(tensors_in(state))
            self._tracker.label(tensors, "optimizer", [self._names[local]] * len(tensors))
            if self._counters_on_host and isinstance(state.get("step"), torch.Tensor):
                self._tracker.mark_on_host((state["step"],))


def tensors_in(value: Any, depth: int = 3) -> Iterator[Any]:
    """Yield the tensors of a state, also those in lists and in objects such as a projector."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for each in inner or getattr(value, "__dict__", {}).values():
            yield from tensors_in(each, depth - 1)


class _GradScaler(torch.amp.GradScaler):  # type: ignore[misc] # torch is not type-checked
    """A scaler that takes all gradients to be finite: fake tensors have no values to check."""

    def _maybe_opt_step(self, optimizer: Any, _optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)


def _local_part(parameter: Any) -> Any:
    """Return this rank's part of a parameter, in the same storage."""
    part = getattr(parameter, "_local_tensor", None)
    return parameter if part is None else torch.nn.Parameter(part.detach())


def _local_gradient(parameter: Any) -> Any:
    """Return the gradient sharded like its parameter: tensor-parallel ranks get an embedding's gradient whole."""
    gradient = parameter.grad
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return gradient._local_tensor


def move_step_to_host(history: AllocationHistory) -> None:
    """Under CPU offload, count optimizer states and the whole optimizer step as host memory."""
    in_step = _records_created_in(history, "optimizer step")
    for record in history.records:
        if record.component == "optimizer" or record.number in in_step:
            record.host = True


def _records_created_in(history: AllocationHistory, phase: str) -> set[int]:
    return {
        event - 1
        for span in phase_spans(history)
        if span.name == phase
        for event in history.events[span.start : span.end]
        if event > 0
    }


# Replacements for code of transformers that reads values, which fake tensors do not have.


@contextlib.contextmanager
def no_padding_mask() -> Iterator[None]:
    """Make transformers take a batch for one without padding, so that it builds no mask."""
    try:
        from transformers import masking_utils
    except ImportError:  # before 4.53
        yield
        return
    changes = {
        "is_tracing": lambda *_: False,
        "find_packed_sequence_indices": lambda *_: None,
        "fast_all": lambda *_: True,  # for models that make their masks themselves
    }
    with _replaced_in(masking_utils, changes):
        yield


@contextlib.contextmanager
def grouped_matrix_products() -> Iterator[None]:
    """Multiply all experts at once: by torch's operation in bf16 only, as it takes no fake tensors of other dtypes."""
    try:
        from transformers.integrations import moe
    except ImportError:  # before 5
        yield
        return
    with _replaced_in(moe, {"_can_use_grouped_mm": lambda _input, weight, _offs: weight.dtype == torch.bfloat16}):
        yield


@contextlib.contextmanager
def no_truncated_normal() -> Iterator[None]:
    """Skip truncated normal initialisation (vision models, ModernBERT), which redraws values until they lie inside."""
    try:
        from transformers import initialization

        functions = initialization.TORCH_INIT_FUNCTIONS
    except (ImportError, AttributeError):  # before 5, where torch's own is called
        functions = vars(torch.nn.init)
    original = functions["trunc_normal_"]
    functions["trunc_normal_"] = lambda tensor, *_, **__: tensor
    try:
        yield
    finally:
        functions["trunc_normal_"] = original


def _replaced_in(module: Any, changes: dict[str, Any]) -> AbstractContextManager[None]:
    """Replace those functions of a module that this version of it has."""
    return replaced(*((module, name, value) for name, value in changes.items() if hasattr(module, name)))


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
        stack.enter_context(no_padding_mask())
        stack.enter_context(grouped_matrix_products())
        stack.enter_context(no_truncated_normal())
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
        raise UnsupportedError("no parameter is trained, so there is no backward pass")
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
        raise UnsupportedError(
            f"{type(model).__name__} is not a transformers model, so vramtop does not know the units that FSDP2 wraps"
        )
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
            stack.enter_context(data_parallel.communication_labelled(tracker, own_pool=own_pool))
            if request.parallel.cpu_offload == "all":
                stack.enter_context(data_parallel.offload_copies(tracker))
        if request.parallel.flat_sharded:
            stack.enter_context(ordered_streams(tracker))
            stack.enter_context(replaced(*fsdp1.labels_of_fsdp1(tracker)))
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
