"""Letters, names and colours of components, statuses, verdicts and checks, for dashboard and command line alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from vramtop.estimator.budget import ComponentName
    from vramtop.monitor.board.divergence import Status
    from vramtop.monitor.board.fit import Verdict
    from vramtop.monitor.preflight.context import CheckStatus
    from vramtop.monitor.snapshot import GpuReading


MemoryKind = Literal["held", "committed", "slack", "unattributed", "reserved"]


@dataclass(frozen=True, slots=True)
class Mark:
    """The letter or sign, the word and the colour of one thing."""

    letter: str
    word: str
    colour: str
    """A hexadecimal RGB colour that stands out from dark and light ground, and on which ``INK`` is readable."""


INK = "#0b1220"
"""Colour of letters that stand on one of these colours."""

COMPONENTS: dict[ComponentName, Mark] = {
    "weights": Mark("W", "weights", "#3a80f3"),
    "gradients": Mark("G", "gradients", "#0e9385"),
    "optimizer": Mark("O", "optimizer", "#9269f6"),
    "activations": Mark("A", "activations", "#c96c04"),
    "logits": Mark("L", "logits and loss", "#e44593"),
    "temporary": Mark("T", "temporary", "#87827f"),
    "communication": Mark("M", "communication", "#189746"),
    "context": Mark("C", "CUDA context", "#788497"),
}

OTHER_MEMORY: dict[MemoryKind, Mark] = {
    "held": Mark("█", "held", "#788497"),
    "committed": Mark("▒", "committed", "#788497"),
    "slack": Mark("·", "slack", "#788497"),
    "unattributed": Mark("▓", "unattributed", "#788497"),
    "reserved": Mark("░", "reserved", "#788497"),
}
"""Memory that is no component of a budget; slack is what PyTorch's allocator reserves beyond the components."""

STATUSES: dict[Status, Mark] = {
    "loading": Mark("…", "loading", "#788497"),
    "warming_up": Mark("…", "warming up", "#788497"),
    "on_budget": Mark("✓", "on budget", "#189746"),
    "over": Mark("▲", "OVER", "#ef4444"),
    "under": Mark("▼", "UNDER", "#c96c04"),
    "growing": Mark("↗", "GROWING", "#ef4444"),
    "incomplete": Mark("?", "incomplete", "#788497"),
    "ended": Mark("■", "ended", "#788497"),
    "out_of_memory": Mark("✗", "OUT OF MEMORY", "#ef4444"),
    "unknown": Mark("?", "unknown", "#788497"),
}

VERDICTS: dict[Verdict, Mark] = {
    "fits": Mark("✓", "FITS", "#189746"),
    "tight": Mark("!", "TIGHT", "#c96c04"),
    "does_not_fit": Mark("✗", "DOES NOT FIT", "#ef4444"),
    "unknown": Mark("?", "CANNOT TELL", "#788497"),
}

CHECKS: dict[CheckStatus, Mark] = {
    "pass": Mark("✓", "pass", "#189746"),
    "warning": Mark("!", "warning", "#c96c04"),
    "failure": Mark("✗", "FAILURE", "#ef4444"),
    "skipped": Mark("·", "skipped", "#788497"),
}
CHECK_UNKNOWN = Mark("?", "unknown", "#c96c04")
"""A check that could not be made, whatever its status."""
CHECK_RUNNING = Mark("…", "running", "#788497")

ASCII_SIGNS = str.maketrans("✓✗▲▼↗■…×−·", "+x^v/#.x--")
"""ASCII characters for the signs above."""


def darker(colour: str, share: float = 0.72) -> str:
    """Return a darker shade of a hexadecimal colour; the default differs visibly from it."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"#{round(red * share):02x}{round(green * share):02x}{round(blue * share):02x}"


def blend(colour: str, ground: str, share: float) -> str:
    """Mix a share of a hexadecimal colour with another one behind it."""
    pairs = ((int(colour[at : at + 2], 16), int(ground[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(front * share + back * (1 - share)):02x}" for front, back in pairs)


def unattributed_label(reading: GpuReading) -> str:
    """Return the label of memory that no process is known to hold; processes of unknown size may hold some of it."""
    unknown = any(process.used_bytes is None for process in reading.processes or ())
    return "n/a processes and unattributed" if unknown else "unattributed"
