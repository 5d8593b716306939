"""Gaussian regression in plain Python: small dense matrices, by Cholesky's decomposition."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi, sqrt

Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True)
class Posterior:
    """What observations say about some unknowns, and how well the assumed covariance explains them."""

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
        means.append(sum(weight * each for weight, each in zip(weights, whitened, strict=True)))
        variances.append(max(0.0, own - sum(weight * weight for weight in weights)))
    fit = sum(each * each for each in whitened)
    volume = 2 * sum(log(lower[at][at]) for at in range(len(lower)))
    return Posterior(tuple(means), tuple(variances), -0.5 * (fit + volume + len(observed) * log(2 * pi)))


def _cholesky(matrix: Matrix) -> list[list[float]]:
    """Return the lower triangle whose product with its transpose is the matrix."""
    lower: list[list[float]] = []
    for at, row in enumerate(matrix):
        new: list[float] = []
        for column in range(at):
            other = lower[column]
            rest = row[column] - sum(one * its for one, its in zip(new, other, strict=False))
            new.append(rest / other[column])
        own = row[at] - sum(each * each for each in new)
        new.append(sqrt(max(own, 1e-9 * abs(row[at]), 1e-300)))
        lower.append(new)
    return lower


def _forward(lower: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """Solve ``lower x = values``."""
    solved: list[float] = []
    for row, value in zip(lower, values, strict=True):
        rest = value - sum(one * each for one, each in zip(row, solved, strict=False))
        solved.append(rest / row[-1])
    return solved
