"""Terminating real processes from the app: the question, the keys, and the reported outcome."""

import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest
from builders import make_gpu, make_process, make_snapshot, make_watchlist
from screen_host import app_of, on_first_board, screen_text
from textual.widgets import Button
from waiting import until_shown

from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec, Parallel
from vramtop.monitor.host.terminate import ProcessTermination
from vramtop.monitor.snapshot.snapshot import Source, WatchedJob
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.cli.main import main
from vramtop.tui.screens.dashboard.process_table import ProcessTable
from vramtop.tui.screens.dashboard.screen import DashboardScreen
from vramtop.tui.screens.dashboard.signal_dialog import TerminateScreen, ask_which_signal

TERMINATE = "vramtop.tui.screens.dashboard.signal_dialog"
GRACE = "vramtop.monitor.host.terminate.GRACE_SECONDS"
SLEEPY = "import time; print(flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@pytest.fixture
def start(start_python):
    """Start a Python program, and wait for its first print."""

    def run(program: str = SLEEPY) -> subprocess.Popen:
        process = start_python(program)
        process.stdout.readline()
        return process

    return run


def make_reading(process: subprocess.Popen, **changes: Any) -> Any:
    """Return a real process as the monitor would read it, with 30 GiB."""
    start_time = psutil.Process(process.pid).create_time()
    return make_process(process.pid, **{"start_time": start_time} | changes)


def open_app(
    *gpus: list, source: Source | None = None, watched: WatchedJob | None = None, **options: Any
) -> VramtopApp:
    """Make an app with one GPU for each list of processes."""
    changes = {"source": source} if source else {}
    snapshot = make_snapshot([make_gpu(at, each) for at, each in enumerate(gpus)], time=time.time(), **changes)
    return app_of([snapshot], make_watchlist(*([watched] if watched else []), device=30), **options)


@pytest.fixture
def choices_enabled_at_once(monkeypatch):
    """Enable the choices without a delay."""
    monkeypatch.setattr(f"{TERMINATE}.ARMING_SECONDS", 0.0)


async def settle(pilot: Any) -> None:
    await until_shown(pilot, lambda: pilot.app.board and pilot.app.screen.query_one(ProcessTable).row_count)


async def open_dialog(pilot: Any) -> TerminateScreen:
    await settle(pilot)
    await pilot.press("k")
    await until_shown(
        pilot, lambda: isinstance(pilot.app.screen, TerminateScreen) and "holds" in screen_text(pilot.app)
    )
    return pilot.app.screen


@asynccontextmanager
async def asked(app: VramtopApp, size: tuple[int, int] = (100, 30)) -> AsyncIterator[Any]:
    """Run the app, and open the question about the process under the cursor."""
    async with on_first_board(app, size) as pilot:
        await open_dialog(pilot)
        yield pilot


async def ask_about_several(pilot: Any) -> None:
    await pilot.press("k")
    app = pilot.app
    await until_shown(pilot, lambda: isinstance(app.screen, TerminateScreen) and "users" in screen_text(app))


def footer_text(app: VramtopApp) -> str:
    return screen_text(app).splitlines()[-1]


def notice_text(app: VramtopApp) -> str:
    return " ".join(note.message for note in app._notifications)


def flat(text: str) -> str:
    """The dialog's text without its frame and line breaks."""
    return " ".join(text.replace("│", " ").split())


async def test_the_dialog_names_the_process_and_all_its_memory(start):
    process = start()
    row = make_reading(process, user="ana", command="python train.py --lr 1e-4")
    app = open_app([row], [make_reading(process, used_bytes=2**30)])
    async with asked(app, (80, 24)):
        assert app.screen.styles.background.a < 1  # the dashboard stays visible behind it
        text = flat(screen_text(app))
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.start_time))
        for words in (
            f"pid {process.pid}", "user ana", "command python train.py --lr 1e-4", f"started {started}",
            "30.0 GiB of GPU 0 · 1.0 GiB of GPU 1", "job unknown", "SIGTERM asks a process to end",
        ):  # fmt: skip
            assert words in text
        assert "not you" not in text
    assert process.poll() is None


async def test_the_dialog_states_the_age_of_its_figures(start):
    now = [100.0]
    app = open_app([make_reading(start())], clock=lambda: now[0])
    async with on_first_board(app, (80, 24)) as pilot:
        await pilot.press("Z")
        await until_shown(pilot, lambda: " paused " in screen_text(app))
        now[0] += 600
        await open_dialog(pilot)
        assert "30.0 GiB of GPU 0 (as of 10 min ago)" in flat(screen_text(app))


async def test_the_dialog_states_what_happens_to_the_other_ranks(start):
    ranks = [make_reading(start()) for _ in range(3)]
    job = Job(name="sft", model=ModelSpec(id="gpt2"), parallel=Parallel(strategy="ddp", data_replicate=3))
    watched = WatchedJob(job=job, pids=tuple(each.key for each in ranks))
    app = open_app(*([each] for each in ranks), watched=watched)
    async with on_first_board(app, (120, 40)) as pilot:
        await pilot.press("right", "down")
        await open_dialog(pilot)
        assert "job sft: 1 of 3 ranks; the others hang or die with them" in flat(screen_text(app))


async def test_the_dialog_names_possible_ranks_and_children(start):
    row = make_reading(start(), parent=77, command="python train.py --rank 0")
    kin = make_process(900_001, 5, parent=77, command="python train.py --rank 1")
    other = make_process(900_002, 4, parent=77, command="python -m http.server")
    child = make_process(900_003, 1, parent=row.pid, command="python train.py --rank 0")
    app = open_app([row, kin, other, child])
    async with asked(app, (120, 40)):
        text = flat(screen_text(app))
        assert "1 other process on GPUs runs train.py under the same parent (77)" in text
        assert "it started 1 other process on GPUs, which may still hold memory" in text


async def test_only_the_confirmation_key_ends_a_process(start, choices_enabled_at_once, monkeypatch):
    signals: list[object] = []
    monkeypatch.setattr(ProcessTermination, "send", lambda _, number: signals.append(number))
    app = open_app([make_reading(start())])
    async with app.run_test(size=(100, 30)) as pilot:
        for keys in (["enter"], ["escape"], ["k", "k", "k", "escape"], ["q"], ["n"], ["space", "s", "x", "escape"]):
            await open_dialog(pilot)
            await pilot.press(*keys)
            await until_shown(pilot, lambda: isinstance(app.screen, DashboardScreen))
    assert signals == []


async def test_keys_typed_before_the_dialog_opened_end_no_process(start, monkeypatch):
    monkeypatch.setattr(f"{TERMINATE}.ARMING_SECONDS", 3600.0)
    signals: list[object] = []
    monkeypatch.setattr(ProcessTermination, "send", lambda _, number: signals.append(number))
    app = open_app([make_reading(start())])
    async with on_first_board(app, (100, 30)) as pilot:
        await pilot.press("k", "y")
        await until_shown(pilot, lambda: isinstance(app.screen, TerminateScreen))
        assert app.screen.query_one("#terminate", Button).disabled
        await pilot.press("y")
        assert signals == []
        monkeypatch.setattr(f"{TERMINATE}.ARMING_SECONDS", 0.0)
        await until_shown(pilot, lambda: not app.screen.query_one("#terminate").disabled)
        await pilot.press("y")
        assert signals == [signal.SIGTERM]


async def test_y_ends_the_process_and_the_time_it_took_is_shown(start, choices_enabled_at_once):
    process = start()
    app = open_app([make_reading(process)])
    async with asked(app) as pilot:
        await pilot.press("y")
        await until_shown(pilot, lambda: f"✓ Process {process.pid} has ended " in screen_text(app))
        assert "s after SIGTERM" in screen_text(app)
        assert [str(button.label) for button in app.screen.query(Button) if button.display] == ["Close"]
        await pilot.press("enter")
        assert isinstance(app.screen, DashboardScreen)
    assert process.wait() == -signal.SIGTERM


async def test_sigkill_is_offered_for_a_process_that_does_not_end(start, choices_enabled_at_once, monkeypatch):
    monkeypatch.setattr(GRACE, 3600.0)
    process = start(STUBBORN)
    app = open_app([make_reading(process)])
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await open_dialog(pilot)
        await pilot.press("y", "y", "K", "K")
        await until_shown(pilot, lambda: "SIGTERM was sent" in screen_text(app))
        assert screen._batch.sent == signal.SIGTERM
        monkeypatch.setattr(GRACE, 0.0)
        await until_shown(pilot, lambda: "s after SIGTERM" in screen_text(app))
        assert "Still there" in screen_text(app)
        await pilot.press("y", "k")
        assert screen._batch.sent == signal.SIGTERM
        await until_shown(pilot, lambda: not screen.query_one("#kill").disabled)
        await pilot.press("K")
        await until_shown(pilot, lambda: "s after SIGKILL" in screen_text(app))
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
async def test_a_process_that_ends_while_the_dialog_is_open_is_reported_and_gets_no_signal(
    start, choices_enabled_at_once
):
    process = start()
    app = open_app([make_reading(process)])
    async with app.run_test(size=(100, 30)) as pilot:
        screen = await open_dialog(pilot)
        process.kill()
        process.wait()
        await until_shown(pilot, lambda: f"Process {process.pid} has ended without a signal" in screen_text(app))
        await pilot.press("y", "K")
        await pilot.pause(0.1)
        assert screen._batch.sent is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pid": 1}, "parent of all others"),
        ({"pid": os.getpid()}, "is vramtop itself or started it"),
        ({"start_time": None, "note": "not visible from here"}, "not visible from here"),
        ({"pid": 2**22 - 1}, "has ended already; no signal was sent"),
    ],
)
async def test_refusal_to_end_a_process_is_reported_in_one_sentence(changes, sentence):
    app = open_app([make_process(**{"pid": 4711} | changes)])
    async with on_first_board(app, (100, 30)) as pilot:
        await pilot.press("k")
        await until_shown(pilot, lambda: sentence in notice_text(app))
        assert isinstance(app.screen, DashboardScreen)


def offered(app: VramtopApp) -> bool:
    return "Kill" in {command.title for command in app.get_system_commands(app.screen)}


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_footer_and_palette_offer_termination(size):
    app = open_app([make_process()])
    async with on_first_board(app, size) as pilot:
        await until_shown(pilot, lambda: " k Kill " in footer_text(app))
        assert footer_text(app).rstrip().endswith("q Quit" if size[0] == 80 else "^p palette")
        assert offered(app)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"read_only": True},
            "vramtop was started with --read-only, or dashboard.read_only is set, so it does not end processes.",
        ),
        ({"source": Source(kind="recording", path="run.jsonl")}, "come from a recording"),
        ({"source": Source(kind="demo")}, "come from a recording"),
    ],
)
async def test_where_termination_is_off_the_key_is_hidden_and_the_reason_is_given(start, options, sentence):
    process = start()
    app = open_app([make_reading(process)], **options)
    async with on_first_board(app, (100, 30)) as pilot:
        await until_shown(pilot, lambda: "Quit" in footer_text(app))
        assert "Kill" not in footer_text(app)
        assert not offered(app)
        await pilot.press("k")
        await until_shown(pilot, lambda: sentence in notice_text(app))
        assert isinstance(app.screen, DashboardScreen)
        app.screen.action_terminate()
        await pilot.pause(0.1)
        assert isinstance(app.screen, DashboardScreen)


async def test_hostile_names_are_not_interpreted_by_the_terminal_or_as_markup(start):
    evil = "[red]\x1b]0;owned\x07\x1b[31mx[/]\n[@click=app.quit]y " + "z" * 3000
    app = open_app([make_reading(start(), command=evil, user=evil[:40], name=evil)])
    async with asked(app, (80, 24)):
        text = screen_text(app)
        assert all(line.isprintable() for line in text.splitlines())
        assert "[red]" in text
        assert "Leave it" in text
        assert "y TERM" in text


async def test_the_dialog_is_ascii_in_ascii_mode(start, choices_enabled_at_once):
    app = open_app([make_reading(start())], ascii_only=True)
    async with asked(app) as pilot:
        assert screen_text(app).isascii()
        await pilot.press("right", "enter")  # the button does what y does
        await until_shown(pilot, lambda: "has ended" in screen_text(app))
        assert screen_text(app).isascii()


@pytest.mark.parametrize(("words", "read_only"), [(["--read-only"], True), ([], False)])
def test_the_read_only_option_turns_termination_off(opened, words, read_only):
    assert main(words) == 0
    assert ("--read-only" in opened[0].termination_refusal) == read_only


async def test_several_processes_are_named_and_signalled_together(start, choices_enabled_at_once):
    processes = [start(), start()]
    rows = [make_reading(each, user=user) for each, user in zip(processes, ("ana", "bob"), strict=True)]
    first = make_process(1, 3, start_time=50.0, user="root", command="/sbin/init")
    app = open_app(rows[:1], [*rows[1:], first])
    async with on_first_board(app, (80, 24)) as pilot:
        ask_which_signal(app.screen, app.board.processes, app.board)
        await until_shown(pilot, lambda: isinstance(app.screen, TerminateScreen) and app.screen.is_mounted)
        text = flat(screen_text(app))
        for words in (
            "Signal these 3 processes together?", "users ana, bob, root", "holds 30.0 GiB of GPU 0 · 30.0 GiB of GPU 1",
            f"{processes[0].pid} ana", f"{processes[1].pid} bob", "1 ✗ Process 1 is the parent of all others",
            "Leave them", "y TERM", "i INT", "K KILL",
        ):  # fmt: skip
            assert words in text
        await pilot.press("i")
        await until_shown(pilot, lambda: "✓ 2 processes have ended, the last" in screen_text(app))
        assert "s after SIGINT; 1 got no signal" in flat(screen_text(app))
    assert [process.wait() for process in processes] == [-signal.SIGINT] * 2


async def test_unknown_memory_is_not_summed_as_zero(start):
    readings = [make_reading(start(), used=used) for used in (None, None)]
    app = open_app(*([reading] for reading in readings))
    async with on_first_board(app, (80, 24)) as pilot:
        ask_which_signal(app.screen, app.board.processes, app.board)
        await until_shown(pilot, lambda: isinstance(app.screen, TerminateScreen) and app.screen.is_mounted)
        assert "holds n/a of GPU 0 · n/a of GPU 1" in flat(screen_text(app))


async def test_all_ranks_of_a_folded_run_are_asked_about_together(start):
    ranks = [make_reading(start()) for _ in range(3)]
    job = Job(name="sft", model=ModelSpec(id="gpt2"), parallel=Parallel(strategy="ddp", data_replicate=3))
    app = open_app(*([each] for each in ranks), watched=WatchedJob(job=job, pids=tuple(each.key for each in ranks)))
    async with on_first_board(app, (100, 30)) as pilot:
        await ask_about_several(pilot)
        assert "sft: all 3 ranks; the run ends with them" in flat(screen_text(app))
