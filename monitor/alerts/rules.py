"""Rules: what an alert is about, and how long its condition must hold and be gone.

Names, thresholds and times are those of ``export/vramtop_rules.yml``: Prometheus and the terminal say the same,
unless the user's settings choose other times or leave a rule out (``alerts_off``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from vramtop.estimator.common.sizes import GIB

from ..storage.settings.schema import ALERTS

if TYPE_CHECKING:
    from collections.abc import Mapping


Severity = Literal["critical", "warning"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning")
"""Worst first."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of alert."""

    name: str
    """Name of the rule, as in the Prometheus rules."""
    title: str
    """In a few words."""
    condition: str
    """What must hold, for the documentation."""
    severity: Severity = "warning"
    fires_after: float
    """Seconds for which the condition must hold."""
    clears_after: float = 60.0
    """Seconds for which it must be gone; Prometheus has no such time here."""


OVER_BUDGET = Rule(
    name="VramtopJobOverBudget",
    title="over its budget",
    condition="a run is above the upper bound of its budget on some rank",
    fires_after=300,
)
GROWING = Rule(
    name="VramtopJobGrowing",
    title="growing",
    condition="a run that should be steady grows, and fills its GPU within 4 hours",
    fires_after=300,
    clears_after=300,
)
UNATTRIBUTED = Rule(
    name="VramtopUnattributedMemory",
    title="memory of no visible process",
    condition="more than 2 GiB of a GPU belong to no visible process",
    fires_after=900,
)
GPU_LOST = Rule(
    name="VramtopGpuLost",
    title="GPU lost",
    condition="a GPU cannot be read, or is not listed any more; one that sleeps is not lost",
    severity="critical",
    fires_after=120,
)
NO_READINGS = Rule(
    name="VramtopSamplerStale",
    title="no recent reading",
    condition="there is no recent reading",
    severity="critical",
    fires_after=60,
    clears_after=10,
)
FULL_WITHIN_SECONDS = 4 * 3600.0
"""Growth that fills the GPU later than that is no alert."""
MIN_UNATTRIBUTED_BYTES = 2 * GIB
"""Contexts of invisible helpers take some hundred MiB."""
RULES: Mapping[str, Rule] = dict(zip(ALERTS, (OVER_BUDGET, GROWING, UNATTRIBUTED, GPU_LOST, NO_READINGS), strict=True))
"""The rules by the word that settings have for them."""


def alerts_off(settings: Mapping[str, object]) -> frozenset[str]:
    """Return the names of the rules that ``alerts.off`` of the settings leaves out."""
    words = settings.get("alerts.off")
    return frozenset(RULES[word].name for word in (words if isinstance(words, tuple) else ()) if word in RULES)
