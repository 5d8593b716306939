"""The alerts that the user wants, and after how long each fires: the settings below ``alerts``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .rules import CANNOT_FIT, GPU_LOST, GROWING, HOST_SILENT, NO_READINGS, OVER_BUDGET, UNATTRIBUTED, Rule

if TYPE_CHECKING:
    from collections.abc import Mapping

RULES_BY_WORD: Mapping[str, tuple[Rule, ...]] = {
    "over_budget": (OVER_BUDGET,),
    "growing": (GROWING,),
    "does_not_fit": (CANNOT_FIT,),
    "unattributed": (UNATTRIBUTED,),
    "gpu_lost": (GPU_LOST,),
    "no_readings": (NO_READINGS, HOST_SILENT),
}
"""The rules by the word that settings have for them."""


@dataclass(frozen=True, slots=True)
class ChosenAlerts:
    """Which rules are left out, and other times after which some fire, by the names of the rules."""

    left_out: frozenset[str] = frozenset()
    fires_after: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, rule: Rule) -> float:
        """Return for how long a rule's condition must hold."""
        return self.fires_after.get(rule.name, rule.fires_after)


def chosen_alerts(settings: Mapping[str, object]) -> ChosenAlerts:
    """Return what the settings choose; those that are absent change nothing.

    Args:
        settings: by dotted name: ``alerts.off``, ``alerts.growing_after`` and so on.
    """
    off = settings.get("alerts.off")
    words = off if isinstance(off, tuple) else ()
    times = {word: settings.get(f"alerts.{word}_after") for word in RULES_BY_WORD}
    return ChosenAlerts(
        left_out=frozenset(rule.name for word in words for rule in RULES_BY_WORD.get(word, ())),
        fires_after={
            rule.name: float(seconds)
            for word, seconds in times.items()
            if isinstance(seconds, int | float)
            for rule in RULES_BY_WORD[word]
        },
    )
