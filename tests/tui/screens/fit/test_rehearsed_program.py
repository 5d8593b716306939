"""A program on the fit check: opened by its command, rehearsed once its user agrees, and its step with its lines."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import make_board, make_gpu, no_job
from counted_python import counted_python
from screen_host import ScreenHost, screen_text
from textual.widgets import Static
from waiting import until_shown

from vramtop.estimator.job.job_file.changes import with_changes
from vramtop.estimator.job.job_file.load_and_save import load_job
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.tui.cli.estimators import Estimators
from vramtop.tui.job.dialogs import RehearseScreen
from vramtop.tui.job.form.job_form import JobForm
from vramtop.tui.screens.fit.screen import FitCheckScreen
from vramtop.tui.screens.fit.verdict_view import VerdictView
from vramtop.tui.screens.step.screen import StepScreen

pytest.importorskip("torch")

PROGRAM = """
import sys, torch
net = torch.nn.Linear(1024, int(sys.argv[1])).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(9):
    net(torch.randn(4096, 1024).cuda()).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.usefixtures("quick_rehearsals")
async def test_a_program_is_opened_rehearsed_and_drawn_with_its_lines(in_folder) -> None:
    Path("train.py").write_text(PROGRAM)
    told: list[str] = []
    quick_estimate = Estimators(None, corrects=False, notify=told.append).quick

    def quick(job, **options):
        def progress(text: str) -> None:
            told.append(text)
            options["progress"](text)

        return quick_estimate(job, **{**options, "progress": progress})

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
        await agree(pilot, screen)
        await until_shown(pilot, lambda: rehearsed(command))
        await until_shown(pilot, lambda: "rehearsed program" in screen_text(app))
        assert told[0].startswith("rehearsing train.py: ")
        await pilot.press("f5")
        await until_shown(pilot, lambda: isinstance(app.screen, StepScreen))
        await until_shown(pilot, lambda: "train.py:6" in screen_text(app))
        await pilot.press("escape")
        box = screen.query_one("#row-program-command Input")
        box.focus()
        await pilot.press("end", "backspace", "backspace", "backspace", "backspace", *"4096")
        await agree(pilot, screen)
        await until_shown(pilot, lambda: rehearsed(f"{sys.executable} train.py 4096"))
        await pilot.press(*["backspace"] * 4, *"8192")
        await until_shown(pilot, lambda: rehearsed(command))  # which is kept


READ = """
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
model = AutoModelForCausalLM.from_pretrained("gpt2")
args = TrainingArguments(output_dir="out", per_device_train_batch_size=4)
Trainer(model=model, args=args, train_dataset=[]).train()
"""
"""A program that is read, but for its sequence length."""
LIBRARY = f"""
import types
AutoModelForCausalLM = types.SimpleNamespace(from_pretrained=lambda _: None)
TrainingArguments = dict
class Trainer:
    def __init__(self, **_): pass
    def train(self):
        {PROGRAM.strip().replace("int(sys.argv[1])", "1024").replace(chr(10), chr(10) + "        ")}
"""
"""Stands for transformers where the program runs: a small training that ends soon."""


@pytest.fixture
def reading(in_folder: Path) -> FitCheckScreen:
    """A fit check in a folder whose programs find a small library."""
    Path("transformers.py").write_text(LIBRARY)
    quick = Estimators(None, corrects=False, notify=lambda _: None).quick
    return FitCheckScreen(Watchlist(estimate=quick), estimate=quick)


OFFER = "Not all of the program was read. Ctrl+R rehearses it"


@pytest.mark.slow
@pytest.mark.usefixtures("quick_rehearsals")
async def test_a_launch_line_that_does_not_state_everything_offers_its_rehearsal(
    reading, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("VRAMTOP_TESTS_ANEW", "transformers")
    Path("train.py").write_text(READ)
    app = ScreenHost(reading)
    async with app.run_test(size=(80, 24)) as pilot:
        view = reading.query_one(VerdictView)
        reading.action_open(f"{sys.executable} train.py")
        await until_shown(pilot, lambda: OFFER in screen_text(app))
        missing = problem(reading)
        await pilot.press("ctrl+r")
        await until_shown(pilot, lambda: isinstance(app.screen, RehearseScreen) and app.focused)
        said = str(app.screen.query(Static).first().content)
        assert f"command  {sys.executable} train.py\nfolder   {tmp_path}\n" in said
        await pilot.press("n")
        await until_shown(pilot, lambda: app.screen is reading)
        assert view.budget is None
        await pilot.press("ctrl+r")
        await until_shown(pilot, lambda: isinstance(app.screen, RehearseScreen) and app.focused)
        await pilot.press("y")
        await until_shown(pilot, lambda: view.budget is not None and not view.is_invalid)
        assert view.budget.rehearsal is not None
        assert view.budget.job.program.command == f"{sys.executable} train.py"
        await until_shown(pilot, lambda: OFFER not in screen_text(app))
        await reading.action_undo()
        await until_shown(pilot, lambda: OFFER in screen_text(app))
        assert problem(reading) == missing  # what is missing is not filled in with a default


async def test_what_was_not_followed_is_offered_beside_the_verdict_until_the_job_is_edited(reading) -> None:
    data = """from mylib import change, data
tokenizer = AutoTokenizer.from_pretrained("gpt2")
rows = data().map(lambda row: tokenizer(row["text"], truncation=True, padding="max_length", max_length=512))
change(model)
"""
    text = READ.replace("AutoModelForCausalLM, ", "AutoModelForCausalLM, AutoTokenizer, ", 1)
    text = text.replace("args = ", f"{data}args = ", 1).replace("train_dataset=[]", "train_dataset=rows")
    Path("train.py").write_text(text)
    app = ScreenHost(reading)
    async with app.run_test(size=(120, 40)) as pilot:
        view = reading.query_one(VerdictView)
        reading.action_open(f"{sys.executable} train.py")
        await until_shown(pilot, lambda: view.budget is not None and OFFER in screen_text(app))
        reading.query_one(JobForm).fill(with_changes(reading.job, {"training.micro_batch": 2}))
        await until_shown(pilot, lambda: OFFER not in screen_text(app))


@pytest.mark.parametrize("gpus", [1, 2])
async def test_a_trainer_that_finds_several_gpus_is_offered_its_rehearsal_above_the_verdict(reading, gpus) -> None:
    data = """tokenizer = AutoTokenizer.from_pretrained("gpt2")
rows = load_dataset("a").map(lambda row: tokenizer(row["text"], truncation=True, padding="max_length", max_length=512))
"""
    text = READ.replace("AutoModelForCausalLM, ", "AutoModelForCausalLM, AutoTokenizer, ", 1)
    text = text.replace("args = ", f"from datasets import load_dataset\n{data}args = ", 1)
    Path("train.py").write_text(text.replace("train_dataset=[]", "train_dataset=rows"))
    board = make_board([make_gpu(n) for n in range(gpus)], estimate=no_job)
    app = ScreenHost(reading)
    async with app.run_test(size=(80, 24)) as pilot:
        reading.show_board(board)
        reading.action_open(f"{sys.executable} train.py")
        await until_shown(pilot, lambda: reading.query_one(VerdictView).budget is not None)
        offer = "The program finds 2 GPUs, and this figure counts one (see below). Ctrl+R"
        await until_shown(pilot, lambda: (offer in screen_text(app)) == (gpus == 2))


async def agree(pilot: Any, screen: FitCheckScreen) -> None:
    """Wait until the program is said not to be rehearsed, ask for it, and agree."""
    view = screen.query_one(VerdictView)
    await until_shown(pilot, lambda: (view.problem or "").startswith("not rehearsed: Ctrl+R shows the command"))
    await pilot.press("ctrl+r")
    await until_shown(pilot, lambda: isinstance(pilot.app.screen, RehearseScreen) and pilot.app.focused)
    await pilot.press("y")


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[[], int]]:
    """How often the program has been started."""
    with counted_python(tmp_path / "python", runs=False) as count:
        yield count


@pytest.fixture
def marked(in_folder: Path, runs: Callable[[], int]) -> Path:
    """The current folder: a program, and a job file with it."""
    (in_folder / "train.py").touch()
    (in_folder / "job.toml").write_text(f'[program]\ncommand = "{in_folder}/python train.py"\n')
    return in_folder


def fit_check(file: Path) -> FitCheckScreen:
    quick = Estimators(None, corrects=False, notify=print).quick
    return FitCheckScreen(Watchlist(estimate=quick), estimate=quick, initial=load_job(file))


def problem(screen: FitCheckScreen) -> str:
    return screen.query_one(VerdictView).problem or ""


async def test_nothing_runs_before_the_user_has_seen_the_command_its_folder_its_python_and_its_owner(marked, runs):
    screen = fit_check(marked / "job.toml")
    app = ScreenHost(screen)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: problem(screen).startswith("not rehearsed: "))
        for answer in ("enter", "n", "escape"):
            await pilot.press("ctrl+r")
            await until_shown(pilot, lambda: isinstance(app.screen, RehearseScreen) and app.focused)
            said = str(app.screen.query(Static).first().content).splitlines()
            assert said == [
                f"command  {marked}/python train.py",
                f"folder   {marked}",
                f"Python   {marked}/python",
                f"script   {marked}/train.py, of {marked.owner()}",
                f"job file {marked}/job.toml",
            ]
            await until_shown(pilot, lambda: "Run this program without a GPU?" in screen_text(app))
            await pilot.press(answer)
            await until_shown(pilot, lambda: app.screen is screen)
        assert problem(screen).startswith("not rehearsed: ")
        assert runs() == 0
        await pilot.press("ctrl+r")
        await until_shown(pilot, lambda: isinstance(app.screen, RehearseScreen) and app.focused)
        await pilot.press("y")
        await until_shown(pilot, lambda: "the program ended without a result" in problem(screen))
        assert runs() == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_another_users_program_is_not_even_offered(marked: Path, runs: Callable[[], int]) -> None:
    screen = fit_check(marked / "job.toml")
    app = ScreenHost(screen)
    async with app.run_test(size=(120, 40)) as pilot:
        await until_shown(pilot, lambda: problem(screen).startswith("not rehearsed: "))
        for theirs in ("train.py", "python", "job.toml"):
            os.chown(marked / theirs, 65534, 65534)
            await pilot.press("ctrl+r")
            await until_shown(pilot, lambda theirs=theirs: f"{marked}/{theirs} belongs to nobody" in problem(screen))
            assert app.screen is screen
            os.chown(marked / theirs, os.geteuid(), os.getegid())
    assert runs() == 0
