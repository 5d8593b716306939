from hypothesis import given, strategies as st

from vramtop.tui.draw.memory_graph import TimelineMark, TimeMark, timeline_cells

RED = "#cb1a16"


def phase(column: int, word: str) -> TimelineMark:
    return column, TimeMark(0.0, (word, word[0].upper()))


def over(column: int) -> TimelineMark:
    return column, TimeMark(0.0, ("▲ over since 20:28:01", "▲ 20:28:01", "▲"), RED)


def drawn(*marks: TimelineMark, width: int = 40) -> str:
    return "".join(cell.char for cell in timeline_cells(marks, width))


def test_phases_are_named_where_there_is_room_and_by_a_letter_where_there_is_little() -> None:
    assert drawn(phase(0, "loading"), phase(10, "steady"), width=20) == "▏loading  ▏steady   "
    assert drawn(phase(0, "loading"), phase(3, "steady"), width=20) == "▏L ▏steady          "
    assert drawn(phase(0, "start"), phase(1, "loading"), width=12) == "S▏loading   "
    assert drawn(width=3) == "   "


def test_the_moment_a_job_left_its_budget_is_named_first() -> None:
    assert drawn(phase(2, "steady"), over(15)) == "  ▏steady      ▲ over since 20:28:01    "
    assert drawn(phase(2, "steady"), over(25)) == "  ▏steady                ▲ 20:28:01     "
    assert drawn(phase(2, "steady"), over(36)) == "  ▏steady       over since 20:28:01 ▲   "
    assert drawn(phase(2, "steady"), over(4), width=8) == "  S ▲   "
    assert drawn(phase(0, "steady"), over(27), width=28) == "▏S     over since 20:28:01 ▲"
    cells = timeline_cells([over(36)], 40)
    assert {cell.colour for cell in cells if cell.char != " "} == {RED}


@given(st.lists(st.integers(0, 50), max_size=6), st.none() | st.integers(0, 50), st.integers(0, 45))
def test_the_timeline_always_has_the_requested_width(columns, left, width) -> None:
    marks = [phase(column, "loading") for column in sorted(columns)]
    assert len(drawn(*marks, *([] if left is None else [over(left)]), width=width)) == width
