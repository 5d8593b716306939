"""A process that grows until its GPU is full, with a budget and without one: it is seen before, and after its end."""

import pytest
from builders import make_gpu, make_process, make_run, make_snapshot, make_watchlist
from screen_host import app_of, on_first_board, screen_lines
from slow_cases import first_quick
from waiting import until_shown

from vramtop.tui.app.app import VramtopApp

STEADY = [20.0] * 20
LEAK = [20.0 + 3 * second for second in range(1, 19)]


def open_app(
    *sizes: float | None, device: float | None = None, gpus: int = 1, missing: tuple[str, ...] = ()
) -> VramtopApp:
    """Make an app that has seen one process of these sizes, a second apart; None: it is on no GPU."""
    runs = [] if device is None else [make_run("llama-8b-sft", 4711, missing=missing)]
    watchlist = make_watchlist(*runs, device=device, is_running=lambda _: False)
    last = None
    for second, size in enumerate(sizes):
        processes = [] if size is None else [make_process(4711, size)]
        time = 2_000.0 + second
        others = [make_gpu(at, read_at=time) for at in range(1, gpus)]
        last = make_snapshot([make_gpu(0, processes, read_at=time), *others], time=time)
        watchlist.update(last)
    return app_of([last], watchlist)


@pytest.mark.parametrize("size", first_quick([(80, 24), (100, 30), (120, 40), (200, 60)]))
async def test_a_leak_without_a_budget_says_first_when_the_gpu_is_full(size: tuple[int, int]) -> None:
    async with on_first_board(open_app(*STEADY, *LEAK), size) as pilot:
        await until_shown(pilot, lambda: any("↗ GROWING" in line for line in screen_lines(pilot.app)))
        lines = screen_lines(pilot.app)
        assert any("GROWING  train.py full in 1 s on GPU 0" in line for line in lines[:4])
        assert any("train.py  ↗ GROWING  · GPU full in about 1 s" in line for line in lines)
        assert "↗ GROWING" in next(line for line in lines if " 4711 " in line)


@pytest.mark.parametrize("size", first_quick([(80, 24), (100, 30), (120, 40)]))
async def test_growth_beyond_a_budget_says_first_when_the_gpu_is_full(size: tuple[int, int]) -> None:
    async with on_first_board(open_app(*STEADY, *LEAK, device=20), size) as pilot:
        await until_shown(pilot, lambda: any("↗ GROWING" in line for line in screen_lines(pilot.app)))
        lines = screen_lines(pilot.app)
        assert any("llama-8b-sft full in 1 s on GPU 0" in line for line in lines[:4])
        assert any("llama-8b-sft  ↗ GROWING  · GPU full in about 1 s" in line for line in lines)


async def test_many_gpus_show_the_time_in_the_row() -> None:
    async with on_first_board(open_app(*STEADY, *LEAK, gpus=8), (80, 24)) as pilot:
        await until_shown(pilot, lambda: any("↗ GROWING" in line for line in screen_lines(pilot.app)))
        assert any("98 %   ↗ full in 1 s" in line for line in screen_lines(pilot.app)[3:])


async def test_a_process_that_ended_keeps_its_last_figure_marked_as_such() -> None:
    async with on_first_board(open_app(*STEADY, *LEAK, 77.0, None), (80, 24)) as pilot:
        await until_shown(pilot, lambda: any(" 4711 " in line for line in screen_lines(pilot.app)))
        lines = screen_lines(pilot.app)
        assert "was 77.0" in (row := next(line for line in lines if " 4711 " in line))
        assert "✗ OUT OF MEM" in row
        assert any("OUT OF MEMORY  train.py on GPU 0" in line for line in lines[:4])
        await pilot.press("x")
        await until_shown(pilot, lambda: not any(" 4711 " in line for line in screen_lines(pilot.app)))


async def test_a_budget_that_rests_on_guesses_is_marked() -> None:
    async with on_first_board(open_app(20.0, device=62, missing=("training.micro_batch",)), (120, 40)) as pilot:
        await until_shown(pilot, lambda: any("incomplete" in line for line in screen_lines(pilot.app)))
        lines = screen_lines(pilot.app)
        assert any("│ budget" in line and "?62.0 GiB" in line for line in lines)
        assert " ?62.0 " in next(line for line in lines if " 4711 " in line)
