"""Bars and histories of the GPU screen."""

from vramtop.tui.screens.gpu.activity import history_line, line_shape, share_bar


def test_an_unknown_share_has_no_bar_and_no_scale_and_differs_from_0() -> None:
    assert share_bar(None, 8, "red").plain == " " * 8
    assert share_bar(0.0, 8, "red").plain == "▁" * 8
    assert share_bar(0.5, 8, "red").plain == "▆" * 4 + "▁" * 4
    assert share_bar(7.0, 8, "red").plain == "▆" * 8


def test_a_gap_in_the_history_differs_from_0() -> None:
    history = [(0.0, 0), (1.0, 100), (2.0, None), (3.0, 50)]
    drawn = history_line(history, 4, top=100, style="red", span_seconds=4.0, now=3.9)
    assert drawn.plain == "_▇ ▄"


def test_the_parts_of_a_line_fit_every_width() -> None:
    for width in range(56, 240):
        shape = line_shape(width)
        assert 12 + shape.bar + 2 + shape.figures + shape.history <= width
