"""The errors of a job's prediction, given what was measured of others: normal, shrunk to zero when evidence is thin.

Each mechanism's error in a job is normal with the standard deviation that the calibrated ranges say, and the errors of
two jobs are correlated as their kinship says and as the time between them leaves. Some things are not known beforehand
and are averaged over, each by how well it explains the measurements: by how much the calibrated ranges are too narrow
for this user's stack, how much of their errors jobs share, and whether one of them is not what it seemed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, log, sqrt
from typing import NamedTuple

from .evidence import DAY, Evidence, Scales
from .gaussian import posterior
from .kinship import MECHANISMS, STEP, Mechanism, kinship
from .subject import Subject

MOST_JOBS = 6
"""Measured jobs that are used, the nearest ones: time grows with the cube."""
_MEMORY_DAYS = 500.0
"""Time in which the correlation of two errors falls to 1/e: what makes an error may change without a version."""


class _Choice(NamedTuple):
    """A value of something that is not known beforehand, and its probability."""

    value: float
    share: float


_FIXED_SCALES = (_Choice(1.0, 0.88), _Choice(40.0, 0.12))
"""Factors on the standard deviation of ``fixed``: a run may hold a whole copy of the weights that
the prediction does not have, which no calibrated range allows for."""
_TOKEN_SCALES = (_Choice(1.0, 0.66), _Choice(3.0, 0.32), _Choice(10.0, 0.02))
"""The same for ``tokens``."""
_OTHER_SCALES = (_Choice(1.0, 0.75), _Choice(3.0, 0.25))
"""The same for the other mechanisms."""
_SHARED = (_Choice(1.0, 0.55), _Choice(0.6, 0.25), _Choice(0.1, 0.2))
"""How much of what the kinship says two jobs do share: errors may be of each job's own."""
_CERTAIN = (_Choice(1.0, 1.0),)
"""Of mechanisms of which nothing was seen, nothing but the calibration is known."""
_KNOWN_SHARE = 0.3
_WRONG, _WRONG_SAME = 0.2, 0.05
"""Probability that the runs of one job are of another job than they seemed, and that one run of the very job is."""
_WRONG_SHARE = 0.35
"""Standard deviation of the figures of such a job, as a share of what was predicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointErrors:
    """Expected errors of one prediction, in bytes, and their uncertainty."""

    mechanisms: dict[Mechanism, float]
    """Expected error by mechanism."""
    allocated: float
    """Standard deviation of the error of the allocated bytes that remains."""
    reserved: float
    device: float


_FIGURES: tuple[tuple[Mechanism, ...], ...] = (STEP, (*STEP, "slack"), MECHANISMS)
"""The mechanisms whose errors add up in the allocated, the reserved and the device's bytes."""


def joint_errors(evidence: Sequence[Evidence], subject: Subject, own: Scales, now: float) -> JointErrors:
    """Return the errors to be expected of a prediction.

    Args:
        evidence: measured jobs, ``MOST_JOBS`` at most.
        subject: what is predicted.
        own: standard deviations of its errors.
        now: Unix seconds.
    """
    model = _Model(evidence, subject, own, now)
    answers = list(model.answers())
    most = max(weight for weight, _, _ in answers)
    shares = [exp(weight - most) for weight, _, _ in answers]
    total = sum(shares)
    count = len(answers[0][1])
    means = [
        sum(share * each[1][at] for share, each in zip(shares, answers, strict=True)) / total for at in range(count)
    ]
    spreads = [
        sqrt(
            sum(
                share * (each[2][at] + (each[1][at] - means[at]) ** 2)
                for share, each in zip(shares, answers, strict=True)
            )
            / total
        )
        for at in range(count)
    ]
    first, few = len(MECHANISMS), _student(evidence)
    return JointErrors(
        mechanisms=dict(zip(MECHANISMS, means, strict=False)),
        allocated=few * spreads[first],
        reserved=few * spreads[first + 1],
        device=few * spreads[first + 2],
    )


def _student(evidence: Sequence[Evidence]) -> float:
    """Return how much wider Student's range of nine in ten is than the normal one, for so few jobs or runs.

    The first terms of its expansion in the degrees of freedom (Abramowitz and Stegun, 26.7.5).
    """
    known = max([len(evidence), *(len(each.runs) for each in evidence if each.same)]) + 2
    return 1 + 0.926 / known + 0.863 / known**2


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """What is assumed to be known: factors on the standard deviations, and the part of the errors that jobs share."""

    factors: dict[Mechanism, float]
    shared: float
    share: float
    """Its probability beforehand."""


class _Model:
    """The covariances of one question."""

    def __init__(self, evidence: Sequence[Evidence], subject: Subject, own: Scales, now: float) -> None:
        self._evidence = evidence
        self._rows = [(at, error) for at, each in enumerate(evidence) for error in each.errors]
        unknowns: list[tuple[Mechanism, ...]] = [*((each,) for each in MECHANISMS), *_FIGURES]
        self._unknowns = unknowns
        subjects = [*(each.subject for each in evidence), subject]
        times = [*(min(each.time, now) for each in evidence), now]
        all_scales = [*(each.scales for each in evidence), own]
        target = len(evidence)
        self._kin = [[_kin(subjects, times, one, other) for other in range(target + 1)] for one in range(target + 1)]
        self._same = [at for at, each in enumerate(evidence) if each.same]
        sums = [(at, error.mechanisms) for at, error in self._rows]
        asked = [(target, names) for names in unknowns]
        self._blocks = {
            name: [
                [
                    self._kin[one][other][name] * all_scales[one].of(name) * all_scales[other].of(name)
                    if name in mine and name in its
                    else 0.0
                    for other, its in sums
                ]
                for one, mine in (*sums, *asked)
            ]
            for name in MECHANISMS
        }
        self._own = [[own.of(name) ** 2 if name in names else 0.0 for name in MECHANISMS] for names in unknowns]

    def answers(self) -> Iterator[tuple[float, Sequence[float], Sequence[float]]]:
        """Yield, for each hypothesis, the logarithm of its weight, and means and variances of the unknowns."""
        sizes = [error.size for _, error in self._rows]
        count = len(sizes)
        for assumed in self._hypotheses():
            whole = self._whole(assumed)
            cross = whole[count:]
            squares = [assumed.factors[name] ** 2 for name in MECHANISMS]
            prior = [sum(square * size for square, size in zip(squares, row, strict=True)) for row in self._own]
            for wrong, share in self._wrong():
                noisy = [list(row) for row in whole[:count]]
                for at, (job, error) in enumerate(self._rows):
                    noisy[at][at] += error.noise**2
                    if job == wrong:
                        noisy[at][at] += (_WRONG_SHARE * self._evidence[job].predicted.device_bytes) ** 2
                found = posterior(sizes, noisy, cross, prior)
                yield log(assumed.share * share) + found.log_evidence, found.means, found.variances

    def _hypotheses(self) -> Iterator[_Hypothesis]:
        fixed = _FIXED_SCALES if self._is_known("fixed") else _CERTAIN
        tokens = _TOKEN_SCALES if self._is_known("tokens") else _CERTAIN
        other = _OTHER_SCALES if self._is_known("slack", "context", "nccl") else _CERTAIN
        for one, two, three, shared in product(fixed, tokens, other, _SHARED):
            factors = {name: {"fixed": one, "tokens": two}.get(name, three).value for name in MECHANISMS}
            yield _Hypothesis(factors, shared.value, one.share * two.share * three.share * shared.share)

    def _wrong(self) -> Iterator[tuple[int | None, float]]:
        """Yield the job that is not what it seemed (None: there is none) and the probability of that.

        That several runs of the very job that is asked about are not what they seemed is as good as impossible: the
        next one will be like them.
        """
        yield None, 1.0
        for at, each in enumerate(self._evidence):
            yield at, _WRONG_SAME ** len(each.runs) if each.same else _WRONG

    def _is_known(self, *mechanisms: Mechanism) -> bool:
        """Return True if something was seen of one of these mechanisms' errors in what is asked about."""
        return any(
            self._kin[-1][at][name] >= _KNOWN_SHARE
            for at, error in self._rows
            for name in error.mechanisms
            if name in mechanisms
        )

    def _whole(self, assumed: _Hypothesis) -> list[list[float]]:
        """Return the covariances of observations (and, below them, of the unknowns) with the observations."""
        squares = [(assumed.factors[name] ** 2, self._blocks[name]) for name in MECHANISMS]
        jobs = [at for at, _ in self._rows]
        target = len(self._evidence)
        rows = []
        for at, one in enumerate((*jobs, *(target for _ in self._unknowns))):
            shared = [1.0 if self._is_one_job(one, other) else assumed.shared for other in jobs]
            rows.append(
                [
                    part * sum(square * block[at][column] for square, block in squares)
                    for column, part in enumerate(shared)
                ]
            )
        return rows

    def _is_one_job(self, one: int, other: int) -> bool:
        return one == other or (one == len(self._evidence) and other in self._same)


def _kin(subjects: Sequence[Subject], times: Sequence[float], one: int, other: int) -> dict[Mechanism, float]:
    if one == other:
        return dict.fromkeys(MECHANISMS, 1.0)
    fading = exp(-abs(times[one] - times[other]) / DAY / _MEMORY_DAYS)
    return {name: fading * share for name, share in kinship(subjects[one], subjects[other]).items()}
