from hypothesis import given, strategies as st

from vramtop.estimator.budget import Components
from vramtop.estimator.common.sizes import GIB
from vramtop.tui.draw.bars import HATCHED, BarSegment, component_segments, draw_bar, split_beyond
from vramtop.tui.draw.palette import COMPONENTS, colour_of, ink_on
from vramtop.tui.draw.text_output import TextOutput, to_ascii

FULL = Components(weights=15 * GIB, gradients=15 * GIB, optimizer=30 * GIB)


def text(cells) -> str:
    return "".join(cell.char for cell in cells)


def filled(size: int, fill: str, **options) -> BarSegment:
    return BarSegment(size_bytes=size, fill=fill, **options)


def drawn(*parts: BarSegment, scale: int = 100, width: int = 20, **options) -> str:
    return text(draw_bar(parts, scale_bytes=scale, width=width, **options))


def budget_bar(components: Components = FULL, *, width: int, scale: int = 80 * GIB, **options) -> str:
    uncertain = options.pop("uncertain", False)
    segments = component_segments(components, uncertain=uncertain)
    return text(draw_bar(segments, scale_bytes=scale, width=width, **options))


def test_segments_end_at_their_sum_on_the_scale() -> None:
    assert drawn(filled(25, "a"), filled(50, "b")) == "a" * 5 + "b" * 10 + " " * 5
    assert drawn(filled(100, "a"), filled(50, "b")) == "a" * 20
    assert drawn(filled(0, "a"), filled(50, "b")) == "b" * 10 + " " * 10


@given(
    sizes=st.lists(st.integers(0, 100), max_size=8),
    labels=st.lists(st.text("abc 1.", max_size=9), max_size=8),
    scale=st.integers(1, 300),
    width=st.integers(0, 80),
    low=st.none() | st.integers(0, 400),
    outlined=st.booleans(),
    hatched=st.booleans(),
)
def test_a_bar_always_has_the_requested_width(sizes, labels, scale, width, low, outlined, hatched) -> None:
    fill = HATCHED if hatched else " "
    parts = [filled(size, fill, colour="#207346", labels=tuple(labels), end_label="+1.0") for size in sizes]
    marked = None if low is None else (low, low + 30)
    cells = draw_bar(parts, scale_bytes=scale, width=width, marked=marked, outlined=outlined)
    assert len(cells) == width
    assert all(len(cell.char) == 1 for cell in cells)


def test_labels_shrink_from_words_with_figures_to_letters() -> None:
    labels = {width: budget_bar(width=width).replace("▏", " ").split() for width in (90, 72, 40, 24, 10)}
    assert labels[90] == ["weights", "15.0", "gradients", "15.0", "optimizer", "30.0"]
    assert labels[72] == ["weights", "15.0", "grad", "15.0", "optimizer", "30.0"]
    assert labels[40] == ["weights", "grad", "optim", "30.0"]
    assert labels[24] == ["W", "G", "optim"]
    assert labels[10] == ["W", "G", "O"]


def test_without_colour_lines_tell_segments_apart() -> None:
    assert budget_bar(width=72, outlined=True) == "│weights 15.0 │grad 15.0   │optimizer 30.0            │" + " " * 17
    assert budget_bar(width=16, outlined=True) == "│W │G │optim│   "


def test_components_differ_in_letter_and_colour() -> None:
    parts = component_segments(Components(weights=1, gradients=1, optimizer=1, activations=1, logits=1))
    assert "".join(part.labels[-1] for part in parts) == "WEGOALTIMC"
    assert len({part.colour for part in parts}) == 10
    (first, *_) = draw_bar(component_segments(FULL), scale_bytes=80 * GIB, width=40)
    weights = COMPONENTS["weights"].colour
    assert (first.colour, first.ground) == (ink_on(weights), weights)


def test_guessed_components_are_hatched_and_outlined_and_have_no_ground() -> None:
    cells = draw_bar(component_segments(FULL, uncertain=True), scale_bytes=80 * GIB, width=40)
    assert text(cells).startswith("│weights│grad ╱│optimizer 30.0│")
    assert {cell.ground for cell in cells} == {None}
    assert {cell.colour for cell in cells} - {None} == {
        COMPONENTS[name].colour for name in ("weights", "gradients", "optimizer")
    }


def test_the_range_is_marked_on_the_scale_and_hides_no_label() -> None:
    marked = (40 * GIB, 70 * GIB)
    assert budget_bar(width=80, marked=marked) == (
        " weights 15.0  ▏grad 15.0     ▏optim    ├" + "─" * 28 + "┤" + " " * 10
    )
    cells = draw_bar(component_segments(FULL), scale_bytes=80 * GIB, width=80, marked=marked)
    assert cells[45].ground == COMPONENTS["optimizer"].colour
    assert budget_bar(width=40, marked=(70 * GIB, 130 * GIB))[-1] == "▶"
    assert "+" + "-" * 28 + "+" in to_ascii(budget_bar(width=80, marked=marked))


def test_what_is_beyond_the_limit_is_one_red_segment_with_the_difference_at_its_end() -> None:
    parts = split_beyond(component_segments(FULL), 40 * GIB, "+20.0")
    assert [part.size_bytes // GIB for part in parts if part.size_bytes] == [15, 15, 10, 20]
    cells = draw_bar(parts, scale_bytes=80 * GIB, width=80)
    red = [cell.char for cell in cells if cell.ground == colour_of("bad")]
    assert len(red) == 20
    assert "".join(red).endswith("+20.0")
    assert split_beyond(component_segments(FULL), 60 * GIB) == component_segments(FULL)


def test_a_bar_is_written_in_the_colours_of_the_output() -> None:
    cells = draw_bar(component_segments(FULL), scale_bytes=80 * GIB, width=16)
    bars = {
        depth: TextOutput(colour_depth=depth, ascii_only=True, width=80).bar(cells) for depth in ("none", "16", "true")
    }
    assert bars["none"] == text(cells).replace("▏", "|")
    assert bars["16"].startswith("\x1b[97;44m W")
    assert "48;2;62;134;241m W" in bars["true"]
