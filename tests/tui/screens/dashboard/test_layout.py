from itertools import product

import pytest

from vramtop.tui.screens.dashboard.layout import FRAME_LINES, DashboardLayout, PanelPlace, place_panels, plan_layout


def plan(framed: list[bool], size: tuple[int, int] = (120, 37), **changes) -> DashboardLayout:
    facts = {"processes": 40, "pending": 0, "budgets": True}
    return plan_layout(width=size[0], height=size[1], gpus=framed, **(facts | changes))


def placed(framed: list[bool], *, width: int = 120, room: int) -> tuple[PanelPlace, ...]:
    places = place_panels(tuple(framed), width=width, room=room)
    assert places is not None
    return places


@pytest.mark.parametrize("size", [(80, 21), (100, 27), (120, 37), (160, 47), (200, 57), (80, 10)])
@pytest.mark.parametrize("kind", [False, True, None])
def test_parts_fit_the_height_and_no_gpu_is_lost(size: tuple[int, int], kind) -> None:
    for gpus, pending in product([0, 1, 2, 3, 4, 8, 16, 40], [0, 1, 9]):
        check_layout(gpus, size, pending, kind)


def check_layout(gpus: int, size: tuple[int, int], pending: int, kind) -> None:
    width, height = size
    framed = [at % 3 > 0 if kind is None else kind for at in range(gpus)]
    layout = plan(framed, size, processes=500, pending=pending)
    opened = FRAME_LINES + layout.graph_height if layout.open_panel else 0
    taken = layout.gpu_height + layout.titles + opened + layout.pending_height + layout.legend
    assert gpus or not layout.open_panel
    assert height - taken >= 5 - layout.titles  # the rows of GPUs have headings even where the table is short
    if layout.panels is None:
        return
    assert len(layout.panels) == gpus
    cells = {
        (x, y)
        for place in layout.panels
        for x in range(place.x, place.x + place.width)
        for y in range(place.y, place.y + place.height)
    }
    assert len(cells) == sum(place.width * place.height for place in layout.panels)  # they do not overlap
    assert all(x < width and y < layout.gpu_height for x, y in cells)


def test_few_gpus_get_panels_with_graphs_and_many_get_rows() -> None:
    few = plan([True] * 2)
    assert few.panels is not None
    assert all(place.graph_height >= 4 for place in few.panels)
    many = plan([True] * 16)
    assert many.panels is None
    assert many.gpu_height == 16
    assert many.open_panel


def test_panels_stand_side_by_side_from_160_columns() -> None:
    assert {place.x for place in placed([True] * 2, width=159, room=40)} == {0}
    assert {place.x for place in placed([True] * 2, width=160, room=40)} == {0, 80}
    eight = placed([True] * 8, width=201, room=40)
    assert [place.x for place in eight] == [0] * 4 + [100] * 4
    assert {place.x + place.width for place in eight} == {100, 201}
    assert {place.graph_height for place in eight} == {6}
    assert {place.x for place in placed([True], width=200, room=40)} == {0}
