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

if TYPE_CHECKING:
    from vramtop.estimator.budget import Budget, ComponentName, PhaseName
    from vramtop.estimator.common.errors import Verdict
    from vramtop.monitor.board.comparison import Status
    from vramtop.monitor.board.run_phases import RunPhase
    from vramtop.monitor.preflight.check_result import CheckStatus
    from vramtop.monitor.snapshot.snapshot import GpuReading

# Colours as numbers: the contrast between two, and the nearest one of 16 or 256.
#
# Contrast is that of WCAG 2.1, which asks for 4.5 for text and 3 for drawings.


Rgb = tuple[int, int, int]

MIN_TEXT_CONTRAST = 4.5
MIN_DRAWING_CONTRAST = 3.0
BLACK: Rgb = (0, 0, 0)
WHITE: Rgb = (255, 255, 255)
XTERM: tuple[Rgb, ...] = (
    *((0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229)),
    *((127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0), (92, 92, 255), (255, 0, 255), (0, 255, 255), WHITE),
)
"""The default 16 colours of xterm."""
VGA: tuple[Rgb, ...] = (
    *((0, 0, 0), (170, 0, 0), (0, 170, 0), (170, 85, 0), (0, 0, 170), (170, 0, 170), (0, 170, 170), (170, 170, 170)),
    *((85, 85, 85), (255, 85, 85), (85, 255, 85), (255, 255, 85), (85, 85, 255), (255, 85, 255), (85, 255, 255), WHITE),
)
"""The 16 colours of the Linux console."""
_MAX_GREY_SPREAD = 40
"""Channels that differ by less than this make a grey."""
_HUE_ENDS = ((0.4, 1), (1.5, 3), (2.5, 2), (3.4, 6), (4.2, 4), (5.6, 5), (6.0, 1))
"""End of each of the six colours on the colour circle, in steps of 60 degrees; violet counts as magenta."""
_STEPS = 32
"""Steps in which a colour is moved towards white or black."""
_CUBE_LEVELS = (0, 95, 135, 175, 215, 255)
"""Values of a channel in the cube of 6 x 6 x 6 of the 256 colours."""


def parse_hex(colour: str) -> Rgb:
    """Parse ``#rrggbb``."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def luminance(colour: Rgb) -> float:
    """Return the relative luminance, 0 to 1."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Rgb, other: Rgb) -> float:
    """Return the contrast of two colours: 1 for equal ones, 21 for black on white."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@lru_cache(maxsize=4096)
def readable(colour: Rgb, ground: Rgb, least: float) -> Rgb:
    """Return the colour, moved towards white or black until its contrast with the ground is enough.

    Args:
        colour: of the text.
        ground: behind the text.
        least: the contrast that is needed; if no colour has it, the best one is returned.
    """
    if contrast(colour, ground) >= least:
        return colour
    lighter = luminance(colour) >= luminance(ground)
    if contrast(WHITE if lighter else BLACK, ground) < least:
        lighter = contrast(WHITE, ground) >= contrast(BLACK, ground)
    end = WHITE if lighter else BLACK
    for step in range(1, _STEPS):
        red, green, blue = (round(one + (other - one) * step / _STEPS) for one, other in zip(colour, end, strict=True))
        moved = red, green, blue
        if contrast(moved, ground) >= least:
            return moved
    return end


@lru_cache(maxsize=1024)
def nearest_of_16(colour: Rgb) -> int:
    """Return the number of the nearest of the first 8 of 16 colours: by hue, or black or light grey."""
    high, low = max(colour), min(colour)
    if high - low < _MAX_GREY_SPREAD:
        return 7 if luminance(colour) > 0.2 else 0
    red, green, blue = ((channel - low) / (high - low) for channel in colour)
    hue = (green - blue) % 6 if red == 1 else blue - red + 2 if green == 1 else red - green + 4
    return next(number for end, number in _HUE_ENDS if hue <= end)


@lru_cache(maxsize=1024)
def readable_of_16(colour: Rgb, ground: int, colours: tuple[Rgb, ...], least: float = MIN_TEXT_CONTRAST) -> int:
    """Return the number of a text colour among 16: of its own hue if that is readable, otherwise black or white.

    Args:
        colour: the wanted colour.
        ground: number of the colour behind the text.
        colours: the 16 colours of the terminal.
        least: the contrast that is needed.
    """
    number = nearest_of_16(colour)
    if number == 0:
        number = 7 if luminance(colour) > 0.05 and ground == 0 else 0
    wanted = (number, number + 8) if number else (0,)
    best = sorted((0, 15), key=lambda each: -contrast(colours[each], colours[ground]))
    readable_ones = (each for each in (*wanted, *best) if contrast(colours[each], colours[ground]) >= least)
    return next(readable_ones, best[0])


@lru_cache(maxsize=1024)
def nearest_of_256(colour: Rgb) -> int:
    """Return the number of the nearest of the 256 colours: one of the cube or of the greys."""
    red, green, blue = (
        min(range(6), key=[abs(level - channel) for level in _CUBE_LEVELS].__getitem__) for channel in colour
    )
    number = 16 + 36 * red + 6 * green + blue
    grey = 232 + min(23, max(0, round((sum(colour) / 3 - 8) / 10)))
    return min((number, grey), key=lambda each: _distance(rgb_of_256(each), colour))


@lru_cache(maxsize=4096)
def readable_of_256(colour: Rgb, ground: Rgb, least: float) -> int:
    """Return the number of a readable colour among 256, if need be not the nearest one."""
    wanted = least
    while (number := nearest_of_256(readable(colour, ground, wanted))) and contrast(rgb_of_256(number), ground) < least:
        wanted += 0.2
        if wanted > 2 * least:
            break
    return number


def rgb_of_256(number: int) -> Rgb:
    """Return one of the 256 colours; the first 16 are those of xterm."""
    if number < 16:
        return XTERM[number]
    if number >= 232:
        level = 8 + 10 * (number - 232)
        return level, level, level
    at = number - 16
    return _CUBE_LEVELS[at // 36], _CUBE_LEVELS[at // 6 % 6], _CUBE_LEVELS[at % 6]


def _distance(one: Rgb, other: Rgb) -> int:
    return sum((left - right) ** 2 for left, right in zip(one, other, strict=True))


# Colours by name.


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


def budget_size(size_bytes: int, status: str | None) -> str:
    """Return a budget in GiB; behind the sign of its status if settings are missing, so that it is a guess: ``?62.0``.

    Args:
        size_bytes: of the budget.
        status: of the process or run.
    """
    return f"{STATUSES['incomplete'].letter if status == 'incomplete' else ''}{format_gib(size_bytes)}"


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
    "evaluation": "in evaluation",
    "saving": "while saving",
}


def phase_place(phase: PhaseName) -> str:
    """Return when a phase is: ``in the backward pass``."""
    return _PHASE_PLACES[phase]


def peak_place(budget: Budget) -> str:
    """Return when a budget has its peak: ``in the backward pass``."""
    return "while serving" if budget.serving else _PHASE_PLACES[budget.peak.phase]


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
