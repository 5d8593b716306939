"""Letters, words and colours of components, statuses, verdicts and checks, for dashboard and command line alike.

How the colours were chosen; ``tests/tui/draw/test_palette.py`` holds each of these:

- All stand out from a dark and from a light ground (WCAG 2.1: contrast 3), so that one palette serves every theme, and
  dark or white letters are readable on each (4.5): ``ink_on``.
- Components alternate between dark and light in the order in which a bar stacks them. Neighbours differ for protanopes,
  deuteranopes and tritanopes too: an OKLab distance of at least 0.09, where 0.02 is just noticeable; of at least 0.055
  between components that are neighbours only if those between them are empty.
- Neighbours differ in 256 and in 16 colours. No component is red: red is memory beyond a budget.
- Statuses use five colours (good, bad, warning, neutral, uncertain), which differ in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from .contrast import WHITE, contrast, parse_hex

if TYPE_CHECKING:
    from vramtop.estimator.budget import Budget, ComponentName, PhaseName
    from vramtop.monitor.board.divergence import RunPhase, Status
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
    """A hexadecimal RGB colour that stands out from dark and light ground; letters on it are of ``ink_on``."""
    short: str = ""
    """A shorter word for where there is little room; empty: the word is short enough."""

    @property
    def short_word(self) -> str:
        """The shorter word, if there is one."""
        return self.short or self.word


GOOD, BAD, WARNING, NEUTRAL, UNCERTAIN = "#207346", "#cb1a16", "#c4770d", "#7c7f8e", "#2c8be4"
DARK_INK, LIGHT_INK = "#0b1220", "#ffffff"
"""Letters that stand on one of the palette's colours."""
BEYOND_BUDGET = BAD
"""Memory above the upper bound of a budget."""
NO_JOB = "#4f79a8"
"""Memory of processes without a budget."""

COMPONENTS: dict[ComponentName, Mark] = {
    "weights": Mark("W", "weights", "#3e86f1"),
    "gradients": Mark("G", "gradients", "#2a6d5f", "grad"),
    "optimizer": Mark("O", "optimizer", "#7a45d1", "optim"),
    "activations": Mark("A", "activations", "#b06f0b", "act"),
    "logits": Mark("L", "logits and loss", "#b12788", "logits"),
    "temporary": Mark("T", "temporary", "#558d57", "temp"),
    "communication": Mark("M", "communication", "#706212", "comm"),
    "context": Mark("C", "CUDA context", "#87898d", "CUDA"),
}

_SERVER_WORDS: dict[ComponentName, tuple[str, str]] = {
    "activations": ("KV cache", "KV"),
    "temporary": ("largest step", "step"),
    "communication": ("libraries", "libs"),
}
"""What a server holds in place of a training step's memory."""

OTHER_MEMORY: dict[MemoryKind, Mark] = {
    "held": Mark("█", "in use", NEUTRAL),
    "committed": Mark("▒", "committed", NEUTRAL),
    "slack": Mark("·", "slack", NEUTRAL),
    "unattributed": Mark("▓", "unattributed", NEUTRAL),
    "reserved": Mark("░", "reserved", NEUTRAL),
}
"""Memory that is no component of a budget; slack is what PyTorch's allocator reserves beyond the components."""

STATUSES: dict[Status, Mark] = {
    "loading": Mark("…", "loading", NEUTRAL),
    "warming_up": Mark("…", "warming up", NEUTRAL),
    "on_budget": Mark("✓", "within budget", GOOD, "in budget"),
    "over": Mark("▲", "OVER", BAD),
    "under": Mark("▼", "UNDER", WARNING),
    "growing": Mark("↗", "GROWING", BAD),
    "incomplete": Mark("?", "incomplete", UNCERTAIN),
    "ended": Mark("■", "ended", NEUTRAL),
    "out_of_memory": Mark("✗", "OUT OF MEMORY", BAD),
    "unknown": Mark("?", "unknown", NEUTRAL),
}

_MARKS_BY_NAME: dict[str, Mark] = dict(STATUSES.items())

PHASES: dict[RunPhase, str] = {
    "started": "start",
    "context": "context",
    "loading": "loading",
    "warming_up": "first step",
    "steady": "steady",
}
"""Name of each phase of a run."""

VERDICTS: dict[Verdict, Mark] = {
    "fits": Mark("✓", "FITS", GOOD),
    "tight": Mark("!", "TIGHT", WARNING),
    "does_not_fit": Mark("✗", "DOES NOT FIT", BAD),
    "unknown": Mark("?", "CANNOT TELL", NEUTRAL),
}

CHECKS: dict[CheckStatus, Mark] = {
    "pass": Mark("✓", "pass", GOOD),
    "warning": Mark("!", "warning", WARNING),
    "failure": Mark("✗", "FAILURE", BAD),
    "skipped": Mark("·", "skipped", NEUTRAL),
}
CHECK_UNKNOWN = Mark("?", "unknown", WARNING)
"""A check that could not be made, whatever its status."""
CHECK_RUNNING = Mark("…", "running", NEUTRAL)

ASCII_SIGNS = str.maketrans("✓✗▲▼↗■…×−·≥▸▾▏│╱", "+x^v/#.x-->+-||/")
"""ASCII characters for the signs above, and for the lines and hatching of bars."""


def component_mark(name: ComponentName, budget: Budget) -> Mark:
    """Return the mark of a component, in the words of what the budget's job does."""
    mark = COMPONENTS[name]
    if budget.serving is None or name not in _SERVER_WORDS:
        return mark
    word, short = _SERVER_WORDS[name]
    return replace(mark, word=word, short=short)


_PHASE_PLACES: dict[PhaseName, str] = {
    "loading": "while loading",
    "generation": "while generating",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer step": "in the optimizer step",
    "saving": "while saving",
}


def phase_place(phase: PhaseName) -> str:
    """Return when a phase is: ``in the backward pass``."""
    return _PHASE_PLACES[phase]


def peak_place(budget: Budget) -> str:
    """Return when a budget has its peak: ``in the backward pass``."""
    return "while serving" if budget.serving else _PHASE_PLACES[budget.peak.phase]


def status_mark(status: str) -> Mark:
    """Return the mark of a status that another host's vramtop gives, which may know statuses that this one does not."""
    return _MARKS_BY_NAME.get(status) or Mark("?", status, NEUTRAL)


@lru_cache(maxsize=256)
def ink_on(colour: str) -> str:
    """Return the colour of letters on a hexadecimal colour: white or dark, whichever is more readable."""
    ground = parse_hex(colour)
    return LIGHT_INK if contrast(WHITE, ground) >= contrast(parse_hex(DARK_INK), ground) else DARK_INK


def on_colour(colour: str) -> str:
    """Return the style of letters that stand on a hexadecimal colour."""
    return f"{ink_on(colour)} on {colour}"


def blend(colour: str, ground: str, share: float) -> str:
    """Mix a share of a hexadecimal colour with another one behind it."""
    pairs = ((int(colour[at : at + 2], 16), int(ground[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(front * share + back * (1 - share)):02x}" for front, back in pairs)


def unattributed_label(reading: GpuReading) -> str:
    """Return the label of memory that no process is known to hold; processes of unknown size may hold some of it."""
    unknown = any(process.used_bytes is None for process in reading.processes or ())
    return "n/a processes and unattributed" if unknown else "unattributed"
