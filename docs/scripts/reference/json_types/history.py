"""The JSON of ``vramtop history``."""

from typing import Annotated, Any

from vramtop.estimator.common.fields_of import FieldsOf
from vramtop.estimator.learning.measurement import Measurement

from .versioned import Versioned


class HistoryJson(Versioned):
    """The runs that were measured on this account."""

    runs: list[Annotated[dict[str, Any], FieldsOf(Measurement)]]
    """The runs, the newest first."""


class ForgottenJson(Versioned):
    """How many runs were removed (`--forget`)."""

    forgotten: int
    """Number of runs."""
