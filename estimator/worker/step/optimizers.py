"""The optimizer step as the Trainer takes it: gradients unscaled and clipped, then the job's real optimizer class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..memory.tracker import spans

if TYPE_CHECKING:
    from ..memory.tracker import History, Tracker
    from ..request.request import Request

CLIP_NORM = 1.0
"""The Trainer's ``max_grad_norm``."""


class Stepper:
    """The job's optimizer over what this rank holds of the trained parameters.

    It steps the local tensors themselves: what a DTensor's operation would do with them, without inferring for each
    of them, over and over, how its result is sharded.

    Args:
        request: the job.
        trained: parameters and their names.
        tracker: told which storages are optimizer states.
    """

    def __init__(self, request: Request, trained: list[tuple[str, Any]], tracker: Tracker) -> None:
        self._tracker = tracker
        self._named = [(name, parameter, _local(parameter)) for name, parameter in trained]
        self._names = {local: name for name, _, local in self._named}
        self._request = request
        self._optimizer = None
        if request.training.optimizer_in_backward:
            for parameter in self._names:
                self._step_in_backward(parameter)
        else:
            self._optimizer = _make(request.training.optimizer, [local for _, _, local in self._named])
        self._host_counters = not request.as_is and request.training.optimizer != "adamw-fused"
        self._scaler = _Scaler("cpu") if request.training.precision == "fp16-mixed" else None

    def scaled(self, loss: Any) -> Any:
        """The loss times the scale that keeps gradients of fp16 from vanishing; in other precisions as it is."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def step(self) -> None:
        """Clip the gradients and step."""
        if self._optimizer is None:
            return
        for _, parameter, local in self._named:
            if local is not parameter and parameter.grad is not None:
                local.grad = _local_gradient(parameter)
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        torch.nn.utils.clip_grad_norm_(list(self._names), CLIP_NORM, foreach=True)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        for _, parameter, local in self._named:
            if local is not parameter:
                local.grad = None
        self._label(self._optimizer)

    def _step_in_backward(self, parameter: Any) -> None:
        """Give a parameter an optimizer of its own, as the Trainer's layerwise optimizers do: nothing is clipped."""
        optimizer = _make(self._request.training.optimizer, [parameter])
        if optimizer is None:
            return

        def step(_parameter: Any) -> None:
            optimizer.step()
            optimizer.zero_grad()
            self._label(optimizer)

        parameter.register_post_accumulate_grad_hook(step)

    def _label(self, optimizer: Any) -> None:
        for local, state in optimizer.state.items():
            tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
            self._tracker.own(tensors.values(), "optimizer", [self._names[local]] * len(tensors))
            if self._host_counters and "step" in tensors:
                self._tracker.at_home((tensors["step"],))


class _Scaler(torch.amp.GradScaler):  # type: ignore[misc] # torch is not type-checked
    """Takes gradients for finite ones: fake ones have no values to look at."""

    def _maybe_opt_step(self, optimizer: Any, _optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)


def _local(parameter: Any) -> Any:
    """This rank's part, in the same storage."""
    part = getattr(parameter, "_local_tensor", None)
    return parameter if part is None else torch.nn.Parameter(part.detach())


def _local_gradient(parameter: Any) -> Any:
    """Split as the parameter is: an embedding's gradient comes whole on every tensor-parallel rank."""
    gradient = parameter.grad
    if gradient.placements != parameter.placements:
        gradient = gradient.redistribute(placements=parameter.placements)
    return gradient._local_tensor


def _make(name: str, trained: list[Any]) -> Any:
    if name == "none":
        return None
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=1e-3, scale_parameter=False, relative_step=False)
    if name == "adamw-fused":
        return torch.optim.AdamW(trained, lr=1e-5, fused=True)
    if name.startswith("sgd"):
        return torch.optim.SGD(trained, lr=1e-5, momentum=0.9 if name == "sgd-momentum" else 0, foreach=True)
    return torch.optim.AdamW(trained, lr=1e-5, foreach=True)


def keep_on_host(history: History) -> None:
    """Under CPU offload, optimizer states and the whole optimizer step are the host's."""
    in_step = _births_in(history, "optimizer step")
    for record in history.records:
        if record.component == "optimizer" or record.number in in_step:
            record.host = True


def _births_in(history: History, phase: str) -> set[int]:
    return {
        event - 1
        for span, end in spans(history)
        if span.phase == phase
        for event in history.events[span.start : end]
        if event > 0
    }
