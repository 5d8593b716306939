"""Two training steps of the real model on fake tensors, as transformers' Trainer takes them."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from . import cuda_kernels, sharding, stand_ins
from .build import build_model, prepare_for_training
from .cuda_autocast import cuda_autocast
from .limits import UnsupportedError, check
from .optimizers import Stepper, keep_on_host
from .tensor_parallel import split_over
from .tracker import Tracker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .request import Request
    from .tracker import History

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
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
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise UnsupportedError(f"the model decides by the values of its tensors ({error.func})") from None


@contextlib.contextmanager
def _on_fake_tensors(request: Request) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(stand_ins.no_padding_mask())
        stack.enter_context(stand_ins.grouped_products())
        if not request.as_is:
            stack.enter_context(cuda_kernels.cuda_kernels())
            if request.training.mixed:
                stack.enter_context(cuda_autocast())
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        yield


def _run(request: Request) -> Traced:
    training = request.training
    model = build_model(
        request.config, request.task, attention=_attention(request), dtype=LOW.get(training.precision, torch.float32)
    )
    vocab = getattr(model.config.get_text_config(), "vocab_size", 0)
    model = prepare_for_training(model, request)
    counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
    _spread(model, request)
    tracker = Tracker({size for size in (vocab, -(-vocab // request.parallel.tensor)) if size})
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracker)
        stack.enter_context(tracker.watching_resize())
        stack.enter_context(tracker.naming(model))
        if request.parallel.world > 1:
            stack.enter_context(sharding.without_shape_inference(tracker))
        if request.parallel.sharded:
            stack.enter_context(sharding.labelling_communication(tracker))
        tracker.begin(0, "loading")
        named = [*model.named_parameters(), *model.named_buffers()]
        tracker.own((tensor for _, tensor in named), "weights", (name for name, _ in named))
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
        split_over(model, mesh["tensor"])
    if parallel.sharded:
        compute = LOW[request.training.precision.partition("-")[0]] if request.training.mixed else None
        sharding.shard_fully(model, parallel, mesh, compute)


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
            loss = _forward(model, request)
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
    inputs = _inputs(model, request)
    with _autocast(request):
        outputs = model(**inputs)
    if training.mixed:  # accelerate's convert_outputs_to_fp32
        outputs = {name: _widened(value) for name, value in outputs.items()}
    loss = outputs["loss"]
    if training.precision == "fp16-mixed":
        loss = loss * loss.new_tensor(65536.0)
    rounds = training.gradient_accumulation
    return loss / rounds if rounds > 1 else loss


def _infer(model: Any, request: Request, tracker: Tracker) -> None:
    """The prompt's pass, which fills the key-value cache."""
    model.eval()
    model.config.use_cache = True
    tracker.begin(2, "forward")
    with torch.no_grad(), _autocast(request):
        inputs = {name: value for name, value in _inputs(model, request).items() if name == "input_ids"}
        if request.task == "seq2seq-lm":
            inputs["decoder_input_ids"] = inputs["input_ids"]
        outputs = model(**inputs)
        cache = outputs.get("past_key_values")
        for layer in getattr(cache, "layers", ()):
            tracker.own((getattr(layer, "keys", None), getattr(layer, "values", None)), "activations")
        tracker.begin(3, "end")


def _autocast(request: Request) -> Any:
    if not request.training.mixed:
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=LOW[request.training.precision.partition("-")[0]])


def _inputs(model: Any, request: Request) -> dict[str, Any]:
    """A batch without padding."""
    shape = (request.training.micro_batch, request.training.sequence_length)
    ids = torch.randint(0, 2, shape)
    if request.task == "sequence-classification":
        if model.config.pad_token_id is None:
            model.config.pad_token_id = 0
        return {"input_ids": ids, "labels": ids.new_zeros(shape[0])}
    if request.task == "question-answering":
        return {"input_ids": ids, "start_positions": ids.new_zeros(shape[0]), "end_positions": ids.new_zeros(shape[0])}
    return {"input_ids": ids, "labels": torch.randint(0, 2, shape)}


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in LOW.values():
        return value.float()
    return value
