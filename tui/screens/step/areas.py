"""Areas of the step graph as plain data: the label of each component, and lines around areas without colour.

An area is all cells of one component; this module needs no terminal library.
"""

from collections.abc import Mapping, Sequence

import msgspec

from vramtop.estimator.budget import ComponentName

from ...draw.bars import Cell
from ...draw.palette import ink_on

Owners = Sequence[Sequence[ComponentName | None]]
"""The component of each cell, top row first; None: no component, or none that may be labelled there."""


def outline_areas(owners: Owners) -> list[list[Cell]]:
    """Draw a line wherever two areas meet: below a cell, and at its left."""
    below = [*owners[1:], owners[-1]] if owners else []
    rows = []
    for row, next_row in zip(owners, below, strict=True):
        left = (row[0], *row) if row else ()
        chars = (
            "▏" if owner != before else "_" if owner != under else " "
            for owner, before, under in zip(row, left, next_row, strict=False)
        )
        rows.append([Cell(char) for char in chars])
    return rows


class AreaLabel(msgspec.Struct, frozen=True, kw_only=True):
    """What may be written in the area of a component."""

    texts: tuple[str, ...]
    """The longest first, in characters of one cell."""
    ground: str | None
    """The colour of the area; None: no colour."""


def label_areas(
    rows: Sequence[Sequence[Cell]], owners: Sequence[Owners], labels: Mapping[ComponentName, AreaLabel]
) -> list[list[Cell]]:
    """Write one label in each area: the first of its texts that has room in some row, near the middle of the area.

    Args:
        rows: the drawn cells.
        owners: whose cells they are, of the same size: first the cells that are preferred, then others that also serve
            for a word.
        labels: of each component.
    """
    drawn = [list(row) for row in rows]
    choices = [_runs(each) for each in owners]
    for name, label in labels.items():
        places = [_place(runs.get(name, ()), label.texts) for runs in choices]
        found = max(
            (place for at, place in enumerate(places) if place and (at == 0 or len(place[0]) > 1)),
            key=lambda place: len(place[0]),
            default=None,
        )
        if found is None:
            continue
        text, y, x = found
        ink = label.ground and ink_on(label.ground)
        drawn[y][x : x + len(text)] = [Cell(char, ink, label.ground) for char in text]
    return drawn


_Run = tuple[int, int, int]
"""Row, first column and number of neighbouring cells of one component."""


def _runs(owners: Owners) -> dict[ComponentName, list[_Run]]:
    found: dict[ComponentName, list[_Run]] = {}
    for y, row in enumerate(owners):
        start = 0
        for x in range(1, len(row) + 1):
            if x < len(row) and row[x] == row[start]:
                continue
            name = row[start]
            if name is not None:
                found.setdefault(name, []).append((y, start, x - start))
            start = x
    return found


def _place(runs: Sequence[_Run], labels: Sequence[str]) -> tuple[str, int, int] | None:
    """Return the label to write, with its row and column; None if no label has room."""
    if not runs:
        return None
    middle = sum(y * size for y, _, size in runs) / sum(size for *_, size in runs)
    for label in labels:
        margin = 2 if len(label) > 1 else 0
        roomy = [run for run in runs if run[2] >= len(label) + margin]
        if roomy:
            y, x, size = min(roomy, key=lambda run: (abs(run[0] - middle), -run[2]))
            return label, y, x + (size - len(label)) // 2
    return None
