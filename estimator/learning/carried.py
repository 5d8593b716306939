"""A correction carried to a changed job, for searches and sweeps: the job's own errors, without the measurements.

What is known of a job's errors is taken as known; in the changed job each mechanism's error is the part that the two
share, in proportion to the bytes in doubt.
"""

from dataclasses import replace

from ..budget import Budget, Peak
from .correction import even_sides, spread_errors
from .evidence import Scales, scales
from .joint_errors import JointErrors
from .kinship import MECHANISMS, STEP, Mechanism, kinship
from .measurement import Predicted
from .subject import Subject


def carried(changed: Budget, like: Budget) -> Budget:
    """Return the budget of a changed job corrected like the job itself; as it is where that was not corrected.

    Args:
        changed: of the changed job, not corrected.
        like: of the job; its correction is carried over.
    """
    learned = like.learned
    if learned is None or changed.learned is not None:
        return changed
    before = Predicted.of(like, "")
    after = Predicted.of(changed, "")
    shares = kinship(_subject(changed, after), _subject(like, before))
    had, has = scales(before), scales(after)
    errors: dict[Mechanism, float] = {
        name: shares[name] * _ratio(has, had, name) * learned.errors.get(name, 0) for name in MECHANISMS
    }
    kept = {figure: _kept(like.peak, learned.uncorrected, figure) for figure in ("allocated", "reserved", "device")}
    share = min(shares["tokens"], shares["fixed"])
    left = {figure: (share * share * known * known + 1 - share * share) ** 0.5 for figure, known in kept.items()}
    found = JointErrors(
        mechanisms=errors,
        allocated=left["allocated"] * has.joint(STEP),
        reserved=left["reserved"] * has.joint((*STEP, "slack")),
        device=left["device"] * has.joint(MECHANISMS),
    )
    return replace(spread_errors(changed, after, found, has), learned=None)


def _subject(budget: Budget, predicted: Predicted) -> Subject:
    """Return the subject of a search: model and place are the same for all of its jobs."""
    return Subject(job=budget.job, shape="", hidden="", card=None, machine="", peak=predicted.phase)


def _ratio(has: Scales, had: Scales, name: Mechanism) -> float:
    return has.of(name) / had.of(name) if had.of(name) else 0.0


def _kept(after: Peak, before: Peak, figure: str) -> float:
    """Return how wide the corrected range is, as a share of the uncorrected one."""
    spans = getattr(after, f"{figure}_range"), getattr(before, f"{figure}_range")
    if spans[0] is None or spans[1] is None:
        return 1.0
    width: int = spans[0].high_bytes - spans[0].low_bytes
    return width / max(1.0, sum(even_sides(spans[1], getattr(before, f"{figure}_bytes"))))
