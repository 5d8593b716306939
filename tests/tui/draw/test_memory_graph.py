from itertools import pairwise

from hypothesis import given, strategies as st

from vramtop.estimator.common.sizes import GIB
from vramtop.tui.draw.memory_graph import Readings
from vramtop.tui.draw.run_graph import RunGraphData, run_graph_rows

CARD = 80 * GIB


def draw(history: Readings, *, width: int = 20, height: int = 10, **changes) -> list[str]:
    facts = {"top_bytes": CARD, "span_seconds": 20.0, "now": 19.0} | changes
    rows = run_graph_rows(RunGraphData(history=history, **facts), width=width, height=height)
    return ["".join(cell.char for cell in row) for row in rows]


def steady(size_bytes: int | None, seconds: int = 20) -> list[tuple[float, int | None]]:
    return [(float(second), size_bytes) for second in range(seconds)]


def test_unknown_readings_leave_a_gap():
    history = steady(CARD)
    history[5:8] = [(float(second), None) for second in range(5, 8)]
    assert draw(history, height=1) == ["█" * 5 + "   " + "█" * 12]


def test_a_silent_source_leaves_a_gap_after_three_intervals():
    history = [(0.0, CARD), (1.0, CARD), (2.0, CARD), (12.0, CARD), (13.0, CARD)]
    assert draw(history, height=1)[0][:14] == "█" * 5 + " " * 7 + "██"


def test_a_column_shows_the_highest_reading():
    history = steady(CARD // 10)
    history[7] = (7.0, CARD)
    assert draw(history, width=10, height=1)[0][3] == "█"


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
