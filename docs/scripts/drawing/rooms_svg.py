"""The rooms and the arrows between them as a picture: a frame per package, a room below all that import from it."""

from collections.abc import Mapping, Sequence
from html import escape

Arrows = Mapping[str, set[str]]
"""Each room, and the rooms that it imports from; a room is named ``package/room``."""
_WIDTH, _MARGIN, _SIDE = 900, 12, 28
_BOX, _ROW, _GAP = 26, 62, 56
_HEAD, _BELOW = 34, 18
"""Height of a frame's title; space below its last row."""
_LETTER, _PADDING = 7.4, 20
_SWEEPS = 12
_STYLE = """
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1b2530 }
.package { font-weight: bold }
.page { fill: #ffffff } .frame { fill: #f2f5f7; stroke: #b9c4cd } .room { fill: #ffffff; stroke: #4b6475 }
.inside { fill: none; stroke: #4b6475 } .across { fill: none; stroke: #c07830; stroke-dasharray: 4 3 }
.tip { fill: #4b6475 } .far { fill: #c07830 }
@media (prefers-color-scheme: dark) {
text { fill: #e4eaef }
.page { fill: #14181d } .frame { fill: #1d242b; stroke: #44525e } .room { fill: #2a343d; stroke: #9db2c0 }
.inside { stroke: #9db2c0 } .across { stroke: #d99a55 } .tip { fill: #9db2c0 } .far { fill: #d99a55 }
}
"""


def rooms_svg(arrows: Arrows, packages: Sequence[str], title: str) -> str:
    """Return the picture.

    Args:
        arrows: those to draw; without cycles.
        packages: from top to bottom.
        title: what the picture shows, for those who do not see it.
    """
    rows = [(package, row) for package in packages for row in _rows(arrows, package)]
    centres = _centres(arrows, [row for _, row in rows])
    tops, frames, y = {}, [], float(_MARGIN)
    for package in packages:
        own = [row for name, row in rows if name == package]
        frames.append((package, y, _HEAD + len(own) * _ROW - (_ROW - _BOX) + _BELOW))
        for at, row in enumerate(own):
            tops.update(dict.fromkeys(row, y + _HEAD + at * _ROW))
        y += frames[-1][2] + 2 * _BELOW
    height = round(y - 2 * _BELOW + _MARGIN)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8z"/></marker><marker id="far" viewBox="0 0 8 8" refX="8" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto"><path class="far" d="M0 0 8 4 0 8z"/></marker></defs>',
        f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
    ]
    for package, top, tall in frames:
        size = f'width="{_WIDTH - 2 * _MARGIN}" height="{tall:.0f}"'
        lines.append(f'<rect class="frame" x="{_MARGIN}" y="{top:.0f}" {size} rx="6"/>')
        lines.append(f'<text class="package" x="{_MARGIN + 12}" y="{top + 21:.0f}">{package}/</text>')
    lines += _curves(arrows, centres, tops)
    for room, top in tops.items():
        wide = _width(room)
        left = centres[room] - wide / 2
        lines.append(f'<rect class="room" x="{left:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{_BOX}" rx="4"/>')
        lines.append(f'<text x="{centres[room]:.0f}" y="{top + 17:.0f}" text-anchor="middle">{_label(room)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _rows(arrows: Arrows, package: str) -> list[list[str]]:
    """Return the rooms of a package by rows: each above all rooms of the package that it imports from."""
    rooms = sorted(room for room in arrows if room.partition("/")[0] == package)
    levels: dict[str, int] = {}

    def level(room: str) -> int:
        if room not in levels:
            below = [level(other) for other in arrows[room] if other in rooms]
            levels[room] = max(below) + 1 if below else 0
        return levels[room]

    highest = max(map(level, rooms))
    return [[room for room in rooms if levels[room] == each] for each in range(highest, -1, -1)]


def _centres(arrows: Arrows, rows: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return where the middle of each room is: near the rooms that it has arrows to and from."""
    joined: dict[str, list[str]] = {room: [] for row in rows for room in row}
    for room, others in arrows.items():
        for other in sorted(others):
            joined[room].append(other)
            joined[other].append(room)
    centres = {room: x for row in rows for room, x in _packed(row, dict.fromkeys(row, _WIDTH / 2)).items()}
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 else reversed(rows):
            wanted = {
                room: sum(centres[other] for other in joined[room]) / len(joined[room])
                if joined[room]
                else centres[room]
                for room in row
            }
            centres.update(_packed(sorted(row, key=lambda room: (wanted[room], room)), wanted))
    return centres


def _packed(row: Sequence[str], wanted: Mapping[str, float]) -> dict[str, float]:
    """Return the middles of a row's rooms in this order, near where they are wanted, apart and inside the frame."""
    placed: dict[str, float] = {}
    left = float(_SIDE)
    for room in row:
        placed[room] = max(left + _width(room) / 2, wanted[room])
        left = placed[room] + _width(room) / 2 + _GAP
    shift = sum(wanted[room] - placed[room] for room in row) / len(row)
    outermost = placed[row[0]] - _width(row[0]) / 2 - _SIDE
    placed = {room: x + max(shift, -outermost) for room, x in placed.items()}
    right = float(_WIDTH - _SIDE)
    for room in reversed(row):
        placed[room] = min(right - _width(room) / 2, placed[room])
        right = placed[room] - _width(room) / 2 - _GAP
    return placed


def _curves(arrows: Arrows, centres: Mapping[str, float], tops: Mapping[str, float]) -> list[str]:
    """Return the arrows; their ends share the edges of the boxes from left to right."""
    pairs = [(room, other) for room in sorted(arrows) for other in sorted(arrows[room])]
    lines = []
    for room, other in sorted(pairs, key=lambda pair: pair[0].partition("/")[0] == pair[1].partition("/")[0]):
        outgoing = sorted((each for each in arrows[room]), key=lambda each: (centres[each], each))
        incoming = sorted((each for each in arrows if other in arrows[each]), key=lambda each: (centres[each], each))
        x1 = _port(centres[room], _width(room), outgoing.index(other), len(outgoing))
        x2 = _port(centres[other], _width(other), incoming.index(room), len(incoming))
        y1, y2 = tops[room] + _BOX, tops[other]
        bend = min(40.0, (y2 - y1) / 2)
        inside = room.partition("/")[0] == other.partition("/")[0]
        kind, tip = ("inside", "tip") if inside else ("across", "far")
        path = f"M{x1:.0f} {y1:.0f}C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"
        lines.append(f'<path class="{kind}" d="{path}" marker-end="url(#{tip})"/>')
    return lines


def _port(centre: float, width: float, at: int, count: int) -> float:
    return centre + width * 0.8 * ((at + 0.5) / count - 0.5)


def _label(room: str) -> str:
    return room.partition("/")[2] or "front door"


def _width(room: str) -> float:
    return len(_label(room)) * _LETTER + _PADDING
