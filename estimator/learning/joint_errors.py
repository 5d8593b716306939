"""The errors of a job's prediction, given what was measured of others: normal, shrunk to zero when evidence is thin.

Each mechanism's error in a job has two parts, both normal: one that it shares with other jobs, as far as their kinship
and the time between them leave it, and one of its own. How large either is on this user's stack, next to what the
calibrated ranges say, is not known beforehand, nor whether one of the measured jobs is not what it seemed: these are
averaged over, each by how well it explains the measurements. Mechanisms that no observation joins are independent: that
two jobs have the same CUDA context says nothing of whether they share what a token takes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, hypot, log, sqrt
from typing import NamedTuple

from .evidence import DAY, Error, Evidence, Scales
from .gaussian import posterior
from .kinship import MECHANISMS, STEP, Mechanism, kinship
from .subject import Subject

MOST_JOBS = 6
"""Measured jobs that are used, the nearest ones: time grows with the cube."""
_MEMORY_DAYS = 500.0
"""Time in which the correlation of two errors falls to 1/e: what makes an error may change without a version."""


class _Parts(NamedTuple):
    """The parts of a mechanism's error, as shares of what the calibrated ranges say, and the probability of that."""

    shared: float
    own: float
    share: float = 1.0


def _each(shared: Mapping[float, float], own: Mapping[float, float]) -> tuple[_Parts, ...]:
    return tuple(_Parts(one, two, had * share) for one, had in shared.items() for two, share in own.items())


_FIXED = _each({1.0: 0.8, 40.0: 0.2}, {0.0: 1.0})
"""Prior of ``fixed``: a run may hold a whole copy of the weights that the prediction does not have; no calibrated range
allows for that."""
_TOKENS = _each({0.3: 0.2, 1.0: 0.46, 3.0: 0.32, 10.0: 0.02}, {0.1: 0.25, 0.7: 0.25, 2.0: 0.25, 4.0: 0.25})
"""Prior of ``tokens``: nothing says how large the own part of a job is, so each size has the same chance."""
_OTHERS = _each({1.0: 0.75, 3.0: 0.25}, {0.1: 0.5, 0.7: 0.5})
"""Prior of the other mechanisms."""
_CALIBRATED = (_Parts(1.0, 0.0),)
"""Prior of mechanisms of which nothing was seen: nothing but the calibration is known."""
_KNOWN_SHARE = 0.3
"""Least kinship with a measured job at which something was seen of a mechanism."""
_WRONG, _WRONG_SAME = 0.3, 0.05
"""Probability that the runs of one job are of another job than they seemed, and that one run of the very job is."""
_WRONG_SHARE = 1.0
"""Standard deviation of the step of such a job, as a share of what was predicted: it may be anything."""
_WRONG_OTHERS = 2.0
"""Standard deviation of its allocator and context, as a share of the calibrated ranges: these are of the machine."""
_FIGURES: tuple[tuple[Mechanism, ...], ...] = (STEP, (*STEP, "slack"), MECHANISMS)
"""The mechanisms whose errors add up in the allocated, the reserved and the device's bytes."""
_UNKNOWNS: tuple[tuple[Mechanism, ...], ...] = (*((each,) for each in MECHANISMS), *_FIGURES)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointErrors:
    """Expected errors of one prediction, in bytes, and their uncertainty."""

    mechanisms: dict[Mechanism, float]
    """Expected error by mechanism."""
    allocated: float
    """Standard deviation of the error of the allocated bytes that remains."""
    reserved: float
    device: float

    def of_a_run(self, noise: tuple[float, float, float]) -> "JointErrors":
        """Return the errors of one run of the job.

        Args:
            noise: standard deviations of a run's allocated, reserved and device bytes from those of its job.
        """
        allocated, reserved, device = map(hypot, (self.allocated, self.reserved, self.device), noise)
        return replace(self, allocated=allocated, reserved=reserved, device=device)


class _Answer(NamedTuple):
    """Logarithm of the weight of what is assumed, and means and variances of the unknowns under it."""

    weight: float
    means: tuple[float, ...]
    variances: tuple[float, ...]


def joint_errors(evidence: Sequence[Evidence], subject: Subject, own: Scales, now: float) -> JointErrors:
    """Return the errors to be expected of a prediction.

    Args:
        evidence: measured jobs, ``MOST_JOBS`` at most.
        subject: what is predicted.
        own: standard deviations of its errors.
        now: Unix seconds.
    """
    jobs = _Jobs(evidence, subject, own, now)
    groups = [_Group(jobs, names) for names in _joined(evidence)]
    found = _average([_sum(share, [group.answer(wrong) for group in groups]) for wrong, share in _wrong(evidence)])
    first, few = len(MECHANISMS), _student(evidence)
    allocated, reserved, device = (few * sqrt(variance) for variance in found.variances[first:])
    return JointErrors(
        mechanisms=dict(zip(MECHANISMS, found.means, strict=False)),
        allocated=allocated,
        reserved=reserved,
        device=device,
    )


def _student(evidence: Sequence[Evidence]) -> float:
    """Return how much wider Student's range of nine in ten is than the normal one, for so few jobs or runs.

    The first terms of its expansion in the degrees of freedom (Abramowitz and Stegun, 26.7.5).
    """
    known = max([len(evidence), *(len(each.runs) for each in evidence if each.same)]) + 2
    return 1 + 0.926 / known + 0.863 / known**2


def _wrong(evidence: Sequence[Evidence]) -> Iterator[tuple[int | None, float]]:
    """Yield the job that is not what it seemed (None: there is none) and the probability of that.

    That several runs of the very job that is asked about are not what they seemed is as good as impossible: the
    next one will be like them.
    """
    yield None, 1.0
    for at, each in enumerate(evidence):
        yield at, _WRONG_SAME ** len(each.runs) if each.same else _WRONG


def _joined(evidence: Sequence[Evidence]) -> list[frozenset[Mechanism]]:
    """Return the mechanisms in groups: those whose errors were seen as one sum are in one."""
    groups = [frozenset[Mechanism]((name,)) for name in MECHANISMS]
    for each in evidence:
        for error in each.errors:
            met = [group for group in groups if not group.isdisjoint(error.mechanisms)]
            groups = [group for group in groups if group not in met]
            groups.append(frozenset[Mechanism]().union(*met))
    return groups


def _average(answers: Sequence[_Answer]) -> _Answer:
    """Return the mean and the variance over all that may be assumed, and its weight as a whole."""
    most = max(each.weight for each in answers)
    shares = [exp(each.weight - most) for each in answers]
    total = sum(shares)
    means, variances = [], []
    for at in range(len(_UNKNOWNS)):
        mean = sum(share * each.means[at] for share, each in zip(shares, answers, strict=True)) / total
        squares = (each.variances[at] + (each.means[at] - mean) ** 2 for each in answers)
        means.append(mean)
        variances.append(sum(share * square for share, square in zip(shares, squares, strict=True)) / total)
    return _Answer(most + log(total), tuple(means), tuple(variances))


def _sum(share: float, answers: Sequence[_Answer]) -> _Answer:
    """Return the answer of independent groups together, with the probability of what they all assume."""
    return _Answer(
        log(share) + sum(each.weight for each in answers),
        tuple(map(sum, zip(*(each.means for each in answers), strict=True))),
        tuple(map(sum, zip(*(each.variances for each in answers), strict=True))),
    )


class _Jobs:
    """The measured jobs and, after them, the one that is asked about: kinship of each two."""

    def __init__(self, evidence: Sequence[Evidence], subject: Subject, own: Scales, now: float) -> None:
        self.evidence = evidence
        self.scales = [*(each.scales for each in evidence), own]
        self.target = len(evidence)
        subjects = [*(each.subject for each in evidence), subject]
        times = [*(min(each.time, now) for each in evidence), now]
        every = range(len(subjects))
        self.kin = [[_kin(subjects, times, one, other) for other in every] for one in every]
        same = {self.target, *(at for at, each in enumerate(evidence) if each.same)}
        self.one_job = [[one == other or {one, other} <= same for other in every] for one in every]


class _Group:
    """The observations of some mechanisms and their covariances, whatever is assumed."""

    def __init__(self, jobs: _Jobs, names: frozenset[Mechanism]) -> None:
        self._rows = [
            (at, error) for at, each in enumerate(jobs.evidence) for error in each.errors if names & {*error.mechanisms}
        ]
        self._sizes = [error.size for _, error in self._rows]
        self._noises = [
            (at, error.noise**2, _noise_of_wrong(jobs.evidence[at], error) ** 2) for at, error in self._rows
        ]
        sums = [(at, error.mechanisms) for at, error in self._rows]
        asked = [(jobs.target, tuple(names & {*figure})) for figure in _UNKNOWNS]
        known = {
            name for at, mechanisms in sums for name in mechanisms if jobs.kin[jobs.target][at][name] >= _KNOWN_SHARE
        }
        choices = [
            _FIXED if "fixed" in known else _CALIBRATED,
            _TOKENS if "tokens" in known else _CALIBRATED,
            _OTHERS if known.difference(STEP) else _CALIBRATED,
        ]
        self._assumed = []
        for fixed, tokens, others in product(*choices):
            parts = {name: {"fixed": fixed, "tokens": tokens}.get(name, others) for name in names}
            covariance = [[_covariance(jobs, parts, one, other) for other in sums] for one in (*sums, *asked)]
            prior = [_covariance(jobs, parts, one, one) for one in asked]
            self._assumed.append((fixed.share * tokens.share * others.share, covariance, prior))

    def answer(self, wrong: int | None) -> _Answer:
        """Return what these observations say if one job is not what it seemed."""
        count = len(self._rows)
        answers = []
        for share, covariance, prior in self._assumed:
            noisy = [list(row) for row in covariance[:count]]
            for at, (job, noise, more) in enumerate(self._noises):
                noisy[at][at] += noise + more * (job == wrong)
            found = posterior(self._sizes, noisy, covariance[count:], prior)
            answers.append(_Answer(log(share) + found.log_evidence, found.means, found.variances))
        return _average(answers)


def _covariance(
    jobs: _Jobs,
    parts: Mapping[Mechanism, _Parts],
    one: tuple[int, tuple[Mechanism, ...]],
    other: tuple[int, tuple[Mechanism, ...]],
) -> float:
    """Return the covariance of two sums of errors, each of a job."""
    mine, its = one[0], other[0]
    kin, first, second = jobs.kin[mine][its], jobs.scales[mine], jobs.scales[its]
    is_one = jobs.one_job[mine][its]
    return sum(
        kin[name] * first.of(name) * second.of(name) * (parts[name].shared ** 2 + is_one * parts[name].own ** 2)
        for name in one[1]
        if name in other[1]
    )


def _noise_of_wrong(evidence: Evidence, error: Error) -> float:
    """Return the standard deviation that an observation has more if its job is not what it seemed."""
    if any(name in STEP for name in error.mechanisms):
        return _WRONG_SHARE * evidence.predicted.device_bytes
    return _WRONG_OTHERS * evidence.scales.joint(error.mechanisms)


def _kin(subjects: Sequence[Subject], times: Sequence[float], one: int, other: int) -> dict[Mechanism, float]:
    if one == other:
        return dict.fromkeys(MECHANISMS, 1.0)
    fading = exp(-abs(times[one] - times[other]) / DAY / _MEMORY_DAYS)
    return {name: fading * share for name, share in kinship(subjects[one], subjects[other]).items()}
