"""Colours as numbers: the contrast between two, and the nearest one of 16 or 256.

Contrast is that of WCAG 2.1, which asks for 4.5 for text and 3 for drawings.
"""

from __future__ import annotations

from functools import lru_cache

Rgb = tuple[int, int, int]
MIN_TEXT_CONTRAST = 4.5
MIN_DRAWING_CONTRAST = 3.0
BLACK: Rgb = (0, 0, 0)
WHITE: Rgb = (255, 255, 255)


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


_STEPS = 32
"""Steps in which a colour is moved towards white or black."""


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


_MAX_GREY_SPREAD = 40
"""Channels that differ by less than this make a grey."""
_HUE_ENDS = ((0.4, 1), (1.5, 3), (2.5, 2), (3.4, 6), (4.2, 4), (5.6, 5), (6.0, 1))
"""End of each of the six colours on the colour circle, in steps of 60 degrees; violet counts as magenta."""


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
def nearest_of_256(colour: Rgb) -> int:
    """Return the number of the nearest of the 256 colours: one of the cube or of the greys."""
    from rich.color import Color, ColorSystem  # not at start-up: most terminals have all colours

    return Color.from_rgb(*colour).downgrade(ColorSystem.EIGHT_BIT).number or 0
