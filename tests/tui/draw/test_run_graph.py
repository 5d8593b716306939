from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from textual.app import App, ComposeResult

from vramtop.estimator.budget import Components
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.tui.draw.bars import Cell
from vramtop.tui.draw.memory_graph import Readings, TimeMark
from vramtop.tui.draw.palette import COMPONENTS, colour_of
from vramtop.tui.draw.run_graph import (
    LevelLine,
    RunGraphData,
    axis_rows,
    graph_top_bytes,
    run_graph_rows,
)
from vramtop.tui.screens.attach.rank_view import RunGraph

GPU_TOTAL = 80 * GIB
STACKED = Components(weights=20 * GIB, optimizer=20 * GIB, activations=20 * GIB)


def steady(size_bytes: int | None, seconds: int = 20) -> Readings:
    return [(float(second), size_bytes) for second in range(seconds)]


def picture(history: Readings = (), **changes) -> RunGraphData:
    facts = {"history": history, "top_bytes": GPU_TOTAL, "span_seconds": 20.0, "now": 19.0, "colour": "#189746"}
    return RunGraphData(**(facts | changes))


def mark(time: float, letter: str) -> TimeMark:
    words = {"S": "start", "C": "context", "L": "loading", "F": "first step", "=": "steady"}
    return TimeMark(time, (words[letter], letter))


def texts(rows: list[list[Cell]]) -> list[str]:
    return ["".join(cell.char for cell in row) for row in rows]


def patterns(shown: RunGraphData) -> list[str]:
    return texts(run_graph_rows(shown, width=20, height=8, patterns=True))


def one_line(history: Readings, *, width: int = 20) -> str:
    return texts(run_graph_rows(picture(history), width=width, height=1))[0]


def test_unknown_readings_leave_a_gap():
    history = steady(GPU_TOTAL)
    history[5:8] = [(float(second), None) for second in range(5, 8)]
    assert one_line(history) == "█" * 5 + "   " + "█" * 12


def test_a_silent_source_leaves_a_gap_after_three_intervals():
    history = [(time, GPU_TOTAL) for time in (0.0, 1.0, 2.0, 12.0, 13.0)]
    assert one_line(history)[:14] == "█" * 5 + " " * 7 + "██"


def test_a_column_shows_the_highest_reading():
    history = steady(GPU_TOTAL // 10)
    history[7] = (7.0, GPU_TOTAL)
    assert one_line(history, width=10)[3] == "█"


def test_without_colour_layers_differ_in_their_pattern_and_held_memory_from_memory_to_come():
    rows = patterns(picture(steady(35 * GIB), layers=STACKED))
    assert [row[-1] for row in rows] == [" ", " ", "░", "░", "▄", "▓", "▒", "▒"]
    assert [row[-1] for row in patterns(picture(layers=STACKED))] == [*"  ░░  ░░"]


def test_with_colour_observed_memory_is_brighter_than_expected_memory():
    half = [(time, size if time < 10 else None) for time, size in steady(60 * GIB)]
    weights = run_graph_rows(picture(half, layers=STACKED), width=20, height=8)[-1]
    assert sum(bytes.fromhex(weights[0].ground[1:])) > sum(bytes.fromhex(weights[19].ground[1:]))


def test_memory_beyond_the_budget_belongs_to_no_component():
    assert [row[-1] for row in patterns(picture(steady(80 * GIB), layers=STACKED))] == [*"██", *"▒▒▓▓▒▒"]


def test_a_level_line_crosses_the_whole_graph_and_leaves_the_curve_as_it_is():
    line = LevelLine(GPU_TOTAL // 2, "-")
    drawn = [patterns(picture(history, lines=[line]))[3] for history in ((), steady(70 * GIB), steady(45 * GIB))]
    assert drawn == ["-" * 20, "-" * 20, "▄" * 20]


def test_marks_are_drawn_above_the_curve_and_on_the_axis():
    shown = picture(steady(GPU_TOTAL // 2), marks=[mark(4.0, "L")])
    rows = patterns(shown)
    column = rows[0].index("┊")
    assert [row[column] for row in rows] == [*"┊┊┊┊", *"████"]
    axis = "".join(cell.char for cell in axis_rows(shown, width=20)[0])
    assert axis[column : column + 8] == "▏loading"


def test_a_phase_that_began_before_the_graph_is_named_at_its_left():
    shown = picture(marks=[mark(-20.0, "S"), mark(-10.0, "L"), mark(5.0, "=")])
    axis = "".join(cell.char for cell in axis_rows(shown, width=40)[0])
    assert axis.startswith("▏loading")
    assert "start" not in axis
    assert "▏steady" in axis


def test_what_is_beyond_the_budget_is_red_and_what_is_within_it_is_not():
    rows = run_graph_rows(picture(steady(80 * GIB), layers=STACKED, high_bytes=60 * GIB), width=20, height=8)
    assert [row[-1].colour for row in rows[:1]] == [colour_of("bad")]
    within = picture(steady(55 * GIB), layers=STACKED, high_bytes=60 * GIB)
    assert colour_of("bad") not in {cell.colour for row in run_graph_rows(within, width=20, height=8) for cell in row}
    left = TimeMark(10.0, ("▲ over since 20:28:01", "▲ 20:28:01", "▲"), colour_of("bad"))
    axis = axis_rows(picture(marks=[left]), width=60)[0]
    assert "▲ over since 20:28:01" in "".join(cell.char for cell in axis)


def test_the_axis_of_an_ended_run_ends_at_its_end():
    assert axis_rows(picture(), width=30, end="end")[1].endswith(" end")


@pytest.mark.parametrize(
    ("card", "sizes", "ceiling"),
    [
        (GPU_TOTAL, [60 * GIB, None], GPU_TOTAL),
        (GPU_TOTAL, [90 * GIB], 90 * GIB),
        (GPU_TOTAL, [10 * GIB], 12 * GIB),
        (None, [10 * GIB], 12 * GIB),
        (GPU_TOTAL, [None], GPU_TOTAL),
        (None, [], 1),
    ],
)
def test_the_graph_ends_at_the_gpu_size_unless_the_run_is_too_small_for_it(card, sizes, ceiling):
    assert graph_top_bytes(card, *sizes) == ceiling


@given(
    sizes=st.lists(st.none() | st.integers(0, 2 * GPU_TOTAL), max_size=60),
    marks=st.lists(st.floats(-100, 100), max_size=5),
    width=st.integers(0, 40),
    height=st.integers(0, 12),
    span=st.floats(1, 90_000),
    layers=st.none() | st.builds(Components, **{name: st.integers(0, GPU_TOTAL) for name in COMPONENTS}),
    without_colour=st.booleans(),
)
def test_every_drawing_has_its_size_and_no_hole_below_a_reading(
    sizes, marks, width, height, span, layers, without_colour
):
    history = [(float(at), size) for at, size in enumerate(sizes)]
    lines = [LevelLine(40 * GIB, "-"), LevelLine(GPU_TOTAL, "=")]
    named = [mark(time, letter) for time, letter in zip(marks, "SCLF=", strict=False)]
    shown = picture(history, now=float(len(sizes)), span_seconds=span, layers=layers, lines=lines, marks=named)
    rows = run_graph_rows(shown, width=width, height=height, patterns=without_colour)
    assert [len(row) for row in rows] == ([width] * height if width else [])
    assert [len(row) for row in axis_rows(shown, width=width)] == [width, width]
    curve = texts(run_graph_rows(replace(shown, layers=None, lines=(), marks=()), width=width, height=height))
    for upper, lower in pairwise(curve):
        assert all(below == "█" for above, below in zip(upper, lower, strict=True) if above != " ")


class GraphApp(App[None]):
    def compose(self) -> ComposeResult:
        yield RunGraph(id="graph")


async def test_the_widget_draws_its_scales_at_every_size_and_repaints_only_changed_regions():
    app = GraphApp()
    async with app.run_test(size=(24, 10)) as pilot:
        graph = app.query_one(RunGraph)
        graph.show(picture(steady(GPU_TOTAL // 2)))
        await pilot.pause()
        assert graph.render_line(0).text.startswith("80 ┤")
        assert graph.render_line(7).text == " 0 ┤" + "█" * 20
        assert graph.render_line(9).text.endswith("now")
        repaints: list[object] = []
        graph.refresh = lambda *regions, **options: repaints.append(regions)  # type: ignore[method-assign]
        graph.show(picture(steady(GPU_TOTAL // 2), now=19.5))
        assert repaints == []
        graph.show(picture(steady(GPU_TOTAL), now=19.5))
        assert len(repaints) == 1
        del graph.refresh
        graph.show(picture(steady(GPU_TOTAL)))
        await pilot.resize_terminal(44, 8)
        await pilot.pause()
        assert graph.render_line(5).text == " 0 ┤" + " " + "█" * 39


async def test_the_widget_uses_patterns_without_colour(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    app = GraphApp()
    async with app.run_test(size=(24, 10)) as pilot:
        graph = app.query_one(RunGraph)
        graph.show(picture(steady(30 * GIB), layers=STACKED))
        await pilot.pause()
        assert graph.render_line(7).text == " 0 ┤ weights 20.0 " + "▒" * 6
