"""A program on the fit check: opened by its command, rehearsed with progress, and its step with its lines."""

import sys
from pathlib import Path

import pytest
from screen_host import ScreenHost, screen_text
from waiting import until_shown

from vramtop.estimator.estimation import estimate
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.screens.fit import FitCheckScreen, VerdictView
from vramtop.tui.screens.step import StepScreen

pytest.importorskip("torch")

PROGRAM = """
import sys, torch
net = torch.nn.Linear(1024, int(sys.argv[1])).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(9):
    net(torch.randn(4096, 1024).cuda()).pow(2).mean().backward()
    optimizer.step()
"""


async def test_a_program_is_opened_rehearsed_and_drawn_with_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    told: list[str] = []

    def quick(job, **options):
        def progress(text: str) -> None:
            told.append(text)
            options["progress"](text)

        return estimate(job, **{**options, "progress": progress})

    screen = FitCheckScreen(Watchlist(estimate=quick), estimate=quick, refine=quick)

    def rehearsed(command: str) -> bool:
        view = screen.query_one(VerdictView)
        return bool(view.budget and not view.is_invalid and view.budget.job.program.command == command)

    app = ScreenHost(screen)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        command = f"{sys.executable} train.py 8192"
        screen.action_open(command)
        await until_shown(pilot, lambda: bool(screen.query("#row-program-command")))
        assert not [row for row in screen.query("FieldRow") if row.display and "program" not in str(row.id)]
        await until_shown(pilot, lambda: rehearsed(command))
        assert "rehearsed program" in screen_text(app)
        assert told[0].startswith("rehearsing train.py: ")
        await pilot.press("f5")
        await until_shown(pilot, lambda: isinstance(app.screen, StepScreen))
        await until_shown(pilot, lambda: "train.py:6" in screen_text(app))
        assert "optimizer.step()" not in screen_text(app)
        await pilot.press("down", "enter")
        await until_shown(pilot, lambda: "7      optimizer.step()" in screen_text(app))
        await pilot.press("enter")
        await until_shown(pilot, lambda: "optimizer.step()" not in screen_text(app))
        await pilot.press("escape")
        box = screen.query_one("#row-program-command Input")
        box.focus()
        await pilot.press("end", "backspace", "backspace", "backspace", "backspace", *"4096")
        await until_shown(pilot, lambda: rehearsed(f"{sys.executable} train.py 4096"))
