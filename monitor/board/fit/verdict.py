"""The verdicts: whether a job fits."""

from typing import Literal

Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]
VERDICTS_BEST_FIRST: tuple[Verdict, ...] = ("fits", "tight", "unknown", "does_not_fit")
