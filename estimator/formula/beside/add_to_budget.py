"""Adds the models beside the trained one to a budget: weights in every phase, a forward pass in the step.

Their forward pass runs before the trained model's, or after it, when that one's activations exist: the budget takes the
later one, and the range allows for both. Logits of a teacher exist until the loss is computed from them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...budget import Budget, Peak, Phase, RankPeak
from ...common import format_gib
from ...job import resolve_job
from .held_models import HeldBytes, HeldModel, held_bytes

_RETAINED_SHARE = 0.6
"""Share of the forward pass's peak of logits and loss that is left when the loss has been computed."""
_ROLES_WITH_LOGITS = ("teacher",)
"""Roles whose logits the loss compares with the trained model's, position by position."""

_NAMES = {"ema": "a moving average of the weights", "other": "another model"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sum:
    """Bytes of all held models."""

    weights: int
    host: int
    passing: int
    """Most that a forward pass takes, besides logits."""
    logits: int
    """Most logits of one forward pass."""
    retained: int
    """Logits that exist until the loss is computed."""
    doubtful: int
    """Bytes that a program may make besides: fp32 logits, and keys and values."""


def with_other_models(budget: Budget, held: Sequence[HeldModel]) -> Budget:
    """Return the budget with the models that are held beside the trained one.

    Raises:
        InputError: one cannot be spread as the job is.
    """
    if not held:
        return budget
    job = resolve_job(budget.job)
    found = [(each, held_bytes(job, each)) for each in held]
    total = _sum(found)
    phases = tuple(_phase(phase, total) for phase in budget.phases)
    highest = max(phases, key=lambda phase: phase.components.total_bytes)
    before = next(phase for phase in budget.phases if phase.name == budget.peak.phase)
    peak = _peak(budget.peak, before, highest, total)
    host = budget.host
    if host is not None and total.host:
        host = replace(host, weights=host.weights + total.host)
    assumed = [each.assumed for each in held if each.assumed]
    return replace(
        budget,
        phases=phases,
        peak=peak,
        steady_device_bytes=peak.device_bytes,
        host=host,
        stages=tuple(_rank_peak(each, budget.peak, peak) for each in budget.stages),
        assumptions=(*budget.assumptions, *_sentences(found)),
        warnings=(*budget.warnings, *assumed),
    )


def _sum(found: Sequence[tuple[HeldModel, HeldBytes]]) -> _Sum:
    retained = sum(held.model.count * each.logits for held, each in found if held.model.role in _ROLES_WITH_LOGITS)
    return _Sum(
        weights=sum(each.weights for _, each in found),
        host=sum(each.host_weights for _, each in found),
        passing=max((each.temporary + each.gathered for _, each in found), default=0),
        logits=max((each.logits for _, each in found), default=0),
        retained=retained,
        doubtful=max((each.wide_logits + each.cache for _, each in found), default=0)
        + sum(each.weights for held, each in found if held.assumed),
    )


def _phase(phase: Phase, total: _Sum) -> Phase:
    """Return a phase with the held models."""
    own = phase.components
    weights = own.weights + total.weights
    if phase.name not in ("forward", "backward"):
        return replace(phase, components=replace(own, weights=weights))
    found = replace(own, weights=weights, logits=own.logits + total.retained)
    if phase.name == "forward" and total.passing:
        running = replace(
            own,
            weights=weights,
            logits=round(_RETAINED_SHARE * own.logits) + max(total.logits, total.retained),
            temporary=own.temporary + total.passing,
        )
        found = max(found, running, key=lambda components: components.total_bytes)
    return replace(phase, components=found)


def _peak(peak: Peak, before: Phase, highest: Phase, total: _Sum) -> Peak:
    """Return the peak with the held models, given its phase without them, and the highest one with them."""
    more = highest.allocated_bytes - before.allocated_bytes
    device = peak.device_bytes + more
    passing = max(0, more - total.weights)
    moved = peak.with_ranges(lambda span: span.moved(more, less=passing + _assumed(total), more=total.doubtful))
    return replace(
        moved,
        phase=highest.name,
        components=highest.components,
        allocated_bytes=highest.allocated_bytes,
        reserved_bytes=peak.reserved_bytes + more,
        device_bytes=device,
    )


def _assumed(total: _Sum) -> int:
    return min(total.weights, total.doubtful)


def _rank_peak(rank: RankPeak, before: Peak, after: Peak) -> RankPeak:
    return RankPeak(
        device_bytes=rank.device_bytes + after.device_bytes - before.device_bytes,
        low_bytes=rank.low_bytes + after.low_bytes - before.low_bytes,
        high_bytes=rank.high_bytes + after.high_bytes - before.high_bytes,
    )


def _sentences(found: Sequence[tuple[HeldModel, HeldBytes]]) -> Iterator[str]:
    for held, each in found:
        model = held.model
        times = f"{model.count} times " if model.count > 1 else ""
        name = {"ema": "a moving average of the weights", "other": "another model"}.get(
            model.role, f"a {model.role} model"
        )
        size = format_gib(each.weights if model.on_gpu else each.host_weights)
        where = f"{size} GiB of weights" if model.on_gpu else f"in host memory, {size} GiB"
        runs = "; its forward pass runs without a graph" if model.on_gpu and model.runs_forward else ""
        yield f"Beside the trained model there is {times}{name} ({held.label}), {where}{runs}."
