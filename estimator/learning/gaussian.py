"""Gaussian regression in plain Python: small dense matrices, by Cholesky's decomposition."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi, sqrt
from operator import mul

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Posterior:
    """Estimate of some unknowns from observations, and how well the assumed covariance explains these."""

    means: tuple[float, ...]
    variances: tuple[float, ...]
    log_evidence: float


def posterior(observed: Sequence[float], covariance: Matrix, cross: Matrix, prior: Sequence[float]) -> Posterior:
    """Return means and variances of unknowns that are jointly normal with the observations, all with mean zero.

    Args:
        observed: the observations.
        covariance: of the observations, noise included.
        cross: of each unknown (a row) with each observation.
        prior: variance of each unknown.
    """
    lower = _cholesky(covariance)
    whitened = _forward(lower, observed)
    means, variances = [], []
    for row, own in zip(cross, prior, strict=True):
        weights = _forward(lower, row)
        means.append(sum(map(mul, weights, whitened)))
        variances.append(max(0.0, own - sum(map(mul, weights, weights))))
    fit = sum(map(mul, whitened, whitened))
    volume = 2 * sum(log(lower[at][at]) for at in range(len(lower)))
    return Posterior(tuple(means), tuple(variances), -0.5 * (fit + volume + len(observed) * log(2 * pi)))


def _cholesky(matrix: Matrix) -> list[list[float]]:
    """Return the lower triangle whose product with its transpose is the matrix."""
    lower: list[list[float]] = []
    for at, row in enumerate(matrix):
        new: list[float] = []
        for column in range(at):
            other = lower[column]
            rest = row[column] - sum(map(mul, new, other))
            new.append(rest / other[column])
        own = row[at] - sum(map(mul, new, new))
        new.append(sqrt(max(own, 1e-9 * abs(row[at]), 1e-300)))
        lower.append(new)
    return lower


def _forward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Solve ``lower x = values``."""
    solved: list[float] = []
    for row, value in zip(lower, values, strict=True):
        rest = value - sum(map(mul, row, solved))  # as far as it is solved
        solved.append(rest / row[-1])
    return solved
