"""Colours by name: the defaults, and those that the user chose in place of them.

There is one set in force, as there is one app. How the defaults were chosen: ``palette``.
"""

from collections.abc import Mapping

from .contrast import MIN_DRAWING_CONTRAST, contrast, parse_hex

DEFAULT_COLOURS: dict[str, str] = {
    "good": "#207346",
    "bad": "#cb1a16",
    "warning": "#c4770d",
    "neutral": "#7c7f8e",
    "uncertain": "#2c8be4",
    "no_budget": "#4f79a8",
    "weights": "#3e86f1",
    "gradients": "#2a6d5f",
    "optimizer": "#7a45d1",
    "activations": "#b06f0b",
    "logits": "#b12788",
    "temporary": "#558d57",
    "communication": "#706212",
    "context": "#87898d",
    "compute": "#4d85cb",
    "bandwidth": "#0e9385",
    "activity": "#788497",
    "hot": "#c96c04",
}
"""Hexadecimal RGB colours that stand out from dark and light ground."""
SAME_AS: dict[str, str] = {
    "beyond_budget": "bad",
    "loading": "neutral",
    "warming_up": "neutral",
    "on_budget": "good",
    "over": "bad",
    "under": "warning",
    "growing": "bad",
    "incomplete": "uncertain",
    "ended": "neutral",
    "out_of_memory": "bad",
    "unknown": "neutral",
}
"""Colours that are another one unless the user chooses them: those of each status."""
MEANINGS: dict[str, str] = {
    "good": "within budget, fits, passed",
    "bad": "over or growing, out of memory, does not fit, failed",
    "warning": "under, tight, needs attention",
    "neutral": "neither good nor bad: ended, loading, memory in use",
    "uncertain": "settings are guessed",
    "no_budget": "memory of processes without a budget",
    "compute": "compute utilisation of a GPU",
    "bandwidth": "use of a GPU's memory bandwidth",
    "activity": "memory, power and temperature on the GPU screen",
    "hot": "a temperature near that at which a GPU slows down",
    "beyond_budget": "memory above the upper bound of a budget",
}
"""What a colour stands for, where its name is not that of a component or a status."""

_chosen: dict[str, str] = {}
"""The user's, by name."""


def use_colours(chosen: Mapping[str, str]) -> None:
    """Put the user's colours in force, in place of earlier ones; they have been checked."""
    _chosen.clear()
    _chosen.update(chosen)


def colour_of(name: str) -> str:
    """Return the colour of this name that is in force, as ``#rrggbb``."""
    if name in _chosen:
        return _chosen[name]
    return DEFAULT_COLOURS[name] if name in DEFAULT_COLOURS else colour_of(SAME_AS[name])


def chosen_colour(*names: str) -> str | None:
    """Return the user's colour of the first of these names that has one; None: the user chose none of them."""
    return next((_chosen[name] for name in names if name in _chosen), None)


def colours_on(chosen: Mapping[str, str], theme: str, *, dark: bool) -> dict[str, str]:
    """Return the colours that hold on a theme by name: for all themes, for its ground, for this theme.

    Args:
        chosen: checked ones, some of which may be for certain themes.
        theme: name of the theme.
        dark: its ground is dark.
    """
    found: dict[str, str] = {}
    for prefix in ("", "dark" if dark else "light", theme):
        found.update(
            {name.rpartition(".")[2]: colour for name, colour in chosen.items() if name.rpartition(".")[0] == prefix}
        )
    return found


def weak_colours(chosen: Mapping[str, str], ground: str, theme: str) -> dict[str, str]:
    """Return a sentence for each colour that stands out too little from the ground of a theme.

    Args:
        chosen: colours that hold on this theme.
        ground: hexadecimal RGB colour.
        theme: its name.
    """
    found = {}
    for name, colour in chosen.items():
        ratio = contrast(parse_hex(colour), parse_hex(ground))
        if ratio < MIN_DRAWING_CONTRAST:
            found[name] = (
                f"colours.{name} = {colour} has a contrast of only {ratio:.1f} with the ground of {theme}; drawings "
                f"need {MIN_DRAWING_CONTRAST:g}; text in it is drawn lighter or darker"
            )
    return found
