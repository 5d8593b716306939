"""The step screen, opened from the fit check, the dashboard and the attach screen."""

import threading
from typing import Any

import pytest
from builders import ScriptedSource, make_budget, make_gpu, make_process, make_run, make_snapshot, make_watchlist
from screen_host import ScreenHost, screen_lines, screen_text
from waiting import until_shown

from vramtop.estimator.budget import Budget, Components, LargeTensor, PhaseMark, Timeline
from vramtop.estimator.common.cancellation import current_token
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.screens.step.screen import StepScreen, show_step

MODEL = "meta-llama/Llama-3.1-8B"
JOB = Job(name="llama-8b-sft", model=ModelSpec(id=MODEL))
LEVELS = (
    Components(weights=15 * GIB, optimizer=20 * GIB, context=GIB),
    Components(weights=15 * GIB, optimizer=20 * GIB, activations=12 * GIB, logits=4 * GIB, context=GIB),
    Components(weights=15 * GIB, optimizer=20 * GIB, gradients=9 * GIB, context=GIB),
)


def traced(job: Job = JOB) -> Budget:
    """A traced budget of a job: 52 GiB at the peak, 54 reserved, in three moments."""
    line = Timeline(
        events=(100, 200, 300),
        levels=LEVELS,
        reserved_bytes=(36 * GIB, 54 * GIB, 54 * GIB),
        outside_bytes=GIB,
        phases=(
            PhaseMark(name="forward", event=100),
            PhaseMark(name="backward", event=201),
            PhaseMark(name="optimizer step", event=290),
        ),
    )
    tensors = (
        LargeTensor(module="", shape=(4096, 128256), dtype="float32", bytes=2 * GIB, component="logits"),
        LargeTensor(
            module="model.layers.31.mlp.down_proj.weight",
            shape=(4096, 14336),
            dtype="bfloat16",
            bytes=GIB // 8,
            component="weights",
        ),
    )
    budget = make_budget(job, device=55)
    peak = replace(budget.peak, components=LEVELS[1], allocated_bytes=LEVELS[1].total_bytes - GIB)
    return replace(budget, method="traced", peak=peak, largest=tensors, timeline=line)


@pytest.mark.parametrize(
    ("size", "labels"),
    [
        ((80, 24), ["optimizer 20.0"]),
        ((120, 40), ["weights 15.0", "optimizer 20.0", "activations 12.0"]),
        ((200, 60), ["weights 15.0", "optimizer 20.0", "activations 12.0", "logits and loss 4.0"]),
    ],
)
async def test_components_phases_lines_and_tensors_are_visible_at_every_size(size, labels):
    async with ScreenHost(StepScreen(traced(), gpu_bytes=80 * GIB)).run_test(size=size) as pilot:
        await pilot.pause()
        shown = screen_text(pilot.app)
        graph = screen_lines(pilot.app)[2 : size[1] * 2 // 3]
        assert all(sum(label in line for line in graph) == 1 for label in labels)
        assert any("═" * 30 in line for line in graph)
        assert any("─" * 10 in line for line in graph)
        assert "forward" in shown
        assert "optimizer step" in shown
        assert "GPU 80.0" in shown
        assert "to 55.0 GiB" in shown
        assert "down_proj.weight" in shown
        assert "4096 x 128256" in shown
        assert all(len(line) == size[0] for line in screen_lines(pilot.app))


async def test_ascii_mode_draws_only_ascii():
    source = ScriptedSource([make_snapshot([make_gpu()])])
    app = VramtopApp(source, make_watchlist(estimate=traced), AppOptions(interval=0.25, ascii_only=True))
    async with app.run_test(size=(80, 24)) as pilot:
        show_step(app, traced(), 80 * GIB)
        await until_shown(pilot, lambda: isinstance(app.screen, StepScreen) and "weights 15.0" in screen_text(app))
        assert screen_text(app).isascii()
        assert "====" in screen_text(app)


async def test_phases_of_the_formula_are_drawn_until_the_trace_arrives():
    go = threading.Event()

    def refine() -> Budget:
        assert go.wait(60)
        return traced()

    async with ScreenHost(StepScreen(make_budget(JOB), refine=refine)).run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert "Tracing the step" in screen_text(pilot.app)
        assert "phases, not time" in screen_text(pilot.app)
        assert "largest tensors" not in screen_text(pilot.app)
        go.set()
        await until_shown(pilot, lambda: "largest tensors" in screen_text(pilot.app))
        assert "Tracing the step" not in screen_text(pilot.app)


async def test_the_reason_for_a_missing_trace_is_shown():
    def refine() -> Budget:
        raise CannotTellError("no Python with torch was found")

    async with ScreenHost(StepScreen(make_budget(JOB), refine=refine)).run_test(size=(100, 30)) as pilot:
        await until_shown(pilot, lambda: "has no trace" in screen_text(pilot.app))
        assert "no Python with torch was found" in " ".join(screen_text(pilot.app).split())
    exact = replace(make_budget(JOB), method="exact", assumptions=("The step was not traced: zero3 cannot be traced.",))
    async with ScreenHost(StepScreen(exact)).run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        assert "zero3 cannot be traced" in " ".join(screen_text(pilot.app).split())


async def test_closing_the_screen_cancels_the_trace():
    begun, ended = threading.Event(), threading.Event()

    def refine() -> Budget:
        with current_token().on_cancel(ended.set):
            begun.set()
            ended.wait(60)
            raise CannotTellError("the worker ended")

    async with ScreenHost(StepScreen(make_budget(JOB), refine=refine)).run_test(size=(100, 30)) as pilot:
        await until_shown(pilot, begun.is_set)
        await pilot.press("escape")
        await until_shown(pilot, ended.is_set)
        assert not isinstance(pilot.app.screen, StepScreen)


async def test_the_dashboard_opens_the_job_under_the_cursor_and_keeps_its_better_budget():
    watchlist = make_watchlist(make_run(JOB, 1), device=40)
    source = ScriptedSource([make_snapshot([make_gpu(0, [make_process(1, 39)])])])

    def refine(job: Job, **_: Any) -> Budget:
        return traced(job)

    app = VramtopApp(source, watchlist, AppOptions(interval=0.25, refine=refine))
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: "llama-8b-sft" in screen_text(app) and "t Step" in screen_text(app))
        await pilot.press("t")
        await until_shown(pilot, lambda: isinstance(app.screen, StepScreen) and "largest tensors" in screen_text(app))
        assert "GPU 80.0" in screen_text(app)
        await pilot.press("escape")
        await until_shown(pilot, lambda: bool(app.board) and app.board.gpus[0].rows[0].budget.method == "traced")
