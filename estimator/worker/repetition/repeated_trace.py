"""The trace of a deep model from traces of shallow ones, or none where it cannot be proven equal to the full one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..step.training_steps import TracedSteps, trace_steps
from .extrapolation import SAMPLES, extrapolate
from .shallow_models import plan_shallow_models

if TYPE_CHECKING:
    from ..request.request import Request


def trace_layers(request: Request) -> TracedSteps:
    """Trace as few layers as show the pattern, or all of them."""
    return trace_repeated(request) or trace_steps(request)


def trace_repeated(request: Request) -> TracedSteps | None:
    """Return the trace of a model whose layers repeat, extrapolated; None: its layers have to be traced one by one."""
    try:
        plan = plan_shallow_models(request)
        if plan is None:
            return None
        samples: list[TracedSteps] = []
        for config in plan.configs:
            samples.append(trace_steps(replace(request, config=config), whole=plan.whole))
            if len(samples) >= SAMPLES:
                found = _extrapolated(samples[-SAMPLES:], plan.rounds - (len(samples) - SAMPLES))
                if found is not None:
                    return found
    except Exception:  # noqa: BLE001 - whatever is wrong with a shallow model, the whole one gives the answer
        return None
    return None


def _extrapolated(samples: list[TracedSteps], rounds: int) -> TracedSteps | None:
    counts = [_linear([getattr(each, name) for each in samples], rounds) for name in _COUNTS]
    if None in counts:
        return None
    history = extrapolate([each.history for each in samples], [each.gradients for each in samples], rounds)
    if history is None:
        return None
    values: dict[str, Any] = dict(zip(_COUNTS, counts))  # noqa: B905 - not in Python 3.9
    return TracedSteps(history=history, **values)


_COUNTS = ("parameters", "trainable", "gradients")


def _linear(values: list[int], rounds: int) -> int | None:
    zero, one, two = values
    return zero + rounds * (one - zero) if two - one == one - zero else None
