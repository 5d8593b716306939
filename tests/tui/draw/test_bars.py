from hypothesis import given, strategies as st

from vramtop.estimator.budget.budget import Components
from vramtop.tui.draw.bars import BarSegment, colour_runs, component_segments, draw_bar, mark_range


def drawn(*parts: BarSegment, scale: int = 100, width: int = 20) -> str:
    return "".join(cell.char for cell in draw_bar(parts, scale_bytes=scale, width=width))


def test_segments_end_at_their_sum_on_the_scale() -> None:
    assert drawn(BarSegment(25, "a"), BarSegment(50, "b")) == "a" * 5 + "b" * 10 + " " * 5
    assert drawn(BarSegment(100, "a"), BarSegment(50, "b")) == "a" * 20
    assert drawn(BarSegment(0, "a"), BarSegment(50, "b")) == "b" * 10 + " " * 10


def test_small_segments_keep_one_cell_only_on_request() -> None:
    assert drawn(BarSegment(1, "a"), BarSegment(1, "b"), BarSegment(1, "c"), BarSegment(2, "d")) == "c" + " " * 19
    kept = [BarSegment(1, char, min_one_cell=True) for char in "abc"]
    assert drawn(*kept, BarSegment(37, "d")) == "abc" + "d" * 5 + " " * 12


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(1, 300), st.integers(0, 80))
def test_a_bar_always_has_the_requested_width(sizes: list[int], scale: int, width: int) -> None:
    parts = [BarSegment(size, chr(97 + n)) for n, size in enumerate(sizes)]
    assert len(draw_bar(parts, scale_bytes=scale, width=width)) == width


def test_equal_sums_on_one_scale_end_in_the_same_cell() -> None:
    held = draw_bar([BarSegment(37, "#"), BarSegment(23, "=")], scale_bytes=81, width=64)
    budget = draw_bar([BarSegment(60, "W")], scale_bytes=81, width=64)
    assert sum(cell.char != " " for cell in held) == sum(cell.char == "W" for cell in budget)


def test_components_differ_in_letter_and_colour() -> None:
    parts = component_segments(Components(weights=1, gradients=1, optimizer=1, activations=1, logits=1))
    assert "".join(part.char for part in parts) == "WGOALTMC"
    assert len({part.colour for part in parts}) == 8


def test_the_range_is_marked_on_the_scale() -> None:
    cells = draw_bar([BarSegment(50, "W")], scale_bytes=100, width=20)
    assert "".join(cell.char for cell in mark_range(cells, low_bytes=40, high_bytes=60, scale_bytes=100)) == (
        "W" * 8 + "├──┤" + " " * 8
    )
    beyond = mark_range(cells, low_bytes=90, high_bytes=130, scale_bytes=100)
    assert beyond[-1].char == "▶"
    plain = mark_range(cells, low_bytes=40, high_bytes=60, scale_bytes=100, ascii_only=True)
    assert "".join(cell.char for cell in plain) == "W" * 8 + "[--]" + " " * 8


def test_runs_join_neighbours_of_one_colour() -> None:
    cells = draw_bar([BarSegment(50, "W", "#111111"), BarSegment(50, "G", "#222222")], scale_bytes=100, width=4)
    assert colour_runs(cells) == [("WW", "#111111"), ("GG", "#222222")]
