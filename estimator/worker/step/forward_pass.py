"""Forward passes of the traced step: the training loss as the Trainer computes it, and an inference prefill."""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from ..loops.training_loop import loop_loss, takes_own_loss
from ..model.dtypes import DTYPES, compute_dtype
from ..model.inputs import LABEL_NAMES, make_inputs
from ..request.errors import RefusedError, UnsupportedError
from ..request.user_code import refusing_errors
from .cuda_kernels import LOW_PRECISION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.tracker import StorageTracker
    from ..request.request import Request, Training

DATA_DEPENDENT_ERRORS = (DataDependentOutputException, DynamicOutputShapeException)
"""Exceptions of fake tensors where a program reads values."""


def training_loss(model: Any, request: Request, variables: list[Any]) -> Any:
    """Run a forward pass with labels and return the loss of one micro-batch.

    Args:
        model: the model.
        request: the job.
        variables: what the loop's variables hold; the outputs replace it if the loop keeps them.

    Raises:
        UnsupportedError: the model returns no loss.
    """
    training = request.training
    with torch.device(request.device):
        inputs = make_inputs(model, request)
    if takes_own_loss(request):
        with _autocast(request):
            return _share(loop_loss(model, inputs, request, variables), training)
    with _autocast(request), _user_model_errors(request):
        outputs = model(**inputs)
    if request.autocasts and hasattr(outputs, "items"):  # accelerate's convert_outputs_to_fp32
        outputs = {name: _to_fp32(value) for name, value in outputs.items()}
    loss = outputs.get("loss") if hasattr(outputs, "get") else getattr(outputs, "loss", None)
    if loss is None:
        raise UnsupportedError(f"{type(model).__name__} returns no loss when it is called with labels")
    if request.loop.keeps_outputs:
        variables[0] = outputs
    return _share(loss, training)


def _share(loss: Any, training: Training) -> Any:
    micro_batches = training.gradient_accumulation
    return loss / micro_batches if micro_batches > 1 else loss


def run_inference(model: Any, request: Request, tracker: StorageTracker) -> Any:
    """Run the prompt's forward pass, and return the key-value cache that it fills; None: the model has none."""
    model.eval()
    if hasattr(model, "config"):
        model.config.use_cache = True
    tracker.begin_phase(2, "forward")
    with torch.no_grad(), _autocast(request):
        with torch.device(request.device):
            inputs = {name: value for name, value in make_inputs(model, request).items() if name not in LABEL_NAMES}
        if request.task == "seq2seq-lm":
            inputs["decoder_input_ids"] = inputs["input_ids"]
        elif request.task == "causal-lm" and _keeps_last_logits(model):
            inputs["logits_to_keep"] = 1
        with _user_model_errors(request):
            outputs = model(**inputs)
        cache = getattr(outputs, "past_key_values", None)
        for layer in getattr(cache, "layers", ()):
            tracker.label((getattr(layer, "keys", None), getattr(layer, "values", None)), "activations")
        tracker.begin_phase(3, "end")
    return cache


def _keeps_last_logits(model: Any) -> bool:
    """Return True if ``generate`` asks the model for the last token's logits only, as it does where it can."""
    own = model.get_base_model() if hasattr(model, "get_base_model") else model
    return "logits_to_keep" in inspect.signature(own.forward).parameters


def autocast_dtype(request: Request) -> torch.dtype | None:
    """Return the dtype of matrix products under autocast; None without autocast."""
    return compute_dtype(request.training) if request.autocasts else None


def weights_dtype(request: Request) -> torch.dtype:
    """Return the dtype in which the model's weights are created."""
    return DTYPES.get(request.training.precision, torch.float32)  # of ``bf16-mixed``, which is none of them, fp32


def _autocast(request: Request) -> Any:
    dtype = autocast_dtype(request) if request.loop.autocast else None
    return contextlib.nullcontext() if dtype is None else torch.autocast(request.device, dtype=dtype)


@contextlib.contextmanager
def _user_model_errors(request: Request) -> Iterator[None]:
    """Report errors of a model that the user wrote as errors of that code."""
    code = request.code
    if code is None or not code.model:
        yield
        return
    with refusing_errors(code.model, code.folder):
        try:
            yield
        except DATA_DEPENDENT_ERRORS as error:
            raise RefusedError(f"{code.model} depends on the values of its tensors ({error.func})") from None


def _to_fp32(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in LOW_PRECISION:
        return value.float()
    return value
