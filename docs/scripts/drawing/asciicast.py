"""Writes frames of a terminal as an asciinema recording, version 2: each frame sends the cells that have changed."""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from .terminal_svg import Cell, Frame, Row


def asciicast(frames: Sequence[Frame], title: str) -> str:
    """Return the recording as the text of a ``.cast`` file; a title that changes is a marker."""
    first = frames[0].screen
    header = {
        "version": 2,
        "width": len(first[0]),
        "height": len(first),
        "title": title,
        "env": {"TERM": "xterm-256color"},
    }
    events: list[tuple[float, str, str]] = []
    now = 0.0
    blank: Row = tuple(Cell("") for _ in first[0])
    shown, heading = tuple(blank for _ in first), ""
    for frame in frames:
        if frame.title != heading:
            events.append((now, "m", frame.title))
            heading = frame.title
        events.append((now, "o", "".join(_changes(shown, frame.screen)) or "\x1b[0m"))
        shown = frame.screen
        now += frame.seconds
    events[0:0] = [(0.0, "o", "\x1b[?25l\x1b[2J")]
    events.append((now, "o", "\x1b[0m"))
    lines = [
        json.dumps(header),
        *(json.dumps([round(at, 3), kind, data], ensure_ascii=False) for at, kind, data in events),
    ]
    return "\n".join(lines) + "\n"


def _changes(old: Sequence[Row], new: Sequence[Row]) -> Iterator[str]:
    """Yield what turns one screen into the other."""
    for y, (before, after) in enumerate(zip(old, new, strict=True)):
        changed = [x for x, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if not changed:
            continue
        yield f"\x1b[{y + 1};{changed[0] + 1}H"
        cells = after[changed[0] : changed[-1] + 1]
        for style, run in groupby(cells, key=lambda cell: (cell.colour, cell.ground, cell.bold, cell.underline)):
            colour, ground, bold, underline = style
            codes = ["0", *(["1"] if bold else []), *(["4"] if underline else [])]
            codes += [f"38;2;{_numbers(colour)}", f"48;2;{_numbers(ground)}"]
            yield f"\x1b[{';'.join(codes)}m" + "".join(cell.text for cell in run)


def _numbers(colour: str) -> str:
    return ";".join(str(int(colour[index : index + 2], 16)) for index in (1, 3, 5))
