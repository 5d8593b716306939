"""The optimizer step as the Trainer takes it: gradients unscaled and clipped, then the job's real optimizer class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..memory.allocation_history import phase_spans
from ..request.user_code import optimizer_class as import_optimizer_class
from .blockwise_optimizer import PATH, BlockwiseOptimizer
from .measured_optimizer import OptimizerFactory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..memory.allocation_history import AllocationHistory
    from ..memory.tracker import StorageTracker
    from ..request.request import OptimizerClass, Request

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
