import threading
from typing import Any

import pytest
from builders import make_budget, make_gpu, make_process, make_snapshot
from screen_host import field_row, opened, retype, screen_text
from slow_cases import first_quick
from textual.events import Paste
from textual.widgets import Input
from waiting import until_shown

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job, ModelSpec, Target, Training
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.estimator.job.settled import settled as as_settled, settles
from vramtop.monitor.board.board import Board
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.job.dialogs import CopiedTextScreen, OpenJobScreen, SaveJobScreen
from vramtop.tui.job.form.model_input import ModelInput
from vramtop.tui.screens.fit.gpu_picker import GpuPicker
from vramtop.tui.screens.fit.screen import FitCheckScreen
from vramtop.tui.screens.fit.suggestions import Suggestions
from vramtop.tui.screens.fit.verdict_view import VerdictView
from vramtop.tui.screens.step.screen import StepScreen
from vramtop.tui.widgets.choice import Choice
from vramtop.tui.widgets.match_list import MatchList, SearchChoice, SearchMenu

MODEL = "Llama-3.1-8B"
START = Job(model=ModelSpec(id=MODEL))


def estimate(job: Job) -> Budget:
    """Return an estimate of 10 GiB per sequence for one model, and an error for any other."""
    if job.model.id != MODEL:
        raise InputError(f"model {job.model.id!r} is not known; did you mean {MODEL!r}?")
    return make_budget(as_settled(job), device=10 * job.training.micro_batch)  # as the estimator fills in "auto"


@pytest.fixture
def watchlist() -> Watchlist:
    return Watchlist(estimate=estimate)


@pytest.fixture
def board(watchlist):
    """GPU 0 has 48.5 GiB free, GPU 1 has 78.5."""
    return watchlist.update(make_snapshot([make_gpu(0, [make_process(used=30)]), make_gpu(1)]))


@pytest.fixture
def fit(watchlist):
    """Opens the fit check on a job, and shows it a board."""

    def fit(board: Board | None = None, *, size: tuple[int, int] = (120, 40), **options: Any):
        screen = FitCheckScreen(watchlist, **{"estimate": estimate, "initial": START, **options})
        return opened(screen, board, size=size)

    return fit


def text_of(screen: FitCheckScreen, selector: str) -> str:
    if selector == "#answer":
        return "\n".join(str(screen.query_one(part).render()) for part in ("#answer", "#details"))
    return str(screen.query_one(selector).render())


def error_under(screen: FitCheckScreen, key: str) -> str:
    return " ".join(str(error.render()) for error in field_row(screen, key).query(".error"))


async def test_a_new_board_and_typing_a_micro_batch_change_the_verdict(fit, watchlist, board):
    async with fit(board) as (screen, pilot):
        await until_shown(pilot, lambda: "FITS" in text_of(screen, "#answer"))
        await retype(pilot, screen, "training.micro_batch", "9")
        await until_shown(pilot, lambda: "DOES NOT FIT" in text_of(screen, "#answer"))
        assert "short 11.5" in text_of(screen, "#answer")
        assert "batch 9 sequences" in text_of(screen, "#answer")
        screen.show_board(watchlist.update(make_snapshot([make_gpu(0, [make_process(used=75)])])))
        assert "short 86.5" in text_of(screen, "#answer")


async def test_a_model_typed_into_the_empty_form_has_the_versions_of_the_active_python(fit, tmp_path, monkeypatch):
    for name in ("torch-2.6.0", "transformers-4.52.4"):
        (tmp_path / "lib" / "python3.12" / "site-packages" / f"{name}.dist-info").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    async with fit(initial=None) as (screen, pilot):
        await retype(pilot, screen, "model.id", MODEL)
        await until_shown(pilot, lambda: screen.job is not None and screen.job.model.id == MODEL)
        assert screen.job.software.transformers == "4.52.4"
        assert any("Counted with transformers 4.52.4" in each for each in screen.query_one(VerdictView).notes)


async def test_a_wrong_value_is_reported_below_its_field_and_the_last_verdict_is_marked_as_old(fit, board):
    async with fit(board) as (screen, pilot):
        view = screen.query_one(VerdictView)
        await until_shown(pilot, lambda: "FITS" in text_of(screen, "#answer"))
        await retype(pilot, screen, "training.micro_batch", "2x")
        await until_shown(pilot, lambda: "'2x'" in text_of(screen, "#problem"))
        assert view.is_invalid
        assert "whole number" in error_under(screen, "training.micro_batch")
        assert "the last valid settings" in text_of(screen, "#problem")
        assert "FITS" in text_of(screen, "#answer")
        await pilot.press("backspace")
        await until_shown(pilot, lambda: not view.is_invalid)
        assert error_under(screen, "training.micro_batch") == ""


async def test_an_unknown_model_is_reported_below_its_field_and_nothing_is_pinned_or_copied(fit, watchlist):
    async with fit() as (screen, pilot):
        await retype(pilot, screen, "model.id", "nope")
        await until_shown(pilot, lambda: "did you mean" in error_under(screen, "model.id"))
        await pilot.press("f2", "f9")
        await until_shown(pilot, lambda: any("no model 'nope'" in notice for notice in pilot.app.notices))
        assert pilot.app.screen is screen
        assert watchlist.pending() == ()
        assert pilot.app.clipboard == ""


async def test_p_types_inside_a_field_and_pins_outside(fit, watchlist):
    async with fit() as (screen, pilot):
        await until_shown(pilot, lambda: screen.query_one(VerdictView).budget is not None)
        field_row(screen, "training.micro_batch").query_one(Input).focus()
        await pilot.press("p")
        assert watchlist.pending() == ()
        await pilot.press("backspace", "1")
        await until_shown(pilot, lambda: settled(screen))
        field_row(screen, "training.precision").query_one(Choice).focus()
        await pilot.press("p")
        assert watchlist.pending() == (START,)


async def test_a_slow_estimate_does_not_overwrite_a_later_one(fit, board):
    go = threading.Event()

    def estimate(job: Job) -> Budget:
        if job.training.micro_batch == 1:
            assert go.wait(60)
        return make_budget(job, device=10 * job.training.micro_batch)

    async with fit(board, estimate=estimate) as (screen, pilot):
        await retype(pilot, screen, "training.micro_batch", "2")
        assert screen.query_one(VerdictView).budget is None
        go.set()
        await until_shown(pilot, lambda: screen.query_one(VerdictView).budget is not None)
        budget = screen.query_one(VerdictView).budget
    assert budget.job.training.micro_batch == 2


async def test_a_late_quick_estimate_does_not_replace_the_exact_one(fit):
    exact = replace(make_budget(START, device=12), method="exact")
    async with fit() as (screen, pilot):
        await until_shown(pilot, lambda: screen.query_one(VerdictView).budget is not None)
        view = screen.query_one(VerdictView)
        view.set_budget(exact)
        view.set_budget(make_budget(START, device=10))
        assert view.budget == exact


async def test_without_gpus_a_gpu_of_the_catalogue_is_chosen(fit):
    async with fit() as (screen, pilot):
        await until_shown(pilot, lambda: "no GPU here" in text_of(screen, "#answer"))
        screen.query_one("#gpu-model", SearchChoice).value = "T4"
        await until_shown(pilot, lambda: "FITS" in text_of(screen, "#answer"))
        assert "T4" in text_of(screen, "#answer")
        await pilot.press("f4")
        await until_shown(pilot, lambda: isinstance(pilot.app.screen, SearchMenu))
        await pilot.press("escape", "tab", "3")
        await until_shown(pilot, lambda: "2 x T4: " in text_of(screen, "#answer"))
        assert screen.job.target.gpu == "t4"


async def test_a_job_with_a_target_gpu_starts_on_that_gpu(fit):
    aimed = Job(model=ModelSpec(id=MODEL), training=Training(micro_batch=3), target=Target(gpu="h100-80gb"))
    async with fit(initial=aimed, size=(80, 24)) as (screen, pilot):
        await pilot.pause()
        assert screen.job == aimed


@pytest.mark.parametrize("size", first_quick([(80, 24), (100, 30), (200, 60)]))
async def test_the_verdict_is_visible_at_every_size(fit, board, size):
    async with fit(board, size=size) as (screen, pilot):
        await until_shown(pilot, lambda: "FITS" in text_of(screen, "#answer"))
        await pilot.pause()
        answer = screen.query_one("#answer").region
        assert answer.y < size[1] - 4
        assert answer.right <= size[0]


@pytest.fixture
def large() -> Job:
    """A job that needs 160 GiB with the estimate above."""
    return Job(model=ModelSpec(id=MODEL), training=Training(micro_batch=16, optimizer="sgd", precision="bf16"))


def suggested(screen: FitCheckScreen) -> bool:
    return bool(screen.query_one(Suggestions).suggestions)


def settled(screen: FitCheckScreen) -> bool:
    budget = screen.query_one(VerdictView).budget
    return budget is not None and screen.job is not None and settles(budget.job, screen.job)


@pytest.mark.slow
async def test_a_suggestion_can_be_applied_in_three_ways_and_undone(fit, board, large):
    async with fit(board, initial=large) as (screen, pilot):
        for way in ("digit", "enter", "mouse"):
            await until_shown(pilot, lambda: suggested(screen))
            first = screen.query_one(Suggestions).suggestions[0]
            assert first.verdict == "fits"
            field_row(screen, "training.micro_batch").query_one(Input).focus()
            match way:
                case "digit":
                    await pilot.press("f6", "1")
                case "enter":
                    await pilot.press("f6", "enter")
                case "mouse":
                    await pilot.click(Suggestions, offset=(8, 2))
            await until_shown(pilot, lambda job=first.budget.job: screen.job == job)
            await until_shown(pilot, lambda: text_of(screen, "#answer").lstrip().startswith("✓ FITS"))
            assert not suggested(screen)
            await pilot.press("f10")
            assert screen.job == large


async def test_typing_is_undone_field_by_field(fit):
    async with fit() as (screen, pilot):
        await pilot.pause()
        await retype(pilot, screen, "training.micro_batch", "12")
        await retype(pilot, screen, "training.sequence_length", "512")
        await pilot.press("f10")
        assert (screen.job.training.micro_batch, screen.job.training.sequence_length) == (12, 2048)
        assert field_row(screen, "training.sequence_length").query_one(Input).value == "2048"
        await pilot.press("f10")
        assert screen.job == START


async def test_invalid_settings_get_no_suggestions(fit, board, large):
    async with fit(board, initial=large) as (screen, pilot):
        await until_shown(pilot, lambda: suggested(screen))
        await retype(pilot, screen, "training.micro_batch", "x")
        await until_shown(pilot, lambda: not suggested(screen))


async def test_a_launch_line_of_several_lines_is_pasted_and_opened(fit, in_folder):
    (in_folder / "train.py").write_text("from transformers import Trainer\n")
    async with fit(initial=None) as (screen, pilot):
        await pilot.press("f3")
        await until_shown(pilot, lambda: isinstance(pilot.app.screen, OpenJobScreen))
        box = pilot.app.screen.query_one(Input)
        lines = (
            f"python train.py \\\n  --model_name_or_path {MODEL} \\\n  --per_device_train_batch_size 3 --output_dir o\n"
        )
        box.post_message(Paste(lines))
        await until_shown(pilot, lambda: box.value.endswith("--output_dir o"))
        await pilot.press("enter")
        await until_shown(pilot, lambda: pilot.app.screen is screen and bool(screen.query(".remark")))
        assert field_row(screen, "training.micro_batch").value == 3
        assert "--per_device_train_batch_size" in str(
            field_row(screen, "training.micro_batch").query_one(".remark").render()
        )
        asked = [str(label.render()) for label in screen.query(".-missing")]
        assert asked == ["missing: fill these in"]
        assert screen.job is None
        assert "sequence length is missing" in text_of(screen, "#problem")
        await retype(pilot, screen, "training.sequence_length", "512")
        await until_shown(pilot, lambda: settled(screen))


async def test_a_model_with_flags_typed_into_the_models_field_is_opened(fit):
    async with fit(initial=None) as (screen, pilot):
        await pilot.pause()
        field = screen.query_one("#row-model-id Input")
        field.focus()
        field.value = "no-such-model"
        await until_shown(pilot, lambda: "no-such-model" in error_under(screen, "model.id"))
        field.value = f"{MODEL} --qlora --seq 512 -b 3 --gpu-type 4090"
        await until_shown(pilot, lambda: screen_text(pilot.app).count("Enter reads the whole line") == 2)
        assert "✗" not in screen_text(pilot.app)
        await pilot.press("enter")
        await until_shown(
            pilot, lambda: pilot.app.screen is screen and field_row(screen, "training.micro_batch").value == 3
        )
        assert field_row(screen, "model.id").value == MODEL
        assert screen.job.lora.quantization != "none"
        assert screen.job.target.gpu == "rtx-4090"


async def test_a_launch_line_that_chooses_gpus_is_judged_on_these(fit, board, in_folder):
    (in_folder / "train.py").write_text("from transformers import Trainer\n")
    settings = f"--model_name_or_path {MODEL} --per_device_train_batch_size 3 --max_length 512 --output_dir o"
    async with fit(board) as (screen, pilot):
        await until_shown(pilot, lambda: settled(screen))
        screen.query_one("#row-model-id Input").post_message(
            Paste(f"CUDA_VISIBLE_DEVICES=0 python train.py {settings}")
        )
        await until_shown(pilot, lambda: bool(screen.query(".remark")) and settled(screen))
        picker = screen.query_one(GpuPicker)
        assert [device.index for device in picker.devices(1)] == [0]
        assert "Only GPU 0: CUDA_VISIBLE_DEVICES in the launch line" in screen_text(pilot.app)
        assert screen.job.target.devices == [board.snapshot.gpus[0].uuid]


async def test_a_source_that_cannot_be_opened_is_reported_below_the_field(fit):
    async with fit(size=(80, 24)) as (screen, pilot):
        await pilot.press("f3", *"none.yaml", "enter")
        await until_shown(pilot, lambda: "no such file" in str(pilot.app.screen.query_one("#failure").render()))
        await pilot.press("escape")
        await until_shown(pilot, lambda: pilot.app.screen is screen)
        assert screen.job == START


async def test_a_job_is_saved_and_no_file_is_replaced_without_confirmation(fit, in_folder):
    async with fit() as (screen, pilot):
        await until_shown(pilot, lambda: settled(screen))
        await pilot.press("f8", "enter")
        await until_shown(pilot, lambda: pilot.app.screen is screen)
        assert load_job(in_folder / f"{MODEL}.toml") == START
        await retype(pilot, screen, "training.micro_batch", "2")
        await pilot.press("f8", "enter")
        await pilot.pause()
        assert "press Enter again to replace it" in str(pilot.app.screen.query_one("#failure").render())
        assert load_job(in_folder / f"{MODEL}.toml") == START
        assert isinstance(pilot.app.screen, SaveJobScreen)
        await pilot.press("enter")
        await until_shown(pilot, lambda: pilot.app.screen is screen)
        assert load_job(in_folder / f"{MODEL}.toml").training.micro_batch == 2


@pytest.mark.slow
async def test_the_changed_flags_are_copied_and_shown(fit):
    async with fit() as (screen, pilot):
        await retype(pilot, screen, "training.micro_batch", "2")
        await pilot.press("f9")
        await until_shown(pilot, lambda: isinstance(pilot.app.screen, CopiedTextScreen))
        assert pilot.app.clipboard == f"vramtop fit {MODEL} --micro-batch 2"
        await pilot.press("escape")
        await until_shown(pilot, lambda: pilot.app.screen is screen)


async def test_without_a_model_the_screen_asks_for_one_and_keys_explain_why_nothing_happens(fit):
    async with fit(initial=None, size=(80, 24)) as (screen, pilot):
        await until_shown(pilot, lambda: "enter a model" in text_of(screen, "#problem"))
        for key in ("f2", "f5", "f8"):
            pilot.app.notices.clear()
            await pilot.press(key)
            assert pilot.app.screen is screen
            assert "enter a model" in pilot.app.notices[-1]


async def test_a_traced_estimate_states_the_estimate_it_replaced_and_is_kept_when_pinned(fit, watchlist, board):
    go = threading.Event()

    def refine(job: Job) -> Budget:
        assert go.wait(60)
        return replace(make_budget(as_settled(job), device=12), method="traced")

    async with fit(board, refine=refine) as (screen, pilot):
        await until_shown(pilot, lambda: "tracing one step" in text_of(screen, "#answer"))
        go.set()
        await until_shown(pilot, lambda: "2.00 GiB more than the quick estimate of 10.0" in text_of(screen, "#answer"))
        await pilot.press("f2")
        await until_shown(pilot, lambda: bool(watchlist.pending()))
        (waiting,) = watchlist.update(board.snapshot).pending
        assert waiting.budget.method == "traced"
        await pilot.press("f5")
        await until_shown(pilot, lambda: isinstance(pilot.app.screen, StepScreen))


async def test_a_pending_job_is_replaced_when_it_is_pinned_again(fit, watchlist):
    watchlist.add_pending(START)
    async with fit(pinned=START) as (screen, pilot):
        await retype(pilot, screen, "training.micro_batch", "2")
        await until_shown(pilot, lambda: settled(screen))
        await pilot.press("f2")
        assert [job.training.micro_batch for job in watchlist.pending()] == [2]


async def test_memory_of_earlier_pending_jobs_is_unavailable(fit, watchlist, board):
    watchlist.add_pending(Job(model=ModelSpec(id=MODEL), training=Training(micro_batch=7)))
    asked = Job(model=ModelSpec(id=MODEL), training=Training(micro_batch=6))
    async with fit(watchlist.update(board.snapshot), initial=asked) as (screen, pilot):
        await until_shown(pilot, lambda: "DOES NOT FIT" in text_of(screen, "#answer"))


async def test_models_in_the_cache_are_listed(fit, tmp_path, monkeypatch):
    (tmp_path / "models--acme--rocket-9b").mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    async with fit(initial=None) as (screen, pilot):
        box = screen.query_one(ModelInput)
        await until_shown(pilot, lambda: any(model.name == "acme/rocket-9b" for model in box._models))
        await pilot.press(*"acme/")
        await until_shown(pilot, lambda: screen.query(MatchList) and screen.query_one(MatchList).highlighted)
        assert screen.query_one(MatchList).highlighted == "acme/rocket-9b"


async def test_closing_the_screen_keeps_the_typed_settings(fit):
    kept: list[Job] = []
    async with fit(on_close=kept.append) as (screen, pilot):
        await retype(pilot, screen, "training.micro_batch", "5")
        await pilot.press("escape")
        await until_shown(pilot, lambda: bool(kept))
    assert kept[0].training.micro_batch == 5


async def test_the_field_in_focus_is_explained_in_one_line(fit):
    async with fit() as (screen, pilot):
        await until_shown(pilot, lambda: "hub id" in text_of(screen, "#help"))
        field_row(screen, "training.sequence_length").query_one(Input).focus()
        await until_shown(pilot, lambda: "Default: 2048." in text_of(screen, "#help"))
        field_row(screen, "training.activation_checkpointing").query_one(Choice).focus()
        await until_shown(pilot, lambda: "One of none, full, selective." in text_of(screen, "#help"))
        screen.query_one("#group-model").focus()
        await until_shown(pilot, lambda: "Enter folds or unfolds" in text_of(screen, "#help"))
        await pilot.press("f6")
        await until_shown(pilot, lambda: "1-9 or Enter applies a change" in text_of(screen, "#help"))


async def test_alike_gpus_share_one_line(fit, watchlist):
    busy = [make_gpu(at, [make_process(used=30)]) for at in range(1, 9)]
    board = watchlist.update(make_snapshot([make_gpu(0), *busy]))
    async with fit(board) as (screen, pilot):
        await until_shown(pilot, lambda: "8 x H100 80GB: 48.5 GiB free each" in text_of(screen, "#answer"))


async def test_the_largest_batch_and_sequence_that_fit_are_said(fit, board):
    async with fit(board, size=(80, 24)) as (screen, pilot):
        await until_shown(pilot, lambda: screen.query_one("#largest").display)
        assert "micro-batch 4 (now 1)" in text_of(screen, "#largest")  # of 78.5 GiB, 10 for each
