"""What users of nvitop and htop look for: temperature and power of each GPU, headings, their keys."""

import pytest
from builders import make_gpu, make_process, make_run, make_snapshot, make_watchlist
from screen_host import app_of, on_first_board, screen_lines
from slow_cases import first_quick
from waiting import until_shown

from vramtop.tui.app.app import VramtopApp


def open_app(gpus: int, *, budgets: bool = False) -> VramtopApp:
    """Make an app on so many GPUs, each with a run of two processes whose job may have a budget."""
    readings, runs = [], []
    for at in range(gpus):
        pids = (100 + at, 200 + at)
        user = ("ana", "bob")[at % 2]
        readings.append(make_gpu(at, [make_process(pid, 30, user=user) for pid in pids], temperature_c=40 + at))
        runs.append(make_run(f"sft-{at}", *pids))
    return app_of([make_snapshot(readings)], make_watchlist(*(runs if budgets else []), device=30), interval=1.0)


@pytest.mark.parametrize("size", first_quick([(100, 30), (120, 40), (200, 60)]))
async def test_each_gpu_has_its_temperature_and_power(size: tuple[int, int]) -> None:
    async with on_first_board(open_app(8), size) as pilot:
        text = "\n".join(screen_lines(pilot.app))
        assert all(f"{40 + at} °C" in text for at in range(8))
        assert text.count("700 W") >= 8


async def test_they_stand_beside_the_jobs_at_120_columns() -> None:
    async with on_first_board(open_app(8, budgets=True), (120, 40)) as pilot:
        lines = screen_lines(pilot.app)
        assert all(any(f"{40 + at} °C" in line and f"sft-{at}" in line for line in lines) for at in range(8))


@pytest.mark.parametrize("gpus", [16, 32])
async def test_many_gpus_at_80x24_have_headings(gpus: int) -> None:
    async with on_first_board(open_app(gpus), (80, 24)) as pilot:
        lines = screen_lines(pilot.app)
        assert any("used/total   free   util   status" in line for line in lines)
        assert any(line.startswith("▶ 0 ") for line in lines)
        assert any("COMMAND" in line for line in lines)


async def test_columns_without_a_figure_go_first() -> None:
    for budgets in (False, True):
        async with on_first_board(open_app(1, budgets=budgets), (80, 24)) as pilot:
            app = pilot.app
            await pilot.press("v", "v", "v")
            heading = next(line for line in screen_lines(app) if "COMMAND" in line)
            assert ("USER" in heading) is ("BUDGET" not in heading) is not budgets


@pytest.mark.parametrize(
    ("key", "action"),
    [("o", "sort"), ("f6", "sort"), ("K", "terminate"), ("f9", "terminate"), ("h", "help")],
)
async def test_keys_of_htop_do_the_same(key: str, action: str) -> None:
    async with on_first_board(open_app(1)) as pilot:
        assert pilot.app.screen.active_bindings[key].binding.action == action


async def test_u_shows_the_processes_of_one_user_and_then_all() -> None:
    def users() -> set[str]:
        return {word for line in screen_lines(pilot.app) for word in line.split() if word in ("ana", "bob")}

    async with on_first_board(open_app(2), (120, 40)) as pilot:
        assert users() == {"ana", "bob"}
        await pilot.press("u")
        await until_shown(pilot, lambda: users() == {"ana"})
        assert any(line.strip() == "user:ana" for line in screen_lines(pilot.app))
        await pilot.press("u")
        await until_shown(pilot, lambda: users() == {"ana", "bob"})


async def test_light_in_the_palette_is_the_light_theme() -> None:
    async with on_first_board(open_app(1)) as pilot:
        await pilot.press("ctrl+p", *"light")
        await until_shown(pilot, lambda: any("Light theme" in line for line in screen_lines(pilot.app)))
        await pilot.press("enter")
        await until_shown(pilot, lambda: pilot.app.theme == "vramtop-light")
