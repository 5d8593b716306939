"""The rules: what an alert is about, and how long its condition must hold and be gone.

Names, thresholds and times are those of ``export/vramtop_rules.yml``: Prometheus and the terminal say the same, unless
the user's settings choose other times or leave a rule out (``chosen_alerts.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vramtop.estimator.common import GIB

Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""Worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One kind of alert."""

    name: str
    """Name of the rule, as in the Prometheus rules."""
    title: str
    """In a few words."""
    condition: str
    """What must hold, for the documentation."""
    severity: Severity
    fires_after: float
    """Seconds for which the condition must hold."""
    clears_after: float = 60.0
    """Seconds for which it must be gone; Prometheus has no such time here."""


OVER_BUDGET = Rule(
    name="VramtopJobOverBudget",
    title="over its budget",
    condition="a run is above the upper bound of its budget on some rank",
    severity="warning",
    fires_after=300,
)
GROWING = Rule(
    name="VramtopJobGrowing",
    title="growing",
    condition="a run that should be steady grows, and fills its GPU within 4 hours",
    severity="warning",
    fires_after=300,
    clears_after=300,
)
CANNOT_FIT = Rule(
    name="VramtopPendingJobCannotFit",
    title="does not fit",
    condition="a pending job does not fit",
    severity="info",
    fires_after=1800,
)
UNATTRIBUTED = Rule(
    name="VramtopUnattributedMemory",
    title="memory of no visible process",
    condition="more than 2 GiB of a GPU belong to no visible process",
    severity="warning",
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
HOST_SILENT = Rule(
    name="VramtopHostSilent",
    title="host silent",
    condition="over many hosts, in place of the one before: a host is silent or unreachable",
    severity="critical",
    fires_after=60,
    clears_after=10,
)
"""In place of ``NO_READINGS`` over many hosts; its times are the same."""
RULES = (OVER_BUDGET, GROWING, CANNOT_FIT, UNATTRIBUTED, GPU_LOST, NO_READINGS)

FULL_WITHIN_SECONDS = 4 * 3600.0
"""Growth that fills the GPU later than that is no alert."""
MIN_UNATTRIBUTED_BYTES = 2 * GIB
"""Contexts of invisible helpers take some hundred MiB."""
