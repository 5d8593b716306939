"""Two training steps of the real model on fake tensors, as transformers' Trainer takes them."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from ..memory.tracker import Tracker
from ..model import fake_values as stand_ins
from ..model.build import build_model, prepare_for_training, vocabulary
from ..model.inputs import LABELS, make_inputs
from ..parallel import sharding
from ..parallel.tensor_parallel import split_over
from ..request.limits import UnsupportedError, check
from ..request.protocol import RefusedError
from ..request.user_code import find, reported
from . import cuda_kernels
from .cuda_autocast import cuda_autocast
from .optimizers import Stepper, keep_on_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.tracker import History
    from ..request.request import Request

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
VALUES_NEEDED = (DataDependentOutputException, DynamicOutputShapeException)
"""What fake tensors raise where a program looks at values."""
MICRO_BATCHES = 2
"""Of an accumulated step so many are run: the third holds no more than the second."""


@dataclass(frozen=True)
class Traced:
    """What came of it."""

    history: History
    parameters: int
    trainable: int


def trace_steps(request: Request) -> Traced:
    """Run the job's steps and see every allocation.

    Raises:
        UnsupportedError: there is something in the job that tracing cannot run.
        RefusedError: the installed transformers cannot build the model.
    """
    check(request)
    try:
        with warnings.catch_warnings(), sharding.process_group(request.parallel.world), _on_fake_tensors(request):
            warnings.simplefilter("ignore")
            return _run(request)
    except VALUES_NEEDED as error:
        raise UnsupportedError(f"the model decides by the values of its tensors ({error.func})") from None


@contextlib.contextmanager
def _on_fake_tensors(request: Request) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(stand_ins.no_padding_mask())
        stack.enter_context(stand_ins.grouped_products())
        stack.enter_context(stand_ins.no_initial_values())
        if not request.as_is:
            stack.enter_context(cuda_kernels.cuda_kernels())
            if request.training.mixed:
                stack.enter_context(cuda_autocast())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _run(request: Request) -> Traced:
    training = request.training
    model = build_model(
        request.config,
        request.task,
        attention=_attention(request),
        dtype=LOW.get(training.precision, torch.float32),
        code=request.code,
    )
    vocab = vocabulary(model)
    model = prepare_for_training(model, request)
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    _spread(model, request)
    vocab_sizes = {size for size in (vocab, -(-vocab // request.parallel.tensor)) if size}
    tracker = Tracker(vocab_sizes, sums_in_place=not request.as_is)
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracker)
        stack.enter_context(tracker.watching_resize())
        stack.enter_context(tracker.naming(model))
        if request.parallel.world > 1:
            stack.enter_context(sharding.without_shape_inference(tracker))
        if request.parallel.sharded:
            stack.enter_context(sharding.labelling_communication(tracker))
            if request.parallel.cpu_offload == "all":
                stack.enter_context(sharding.copying_to_and_from_host(tracker))
        tracker.begin(0, "loading")
        named = [*model.named_parameters(), *model.named_buffers()]
        tracker.own((tensor for _, tensor in named), "weights", (name for name, _ in named))
        if request.parallel.cpu_offload == "all":
            tracker.at_home(model.parameters())
        if training.mode == "inference":
            _infer(model, request, tracker)
        else:
            _train(model, request, tracker)
        history = tracker.history
    return Traced(
        history=history,
        parameters=sum(size for size, _ in counts),
        trainable=0 if training.mode == "inference" else sum(size for size, trained in counts if trained),
    )


def _attention(request: Request) -> str:
    if request.attention in ("sdpa", "eager"):
        return request.attention
    try:
        cuda_kernels.register_flash_attention()
    except ImportError:
        raise UnsupportedError(f"this transformers cannot be traced with {request.attention}") from None
    return cuda_kernels.FLASH_NAME


def _spread(model: Any, request: Request) -> None:
    """Over the job's ranks, in place."""
    parallel = request.parallel
    if parallel.tensor == 1 and not parallel.sharded:
        return
    mesh = sharding.device_mesh(parallel)
    if parallel.tensor > 1:
        plan = _users_plan(model, request)
        split_over(model, mesh["tensor"], plan=plan, sequence_parallel=parallel.sequence_parallel)
    if parallel.sharded and not hasattr(model, "get_input_embeddings"):
        raise UnsupportedError(f"{type(model).__name__} is no transformers model, whose units FSDP2 would wrap")
    if parallel.sharded:
        compute = LOW[request.training.precision.partition("-")[0]] if request.training.mixed else None
        sharding.shard_fully(model, parallel, mesh, compute)


def _users_plan(model: Any, request: Request) -> Any:
    """Styles by module, as the user's own plan has them for this model; None: he has none."""
    name, folder = request.parallel.tensor_plan, request.code.folder if request.code else ""
    if name is None:
        return None
    plan = find(name, folder)
    if callable(plan):
        with reported(name, folder):
            plan = plan(model.get_base_model() if hasattr(model, "peft_config") else model)
    if not isinstance(plan, dict):
        raise RefusedError(f"{name} gives a {type(plan).__name__}, not a dict of styles by module")
    return plan


def _train(model: Any, request: Request, tracker: Tracker) -> None:
    training, parallel = request.training, request.parallel
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    for name, parameter in trained:
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: tracker.own((p.grad,), "gradients", (name,)))
    tracker.begin(1, "wrapping")
    replicated = parallel.data_replicate > 1 and not parallel.sharded
    buckets = sharding.allocate_buckets(model, tracker) if replicated else []
    stepper = Stepper(request, trained, tracker)
    rounds = min(training.gradient_accumulation, MICRO_BATCHES)
    for step in (1, 2):
        for micro_batch in range(rounds):
            if parallel.sharded:  # accelerate's no_sync: gradients stay whole until the last micro-batch
                model.set_requires_gradient_sync(micro_batch == rounds - 1)
            tracker.begin(step, "forward")
            loss = stepper.scaled(_forward(model, request))
            tracker.begin(step, "backward")
            loss.backward()
            del loss
        tracker.begin(step, "optimizer step")
        tracker.own((p.grad for _, p in trained), "gradients", (name for name, _ in trained))
        stepper.step()
        model.zero_grad()
    tracker.begin(3, "end")  # what goes with this function is no part of the step
    if parallel.cpu_offload == "all":
        keep_on_host(tracker.history)
    del buckets


def _forward(model: Any, request: Request) -> Any:
    training = request.training
    inputs = make_inputs(model, request)
    with _autocast(request), _users_errors(request):
        outputs = model(**inputs)
    if training.mixed and hasattr(outputs, "items"):  # accelerate's convert_outputs_to_fp32
        outputs = {name: _widened(value) for name, value in outputs.items()}
    loss = _loss(outputs, model)
    rounds = training.gradient_accumulation
    return loss / rounds if rounds > 1 else loss


def _infer(model: Any, request: Request, tracker: Tracker) -> None:
    """The prompt's pass, which fills the key-value cache."""
    model.eval()
    if hasattr(model, "config"):
        model.config.use_cache = True
    tracker.begin(2, "forward")
    with torch.no_grad(), _autocast(request):
        inputs = {name: value for name, value in make_inputs(model, request).items() if name not in LABELS}
        if request.task == "seq2seq-lm":
            inputs["decoder_input_ids"] = inputs["input_ids"]
        with _users_errors(request):
            outputs = model(**inputs)
        cache = getattr(outputs, "past_key_values", None)
        for layer in getattr(cache, "layers", ()):
            tracker.own((getattr(layer, "keys", None), getattr(layer, "values", None)), "activations")
        tracker.begin(3, "end")


@contextlib.contextmanager
def _users_errors(request: Request) -> Iterator[None]:
    """Errors of a model of the user's own are told as such."""
    code = request.code
    if code is None or not code.model:
        yield
        return
    with reported(code.model, code.folder):
        try:
            yield
        except VALUES_NEEDED as error:
            raise RefusedError(f"{code.model} decides by the values of its tensors ({error.func})") from None


def _autocast(request: Request) -> Any:
    if not request.training.mixed:
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=LOW[request.training.precision.partition("-")[0]])


def _loss(outputs: Any, model: Any) -> Any:
    loss = outputs.get("loss") if hasattr(outputs, "get") else getattr(outputs, "loss", None)
    if loss is None:
        raise UnsupportedError(f"{type(model).__name__} returns no loss when it is called with labels")
    return loss


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in LOW.values():
        return value.float()
    return value
