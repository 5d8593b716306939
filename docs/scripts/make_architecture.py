"""Draw the rooms and the arrows between them, from the imports (``make architecture``)."""

from collections import defaultdict
from pathlib import Path

import grimp
from drawing.rooms_svg import rooms_svg

PACKAGES = ("tui", "monitor", "estimator")
DOCS = Path(__file__).parents[1]
PICTURE = DOCS / "pictures" / "rooms.svg"
TITLE = "The rooms of the three packages, and which imports from which"

Arrows = dict[str, set[str]]
"""Each room, and the rooms that it imports from; a room is named ``package/room``."""


def arrows_between_rooms() -> Arrows:
    """Every import from a module of one room to a module of another; imports for type checking count too."""
    graph = grimp.build_graph("vramtop", cache_dir=None)
    arrows: Arrows = defaultdict(set)
    for module in sorted(graph.modules - {"vramtop"}):  # which only hands on the estimator's names
        room = room_of(module)
        arrows[room] |= {room_of(imported) for imported in graph.find_modules_directly_imported_by(module)} - {room}
    return dict(arrows)


def room_of(module: str) -> str:
    """``vramtop.monitor.board.fit`` is in ``monitor/board``; a room may be one module."""
    _, package, *inside = module.split(".")
    return f"{package}/{inside[0]}" if inside else package


def without_shortcuts(arrows: Arrows) -> Arrows:
    """Only the arrows that no path of other arrows implies (transitive reduction of an acyclic graph)."""
    below: Arrows = {}

    def reachable(room: str) -> set[str]:
        if room not in below:
            below[room] = set()
            for other in arrows.get(room, set()):
                below[room] |= {other} | reachable(other)
        return below[room]

    return {
        room: {other for other in others if not any(other in reachable(between) for between in others - {other})}
        for room, others in arrows.items()
    }


def picture() -> str:
    """The rooms and the arrows of today, as SVG."""
    return rooms_svg(without_shortcuts(arrows_between_rooms()), PACKAGES, TITLE)


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
