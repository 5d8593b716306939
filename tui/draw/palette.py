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

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec

from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import format_gib

from .colours import WHITE, contrast, parse_hex

if TYPE_CHECKING:
    from vramtop.estimator.budget import Budget, ComponentName, PhaseName
    from vramtop.estimator.common.errors import Verdict
    from vramtop.monitor.board.comparison import Status
    from vramtop.monitor.board.run_phases import RunPhase
    from vramtop.monitor.preflight.check import CheckStatus
    from vramtop.monitor.snapshot.snapshot import GpuReading


_COLOURS = {
    "good": "#207346",
    "bad": "#cb1a16",
    "warning": "#c4770d",
    "neutral": "#7c7f8e",
    "uncertain": "#2c8be4",
    "weights": "#3e86f1",
    "other_models": "#9e59b6",
    "gradients": "#2a6d5f",
    "optimizer": "#7a45d1",
    "activations": "#b06f0b",
    "logits": "#b12788",
    "temporary": "#558d57",
    "inputs": "#de41e7",
    "communication": "#706212",
    "context": "#87898d",
    "no_budget": "#4f79a8",
    "compute": "#4d85cb",
    "bandwidth": "#0e9385",
    "activity": "#788497",
    "hot": "#c96c04",
}
"""Hexadecimal RGB colours that stand out from dark and light ground."""


def colour_of(name: str) -> str:
    """Return the colour of this name, as ``#rrggbb``."""
    return _COLOURS[name]


MemoryKind = Literal["held", "committed", "slack", "unattributed", "reserved"]


class Mark(msgspec.Struct, frozen=True):
    """The letter or sign, the word and the colour of one thing."""

    letter: str
    word: str
    colour_name: str
    """Name of its colour."""
    short: str = ""
    """A shorter word for where there is little room; empty: the word is short enough."""

    @property
    def colour(self) -> str:
        """Its colour in force; letters on it are of ``ink_on``."""
        return colour_of(self.colour_name)

    @property
    def short_word(self) -> str:
        """The shorter word, if there is one."""
        return self.short or self.word


DARK_INK, LIGHT_INK = "#0b1220", "#ffffff"
"""Letters that stand on one of the palette's colours."""

COMPONENTS: dict[ComponentName, Mark] = {
    "weights": Mark("W", "weights", "weights"),
    "other_models": Mark("E", "other models", "other_models", "other"),
    "gradients": Mark("G", "gradients", "gradients", "grad"),
    "optimizer": Mark("O", "optimizer", "optimizer", "optim"),
    "activations": Mark("A", "activations", "activations", "act"),
    "logits": Mark("L", "logits and loss", "logits", "logits"),
    "temporary": Mark("T", "temporary", "temporary", "temp"),
    "inputs": Mark("I", "inputs", "inputs"),
    "communication": Mark("M", "communication", "communication", "comm"),
    "context": Mark("C", "CUDA context", "context", "CUDA"),
}

_SERVER_WORDS: dict[ComponentName, tuple[str, str]] = {
    "activations": ("KV cache", "KV"),
    "temporary": ("largest step", "step"),
    "communication": ("libraries", "libs"),
}
"""What a server holds in place of a training step's memory."""

OTHER_MEMORY: dict[MemoryKind, Mark] = {
    "held": Mark("█", "in use", "neutral"),
    "committed": Mark("▒", "committed", "neutral"),
    "slack": Mark("·", "slack", "neutral"),
    "unattributed": Mark("▓", "unattributed", "neutral"),
    "reserved": Mark("░", "reserved", "neutral"),
}
"""Memory that is no component of a budget; slack is what PyTorch's allocator reserves beyond the components."""

STATUSES: dict[Status, Mark] = {
    "loading": Mark("…", "loading", "neutral"),
    "warming_up": Mark("…", "warming up", "neutral"),
    "on_budget": Mark("✓", "within budget", "good", "in budget"),
    "over": Mark("▲", "OVER", "bad"),
    "under": Mark("▼", "UNDER", "warning"),
    "growing": Mark("↗", "GROWING", "bad"),
    "incomplete": Mark("?", "incomplete", "uncertain"),
    "ended": Mark("■", "ended", "neutral"),
    "out_of_memory": Mark("✗", "OUT OF MEMORY", "bad"),
    "unknown": Mark("?", "unknown", "neutral"),
}


def budget_size(size_bytes: int, *, is_guess: bool) -> str:
    """Return a budget in GiB; behind a sign if it is a guess: ``?62.0``."""
    return f"{STATUSES['incomplete'].letter if is_guess else ''}{format_gib(size_bytes)}"


PHASES: dict[RunPhase, str] = {
    "started": "start",
    "context": "context",
    "loading": "loading",
    "warming_up": "first step",
    "steady": "steady",
}
"""Name of each phase of a run."""

VERDICTS: dict[Verdict, Mark] = {
    "fits": Mark("✓", "FITS", "good"),
    "tight": Mark("!", "TIGHT", "warning"),
    "does_not_fit": Mark("✗", "DOES NOT FIT", "bad"),
    "unknown": Mark("?", "CANNOT TELL", "neutral"),
}

CHECKS: dict[CheckStatus, Mark] = {
    "pass": Mark("✓", "pass", "good"),
    "warning": Mark("!", "warning", "warning"),
    "failure": Mark("✗", "FAILURE", "bad"),
    "skipped": Mark("·", "skipped", "neutral"),
}
CHECK_UNKNOWN = Mark("?", "unknown", "warning")
"""A check that could not be made, whatever its status."""
CHECK_RUNNING = Mark("…", "running", "neutral")


def component_mark(name: ComponentName, budget: Budget) -> Mark:
    """Return the mark of a component, in the words of what the budget's job does."""
    mark = COMPONENTS[name]
    if budget.serving is None or name not in _SERVER_WORDS:
        return mark
    word, short = _SERVER_WORDS[name]
    return replace(mark, word=word, short=short)


PHASE_PLACES: dict[PhaseName, str] = {
    "loading": "while loading",
    "generation": "while generating",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer step": "in the optimizer step",
    "evaluation": "in evaluation",
    "saving": "while saving",
}
"""When each phase is."""


def peak_place(budget: Budget) -> str:
    """Return when a budget has its peak: ``in the backward pass``."""
    return "while serving" if budget.serving else PHASE_PLACES[budget.peak.phase]


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
    channels = zip(parse_hex(colour), parse_hex(ground), strict=True)
    return "#" + "".join(f"{round(front * share + back * (1 - share)):02x}" for front, back in channels)


def unattributed_label(reading: GpuReading) -> str:
    """Return the label of memory that no process is known to hold; processes of unknown size may hold some of it."""
    unknown = any(process.used_bytes is None for process in reading.processes or ())
    return "n/a processes and unattributed" if unknown else "unattributed"
