"""The JSON of ``vramtop history``."""

from vramtop.estimator.learning.measurement_json import MeasurementJson

from .versioned import Versioned


class HistoryJson(Versioned):
    """The runs that were measured on this account."""

    runs: list[MeasurementJson]
    """The runs, the newest first."""


class ForgottenJson(Versioned):
    """How many runs were removed (`--forget`)."""

    forgotten: int
    """Number of runs."""
