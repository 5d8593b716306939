import dataclasses
import threading
from collections.abc import Callable

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input, Select

from vramtop.estimator.budget import Budget
from vramtop.estimator.errors import InputError
from vramtop.estimator.job import Job, ModelSpec, Target, Training
from vramtop.monitor.watch import Watchlist
from vramtop.tui.screens.fit_check import FitCheckScreen
from vramtop.tui.widgets.choice import Choice
from vramtop.tui.widgets.job_form import FieldRow
from vramtop.tui.widgets.verdict import VerdictView

MODEL = "Llama-3.1-8B"
START = Job(model=ModelSpec(id=MODEL))


class Host(App[None]):
    """Shows one screen, and remembers what it has to say."""

    def __init__(self, screen: FitCheckScreen) -> None:
        super().__init__()
        self.shown = screen

    async def on_mount(self) -> None:
        await self.push_screen(self.shown)


@pytest.fixture
def estimate(make_budget) -> Callable[[Job], Budget]:
    """Ten GiB a sequence, for one model only."""

    def estimate(job: Job) -> Budget:
        if job.model.id != MODEL:
            raise InputError(f"model {job.model.id!r} is not known; did you mean {MODEL!r}?")
        return make_budget(job, device=10 * job.training.micro_batch)

    return estimate


@pytest.fixture
def watchlist(estimate) -> Watchlist:
    return Watchlist(estimate=estimate)


@pytest.fixture
def board(watchlist, make_snapshot, make_gpu, make_process):
    """GPU 0 has 48.5 GiB free, GPU 1 has 78.5."""
    return watchlist.update(make_snapshot([make_gpu(0, [make_process(used=30)]), make_gpu(1)]))


def row(screen: FitCheckScreen, key: str) -> FieldRow:
    return screen.query_one(f"#row-{key.replace('.', '-')}", FieldRow)


def text_of(screen: FitCheckScreen, selector: str) -> str:
    return str(screen.query_one(selector).render())


def error_under(screen: FitCheckScreen, key: str) -> str:
    return " ".join(str(error.render()) for error in row(screen, key).query(".error"))


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError("it did not happen within twenty seconds")


async def retype(pilot: Pilot[None], screen: FitCheckScreen, key: str, text: str) -> None:
    control = row(screen, key).query_one(Input)
    control.focus()
    await pilot.press("end", "ctrl+u", *text)


async def test_typing_a_micro_batch_changes_the_verdict(watchlist, estimate, board):
    screen = FitCheckScreen(watchlist, estimate=estimate, initial=START)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        screen.show_board(board)
        await until(pilot, lambda: "FITS" in text_of(screen, "#answer"))
        await retype(pilot, screen, "training.micro_batch", "9")
        await until(pilot, lambda: "DOES NOT FIT" in text_of(screen, "#answer"))
        assert "short 11.5" in text_of(screen, "#answer")
        assert "= 9 sequences" in text_of(screen, "#answer")


@pytest.mark.parametrize("width", [80, 100, 120])
async def test_values_and_phases_are_whole_at_usual_widths(watchlist, estimate, board, width):
    screen = FitCheckScreen(watchlist, estimate=estimate, initial=START)
    async with Host(screen).run_test(size=(width, 60)) as pilot:
        await pilot.pause()
        screen.show_board(board)
        await until(pilot, lambda: "total" in text_of(screen, "#answer"))
        await pilot.pause()
        lines = [strip.text for strip in screen._compositor.render_strips()]
        (framework,) = (line for line in lines if "  framework" in line)
        assert "transformers" in framework
        (heads,) = (line for line in lines if "GiB     " in line and "loading" in line)
        assert "optimizer" in heads


async def test_a_new_board_changes_the_verdict(watchlist, board, make_snapshot, make_gpu, make_process):
    screen = FitCheckScreen(watchlist, estimate=watchlist.estimate, initial=START)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        screen.show_board(board)
        await until(pilot, lambda: "FITS" in text_of(screen, "#answer"))
        screen.show_board(watchlist.update(make_snapshot([make_gpu(0, [make_process(used=75)])])))
        assert "DOES NOT FIT" in text_of(screen, "#answer")


async def test_a_wrong_value_is_said_under_its_field_and_the_last_verdict_is_marked_as_old(watchlist, estimate, board):
    screen = FitCheckScreen(watchlist, estimate=estimate, initial=START)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        screen.show_board(board)
        view = screen.query_one(VerdictView)
        await until(pilot, lambda: "FITS" in text_of(screen, "#answer"))
        await retype(pilot, screen, "training.micro_batch", "2x")
        await until(pilot, lambda: "'2x'" in text_of(screen, "#doubt"))
        assert view.doubtful
        assert "whole number" in error_under(screen, "training.micro_batch")
        assert "last settings that made sense" in text_of(screen, "#doubt")
        assert "FITS" in text_of(screen, "#answer")
        await pilot.press("backspace")
        await until(pilot, lambda: not view.doubtful)
        assert error_under(screen, "training.micro_batch") == ""


async def test_an_unknown_model_is_said_under_the_model(watchlist, estimate, board):
    screen = FitCheckScreen(watchlist, estimate=estimate, initial=START)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        await retype(pilot, screen, "model.id", "nope")
        await until(pilot, lambda: "did you mean" in error_under(screen, "model.id"))
        await pilot.press("f2")
        assert watchlist.pending() == ()


async def test_the_model_is_completed_while_it_is_typed(watchlist, estimate, board):
    screen = FitCheckScreen(watchlist, estimate=estimate)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        await pilot.press(*"llama-3.1")
        await until(pilot, lambda: screen.query_one("#row-model-id Input", Input)._suggestion != "")
        await until(
            pilot, lambda: any(MODEL in str(remark.render()) for remark in screen.query("#row-model-id .remark"))
        )
        await pilot.press("right")
        await until(pilot, lambda: screen.query_one(VerdictView).budget is not None)
        assert screen.job == START


async def test_without_a_model_the_screen_asks_for_one(watchlist, estimate):
    screen = FitCheckScreen(watchlist, estimate=estimate)
    async with Host(screen).run_test() as pilot:
        await until(pilot, lambda: "type a model" in text_of(screen, "#doubt"))


async def test_p_types_in_a_field_and_pins_outside_of_one(watchlist, estimate, board):
    screen = FitCheckScreen(watchlist, estimate=estimate, initial=START)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: screen.query_one(VerdictView).budget is not None)
        screen.query_one("#row-lora-targets Input", Input).focus()
        await pilot.press("p")
        assert watchlist.pending() == ()
        row(screen, "training.compile").query_one(Choice).focus()
        await pilot.press("p")
        assert watchlist.pending() == (START,)


@pytest.mark.parametrize("way", ["key", "mouse"])
async def test_pinning_works_by_key_and_by_mouse(watchlist, estimate, board, way):
    screen = FitCheckScreen(watchlist, estimate=estimate, initial=START)
    async with Host(screen).run_test() as pilot:
        await until(pilot, lambda: screen.query_one(VerdictView).budget is not None)
        await (pilot.press("f2") if way == "key" else pilot.click("#pin"))
        assert watchlist.pending() == (START,)


async def test_choices_and_words_reach_the_job(watchlist, estimate, board):
    screen = FitCheckScreen(watchlist, estimate=estimate, initial=START)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        assert not row(screen, "lora.rank").display
        row(screen, "lora").query_one(Choice).focus()
        await pilot.press("enter", "down", "down", "enter")
        await until(pilot, lambda: row(screen, "lora.quantization").display)
        row(screen, "training.compile").query_one(Choice).focus()
        await pilot.press("space")
        await retype(pilot, screen, "lora.targets", "k_proj, v_proj")
        await pilot.pause()
        job = screen.job
    assert job is not None
    assert job.lora is not None
    assert (job.lora.quantization, job.lora.targets) == ("nf4", ["k_proj", "v_proj"])
    assert job.training.compile


async def test_the_better_figure_replaces_the_quick_one_and_is_kept_when_pinned(
    watchlist, estimate, board, make_budget
):
    go = threading.Event()

    def refine(job: Job) -> Budget:
        go.wait(5)
        return dataclasses.replace(make_budget(job, device=12), method="exact")

    screen = FitCheckScreen(watchlist, estimate=estimate, refine=refine, initial=START)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        screen.show_board(board)
        await until(pilot, lambda: "from the shape" in text_of(screen, "#answer"))
        go.set()
        await until(pilot, lambda: "exact count" in text_of(screen, "#answer"))
        assert "12.0 GiB" in text_of(screen, "#answer")
        await pilot.press("f2")
        await until(pilot, lambda: bool(watchlist.pending()))
        waiting = watchlist.update(board.snapshot).pending[0]
    assert waiting.budget is not None
    assert waiting.budget.method == "exact"


async def test_a_slow_answer_does_not_overwrite_a_newer_one(watchlist, board, make_budget):
    go = threading.Event()

    def estimate(job: Job) -> Budget:
        if job.training.micro_batch == 1:
            go.wait(5)
        return make_budget(job, device=10 * job.training.micro_batch)

    screen = FitCheckScreen(watchlist, estimate=estimate, initial=START)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        screen.show_board(board)
        await retype(pilot, screen, "training.micro_batch", "2")
        assert screen.query_one(VerdictView).budget is None
        go.set()
        await until(pilot, lambda: screen.query_one(VerdictView).budget is not None)
        budget = screen.query_one(VerdictView).budget
    assert budget is not None
    assert budget.job.training.micro_batch == 2


async def test_a_quick_answer_that_comes_late_does_not_replace_the_exact_one(watchlist, board, make_budget):
    exact = dataclasses.replace(make_budget(START, device=12), method="exact")
    screen = FitCheckScreen(watchlist, estimate=watchlist.estimate, initial=START)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: screen.query_one(VerdictView).budget is not None)
        view = screen.query_one(VerdictView)
        view.take(exact)
        view.take(make_budget(START, device=10))
        assert view.budget == exact


async def test_without_gpus_a_card_of_the_catalogue_is_chosen(watchlist, estimate):
    screen = FitCheckScreen(watchlist, estimate=estimate, initial=START)
    async with Host(screen).run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: "no GPU here" in text_of(screen, "#answer"))
        screen.query_one("#card", Select).value = "t4"
        await until(pilot, lambda: "FITS" in text_of(screen, "#answer"))
        assert "T4" in text_of(screen, "#answer")
        await pilot.press("f3", "tab", "3")
        await until(pilot, lambda: text_of(screen, "#answer").count("T4") == 3)
        assert screen.job is not None
        assert screen.job.target.gpu == "t4"


async def test_a_job_for_a_card_begins_on_that_card(watchlist, estimate, board):
    aimed = Job(model=ModelSpec(id=MODEL), training=Training(micro_batch=3), target=Target(gpu="h100-80gb"))
    screen = FitCheckScreen(watchlist, estimate=estimate, initial=aimed)
    async with Host(screen).run_test() as pilot:
        await pilot.pause()
        assert screen.job == aimed


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (200, 60)])
async def test_the_verdict_can_be_seen_at_every_size(watchlist, estimate, board, size):
    screen = FitCheckScreen(watchlist, estimate=estimate, initial=START)
    async with Host(screen).run_test(size=size) as pilot:
        await pilot.pause()
        screen.show_board(board)
        await until(pilot, lambda: "FITS" in text_of(screen, "#answer"))
        await pilot.pause()
        answer = screen.query_one("#answer").region
        assert answer.y < size[1] - 4
        assert answer.right <= size[0]
