"""Draw the rooms and the arrows between them, from the imports (``make architecture``)."""

import re
from collections import defaultdict
from pathlib import Path

import grimp

PACKAGES = ("tui", "monitor", "estimator")
DOCS = Path(__file__).parents[1]
PAGE = DOCS / "explanation" / "architecture.md"
_MARKED = re.compile(r"(<!-- rooms: drawn by make architecture -->\n).*?(<!-- rooms: end -->)", re.DOTALL)

Arrows = dict[str, set[str]]
"""Each room, and the rooms that it imports from; a room is named ``package/room``."""


def arrows_between_rooms() -> Arrows:
    """Every import from a module of one room to a module of another; imports for type checking count too."""
    graph = grimp.build_graph(*(f"vramtop.{package}" for package in PACKAGES), cache_dir=None)
    arrows: Arrows = defaultdict(set)
    for module in sorted(graph.modules):
        room = room_of(module)
        arrows[room] |= {room_of(imported) for imported in graph.find_modules_directly_imported_by(module)} - {room}
    return dict(arrows)


def room_of(module: str) -> str:
    """``vramtop.monitor.board.fit`` is in ``monitor/board``; a package's own modules are in ``monitor``."""
    _, package, *inside = module.split(".")
    is_room = bool(inside) and (DOCS.parent / package / inside[0]).is_dir()
    return f"{package}/{inside[0]}" if is_room else package


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


def picture(arrows: Arrows) -> str:
    """A Mermaid flowchart: a box per room in a frame per package."""
    lines = ["```mermaid", "flowchart TD"]
    for package in PACKAGES:
        lines.append(f'    subgraph {package}["{package}/"]')
        rooms = sorted(room for room in arrows if room.partition("/")[0] == package)
        lines += [f'        {_key(room)}["{room.partition("/")[2] or "front door"}"]' for room in rooms]
        lines.append("    end")
    for room, others in sorted(without_shortcuts(arrows).items()):
        lines += [f"    {_key(room)} --> {_key(other)}" for other in sorted(others)]
    return "\n".join([*lines, "```", ""])


def page_with(drawn: str, page: str) -> str:
    """The page with this picture between its marks."""
    return _MARKED.sub(lambda match: match[1] + drawn + match[2], page)


def _key(room: str) -> str:
    package, _, inside = room.partition("/")
    return f"{package}_{inside or 'front_door'}"


if __name__ == "__main__":
    PAGE.write_text(page_with(picture(arrows_between_rooms()), PAGE.read_text()))
