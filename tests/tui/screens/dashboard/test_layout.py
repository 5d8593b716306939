from math import ceil

import pytest

from vramtop.tui.screens.dashboard.gpus.gpu_panel_text import panel_height
from vramtop.tui.screens.dashboard.layout import plan_layout


@pytest.mark.parametrize("gpus", [0, 1, 2, 3, 4, 8, 16, 40])
@pytest.mark.parametrize("size", [(80, 21), (100, 27), (120, 37), (200, 57), (80, 10)])
@pytest.mark.parametrize("pending", [0, 1, 9])
def test_parts_fit_the_height_and_leave_space_for_the_table(gpus: int, size: tuple[int, int], pending: int):
    width, height = size
    plan = plan_layout(width=width, height=height, gpus=gpus, processes=500, pending=pending, budgets=True)
    opened = panel_height(plan.graph_height) if plan.open_panel else 0
    taken = plan.gpu_height + plan.titles + opened + plan.pending_height + plan.legend
    assert height - taken >= 5
    if plan.panels and gpus:
        assert plan.gpu_height == panel_height(plan.graph_height) * ceil(gpus / plan.columns)


def test_few_gpus_get_panels_with_graphs_and_many_get_rows():
    few = plan_layout(width=120, height=37, gpus=2, processes=4, pending=1, budgets=True)
    assert few.panels
    assert few.graph_height >= 4
    many = plan_layout(width=120, height=37, gpus=16, processes=40, pending=2, budgets=True)
    assert not many.panels
    assert many.gpu_height == 16
    assert many.open_panel


def test_wide_terminal_puts_panels_side_by_side():
    plan = plan_layout(width=200, height=57, gpus=8, processes=40, pending=0, budgets=True)
    assert plan.columns == 2
    assert plan.graph_height >= 2


def test_rows_that_do_not_fit_scroll_rather_than_hide_the_table():
    plan = plan_layout(width=80, height=21, gpus=40, processes=40, pending=3, budgets=False)
    assert plan.gpu_height == 16
    assert plan.pending_height == 0
