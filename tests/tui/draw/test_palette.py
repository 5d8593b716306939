"""The palette's colours differ for everyone: in full colour, for colour-blind people, and in 256 and 16 colours.

Colour blindness is simulated by the matrices of Machado, Oliveira and Fernandes (2009, "A physiologically-based model
for simulation of color vision deficiency", severity 1.0), in linear RGB. Distances are Euclidean in OKLab (Ottosson,
2020), where white is 1 away from black, and about 0.02 is just noticeable.
"""

from itertools import combinations, pairwise
from math import dist

import pytest
from rich.color import Color

from vramtop.tui.draw.colours import contrast, nearest_of_16, nearest_of_256, parse_hex
from vramtop.tui.draw.memory_graph import STACK_ORDER
from vramtop.tui.draw.palette import CHECKS, COMPONENTS, STATUSES, VERDICTS, colour_of, ink_on

Matrix = tuple[tuple[float, float, float], ...]
VISION: dict[str, Matrix] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
TO_CONES: Matrix = (
    (0.4122214708, 0.5363325363, 0.0514459929),
    (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)
TO_OKLAB: Matrix = (
    (0.2104542553, 0.7936177850, -0.0040720468),
    (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)
LEAST_BETWEEN_NEIGHBOURS = 0.09
MEANINGS = {
    "good": colour_of("good"),
    "bad": colour_of("bad"),
    "warning": colour_of("warning"),
    "neutral": colour_of("neutral"),
    "uncertain": colour_of("uncertain"),
}
BAR_ORDER = tuple(COMPONENTS)


def times(matrix: Matrix, vector: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sum(factor * part for factor, part in zip(row, vector, strict=True)) for row in matrix)


def oklab(rgb: tuple[int, int, int], vision: str) -> tuple[float, ...]:
    linear = tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in rgb))
    seen = tuple(min(1.0, max(0.0, part)) for part in times(VISION[vision], linear))
    return times(TO_OKLAB, tuple(part ** (1 / 3) for part in times(TO_CONES, seen)))


def distance(one: str, other: str, vision: str) -> float:
    return dist(oklab(parse_hex(one), vision), oklab(parse_hex(other), vision))


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("order", [BAR_ORDER, STACK_ORDER], ids=["bar", "graph"])
def test_neighbours_in_a_stack_differ_for_everyone(order, vision):
    colours = [COMPONENTS[name].colour for name in order]
    near = {pair: distance(*pair, vision) for pair in pairwise(colours)}
    assert {pair: far for pair, far in near.items() if far < LEAST_BETWEEN_NEIGHBOURS} == {}


@pytest.mark.parametrize("vision", VISION)
def test_meanings_differ_for_everyone(vision):
    pairs = combinations(MEANINGS.values(), 2)
    assert {pair for pair in pairs if distance(*pair, vision) < LEAST_BETWEEN_NEIGHBOURS} == set()


@pytest.mark.parametrize("order", [BAR_ORDER, STACK_ORDER], ids=["bar", "graph"])
def test_neighbours_differ_in_16_and_in_256_colours(order):
    colours = [parse_hex(COMPONENTS[name].colour) for name in order]
    assert all(nearest_of_16(one) != nearest_of_16(other) for one, other in pairwise(colours))
    reduced = [Color.from_ansi(nearest_of_256(colour)).get_truecolor() for colour in colours]
    assert all(dist(oklab(one, "normal"), oklab(other, "normal")) >= 0.09 for one, other in pairwise(reduced))
    assert len(set(reduced)) == len(COMPONENTS)


def test_meanings_differ_in_16_and_in_256_colours():
    colours = [parse_hex(colour) for colour in MEANINGS.values()]
    assert len({nearest_of_16(colour) for colour in colours}) == len({nearest_of_256(c) for c in colours}) == 5


def test_no_component_is_red():
    red = nearest_of_16(parse_hex(colour_of("bad")))
    assert red not in {nearest_of_16(parse_hex(mark.colour)) for mark in COMPONENTS.values()}


@pytest.mark.parametrize("marks", [COMPONENTS, STATUSES, VERDICTS, CHECKS])
def test_colours_stand_out_from_dark_and_light_grounds_and_letters_on_them_are_readable(marks):
    for colour in (*(mark.colour for mark in marks.values()), colour_of("no_budget")):
        rgb = parse_hex(colour)
        assert contrast(rgb, parse_hex(ink_on(colour))) >= 4.5, colour
        assert contrast(rgb, (18, 18, 18)) >= 3, colour
        assert contrast(rgb, (239, 239, 239)) >= 3, colour
        assert nearest_of_16(rgb) != 0, colour
