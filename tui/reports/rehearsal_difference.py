"""Two rehearsals side by side: what differs by component, by module and line, and in the libraries' versions."""

from collections.abc import Iterator
from typing import TypedDict

from vramtop.estimator.budget import ComponentName, PlainBudget
from vramtop.estimator.common.sizes import format_gib
from vramtop.estimator.trace.rehearsal import Rehearsed

from ..draw.palette import COMPONENTS
from ..draw.text_output import TextOutput, format_table, printable
from .budget_text import line_text, shortened


class PlaceJson(TypedDict):
    """Tensors of one component that one module made, or one file outside of all modules, at the two peaks."""

    component: ComponentName
    """Component that they are counted as."""
    module: str
    """Path of the module; empty: they belong to none."""
    lines: list[str]
    """File and line that made most of them, in the first and in the second rehearsal; empty: there are none."""
    bytes: list[int]
    """Their sizes in the first and in the second rehearsal."""


class ComparisonJson(TypedDict):
    """Two rehearsals of a program, and what differs between them."""

    schema: int
    """Version of this format: 1."""
    budgets: list[PlainBudget]
    """The first and the second budget."""
    device_bytes: int
    """By how much the second peak is higher on the device."""
    components: dict[str, int]
    """By how much each component is larger at the second peak; equal ones are left out."""
    versions: dict[str, list[str | None]]
    """Libraries whose versions differ, with the two; null: it was not imported."""
    places: list[PlaceJson]
    """Modules and lines that differ, the largest difference first."""


def comparison_json(first: Rehearsed, second: Rehearsed) -> ComparisonJson:
    """Return what differs between two rehearsals of a program."""
    peaks = first.budget.peak, second.budget.peak
    sizes = {name: getattr(peaks[1].components, name) - getattr(peaks[0].components, name) for name in COMPONENTS}
    old, new = first.answer.versions, second.answer.versions
    names = dict.fromkeys([*old, *new])
    return {
        "schema": 1,
        "budgets": [first.budget.to_json(), second.budget.to_json()],
        "device_bytes": peaks[1].device_bytes - peaks[0].device_bytes,
        "components": {name: size for name, size in sizes.items() if size},
        "versions": {name: [old.get(name), new.get(name)] for name in names if old.get(name) != new.get(name)},
        "places": _places(first, second),
    }


_LEAST_SHARE = 0.001
"""Share of the peak below which a difference is not listed."""


def _places(first: Rehearsed, second: Rehearsed) -> list[PlaceJson]:
    found: dict[tuple[str, str, str], PlaceJson] = {}
    for at, rehearsed in enumerate((first, second)):
        for component, module, line, size in rehearsed.answer.made:  # the largest first
            file = "" if module else "/".join(line.rpartition(":")[0].split("/")[-2:])  # a module's may have moved
            empty: PlaceJson = {"component": component, "module": module, "lines": ["", ""], "bytes": [0, 0]}
            place = found.setdefault((component, module, file), empty)
            place["lines"][at] = place["lines"][at] or line
            place["bytes"][at] += size
    least = _LEAST_SHARE * second.budget.peak.allocated_bytes

    def change(place: PlaceJson) -> int:
        return abs(place["bytes"][1] - place["bytes"][0])

    return sorted((each for each in found.values() if change(each) > least), key=change, reverse=True)


_MOST_PLACES = 12


def comparison_lines(found: ComparisonJson, names: tuple[str, str], output: TextOutput) -> Iterator[str]:
    """Yield the difference: by component, by module and line, and the versions.

    Args:
        found: the difference.
        names: of the two rehearsals, such as what differs in their commands.
        output: what the output can show.
    """
    first, second = found["budgets"]
    for number, name in enumerate(names, 1):
        yield from output.wrapped(f"{number}: {name}", further="   ")
    for name, (old, new) in found["versions"].items():
        yield output.text(f"{name} {old or 'not imported'} -> {new or 'not imported'}")
    yield ""
    rows = [("GiB at the peak", "1", "2", "difference")]
    for name, mark in COMPONENTS.items():
        sizes = [each["peak"]["components"][name] for each in (first, second)]
        if any(sizes):
            rows.append((mark.word, *_figures(*sizes)))
    for name in ("allocated", "reserved", "device"):
        rows.append((name, *_figures(*(each["peak"][f"{name}_bytes"] for each in (first, second)))))
    yield from (output.text(line) for line in format_table(rows, "<>>>"))
    yield ""
    if not found["places"]:
        yield "no module or line differs"
        return
    yield "differences by module and line, GiB"
    rows = []
    for place in found["places"][:_MOST_PLACES]:
        *_, difference = _figures(*place["bytes"])
        line = line_text(place["lines"][1] or place["lines"][0])
        module = printable(place["module"]) or "(no module)"
        rows.append((difference, COMPONENTS[place["component"]].word, shortened(module, 22), shortened(line, 30)))
    yield from (output.text(line[: output.width]) for line in format_table(rows, "><<<"))


def _figures(old: int, new: int) -> tuple[str, str, str]:
    return format_gib(old, digits=2), format_gib(new, digits=2), format_gib(new - old, digits=2, signed=True)
