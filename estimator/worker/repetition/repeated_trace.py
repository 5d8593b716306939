"""The trace of a deep model from traces of shallow ones, or none where it cannot be proven equal to the full one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .extrapolation import SAMPLES, extrapolate
from .shallow_models import plan_shallow_models

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence as Many

    from ..memory.history import AllocationHistory


@dataclass(frozen=True)
class TracedSteps:
    """Result of a trace."""

    history: AllocationHistory
    parameters: int
    trainable: int
    gradients: int
    """Number of tensors that are trained; the rank holds a part of each."""
    doubts: tuple[str, ...]
    """Sentences about what the figures depend on and is not known."""
    versions: dict[str, str]
    """Versions of the libraries that took part."""


def trace_repeated(
    trace: Callable[[Many[dict[str, Any]]], list[TracedSteps]], config: dict[str, Any], task: str, least: int
) -> TracedSteps | None:
    """Return the trace of a model whose layers repeat, extrapolated; None: its layers have to be traced one by one.

    Args:
        trace: traces models with each of these configs.
        config: of the whole model.
        task: its head.
        least: rounds of the shallowest model that is traced: the first and the last often differ.
    """
    try:
        plan = plan_shallow_models(config, task, least)
        if plan is None:
            return None
        samples = trace(plan.configs[:SAMPLES])
        for extra in range(len(plan.configs) - SAMPLES + 1):
            if extra:
                samples += trace(plan.configs[SAMPLES + extra - 1 : SAMPLES + extra])
            found = _extrapolated(samples[-SAMPLES:], plan.rounds - extra)
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
    doubts = dict.fromkeys(sentence for each in samples for sentence in each.doubts)
    return TracedSteps(history=history, doubts=tuple(doubts), versions=samples[0].versions, **values)


_COUNTS = ("parameters", "trainable", "gradients")


def _linear(values: list[int], rounds: int) -> int | None:
    zero, one, two = values
    return zero + rounds * (one - zero) if two - one == one - zero else None
