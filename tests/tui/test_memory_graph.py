from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.app import App, ComposeResult

from vramtop.estimator.sizes import GIB
from vramtop.tui.bars import Cell
from vramtop.tui.widgets.memory_graph import Line, MemoryGraph, Readings, graph_rows

CARD = 80 * GIB


def draw(history: Readings, *, width: int = 20, height: int = 10, **changes) -> list[str]:
    facts = {"top_bytes": CARD, "span_seconds": 20.0, "now": 19.0} | changes
    return ["".join(cell.char for cell in row) for row in graph_rows(history, width=width, height=height, **facts)]


def steady(size_bytes: int | None, seconds: int = 20) -> list[tuple[float, int | None]]:
    return [(float(second), size_bytes) for second in range(seconds)]


def test_constant_ninety_percent_looks_ninety_percent_full():
    rows = draw(steady(CARD * 9 // 10))
    assert rows == [" " * 20, *["█" * 20] * 9]


def test_half_a_row_is_half_a_block():
    assert draw(steady(CARD // 16), height=8)[-1] == "▄" * 20


def test_ascii_draws_in_ascii_only():
    rows = draw(steady(CARD * 2 // 3), ascii_only=True, lines=[Line(CARD // 3, "-")])
    assert all(row.isascii() for row in rows)
    assert rows[-1] == "#" * 20


def test_unknown_readings_leave_a_gap():
    history = steady(CARD)
    history[5:8] = [(float(second), None) for second in range(5, 8)]
    assert draw(history, height=1) == ["█" * 5 + "   " + "█" * 12]


def test_a_silent_source_leaves_a_gap_after_three_intervals():
    history = [(0.0, CARD), (1.0, CARD), (2.0, CARD), (12.0, CARD), (13.0, CARD)]
    assert draw(history, height=1)[0][:14] == "█" * 5 + " " * 7 + "██"


def test_a_reading_fills_the_columns_until_the_next_one():
    assert draw([(0.0, CARD), (2.0, CARD), (4.0, CARD)], height=1, now=5.4, span_seconds=6.0, width=12) == [
        " " + "█" * 11
    ]


def test_a_column_keeps_the_most_that_was_seen():
    history = steady(CARD // 10)
    history[7] = (7.0, CARD)
    assert draw(history, width=10, height=1)[0][3] == "█"


def test_columns_do_not_change_while_time_passes_inside_one():
    history = steady(CARD // 2)
    assert draw(history, now=19.2) == draw(history, now=19.8)


@pytest.mark.parametrize("history", [[], steady(CARD)])
def test_the_line_lies_at_its_level_over_empty_and_full_columns(history):
    assert draw(history, lines=[Line(CARD // 2, "-")])[4] == "-" * 20


def test_the_line_is_dashed_where_a_row_is_partly_full():
    assert draw(steady(CARD // 2 + CARD // 20), lines=[Line(CARD // 2, "-")])[4] == "-▄▄▄" * 5


def test_of_two_lines_in_one_row_the_last_one_is_drawn():
    assert draw([], lines=[Line(CARD // 2, "-"), Line(CARD // 2 + 1, "=")])[4] == "=" * 20


def test_the_line_keeps_the_colour_behind_it():
    rows = graph_rows(
        steady(CARD),
        width=5,
        height=2,
        top_bytes=CARD,
        lines=[Line(0, "-", "#ffffff")],
        span_seconds=5.0,
        now=19.0,
        colour="#22c55e",
    )
    assert rows[1] == [Cell("-", "#ffffff", "#22c55e")] * 5


def test_a_line_beyond_the_card_lies_at_the_top():
    assert draw([], lines=[Line(2 * CARD, "-")])[0] == "-" * 20


@pytest.mark.parametrize(("width", "height"), [(0, 5), (5, 0), (-1, 3)])
def test_no_room_draws_nothing(width, height):
    assert draw(steady(CARD), width=width, height=height) == []


@given(
    sizes=st.lists(st.none() | st.integers(0, 2 * CARD), max_size=60),
    width=st.integers(1, 40),
    height=st.integers(1, 12),
    span=st.floats(1, 600),
)
def test_every_drawing_has_its_size_and_only_the_latest_readings(sizes, width, height, span):
    history = [(float(at), size) for at, size in enumerate(sizes)]
    rows = draw(history, width=width, height=height, span_seconds=span, now=float(len(sizes)))
    assert [len(row) for row in rows] == [width] * height
    for upper, lower in pairwise(rows):
        assert all(below == "█" for above, below in zip(upper, lower, strict=True) if above != " ")


class GraphApp(App[None]):
    def compose(self) -> ComposeResult:
        yield MemoryGraph(axis=True, id="graph")


async def test_the_widget_writes_its_scale_and_repaints_only_what_changed():
    app = GraphApp()
    async with app.run_test(size=(24, 10)) as pilot:
        graph = app.query_one(MemoryGraph)
        graph.show(steady(CARD // 2), top_bytes=CARD, span_seconds=20.0, now=19.0)
        await pilot.pause()
        assert graph.render_line(0).text.startswith("80 ┤")
        assert graph.render_line(9).text == " 0 ┤" + "█" * 20
        repaints: list[object] = []
        graph.refresh = lambda *regions, **options: repaints.append(regions)  # type: ignore[method-assign]
        graph.show(steady(CARD // 2), top_bytes=CARD, span_seconds=20.0, now=19.5)
        assert repaints == []
        graph.show(steady(CARD), top_bytes=CARD, span_seconds=20.0, now=19.5)
        assert len(repaints) == 1


async def test_the_widget_draws_again_when_the_terminal_is_resized():
    app = GraphApp()
    async with app.run_test(size=(24, 10)) as pilot:
        graph = app.query_one(MemoryGraph)
        graph.show(steady(CARD), top_bytes=CARD, span_seconds=20.0, now=19.0)
        await pilot.resize_terminal(44, 6)
        await pilot.pause()
        assert graph.render_line(5).text == " 0 ┤" + " " + "█" * 39
