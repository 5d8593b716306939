"""The preflight screen: rows while checks finish, cancellation, and opening the screen."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import ScriptedSource, make_budget, make_device, make_gpu, make_snapshot, make_watchlist
from model_configs import llama_config
from screen_host import ScreenHost, opened, screen_lines
from slow_cases import first_quick
from textual.app import App
from textual.widgets import Input
from waiting import until_shown

from vramtop.estimator.common.cancellation import CancelToken, current_token
from vramtop.estimator.common.errors import CancelledError, InputError
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.gpu_catalogue import find_gpu
from vramtop.estimator.job.job import Job, Target
from vramtop.estimator.job.settings import ModelSpec, Program, Run
from vramtop.monitor.board.capacity import device_capacities
from vramtop.monitor.preflight.check import Check, CheckContext, CheckResult, CheckStatus
from vramtop.monitor.preflight.checks import CHECKS
from vramtop.monitor.preflight.job_launch import JobInterpreter
from vramtop.monitor.preflight.machine import Machine
from vramtop.monitor.preflight.prepare import prepare
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.background.preflight_run import PreflightProgress, PreflightRequest, read_context
from vramtop.tui.job.dialogs import OpenJobScreen
from vramtop.tui.reports.preflight_text import summary_line
from vramtop.tui.screens.fit.screen import FitCheckScreen
from vramtop.tui.screens.preflight.screen import PreflightScreen, mark_line

LLAMA = llama_config(hidden=64, mlp=128, layers=2, heads=4, vocab=256)
JOB = Job(name="check-me", model=ModelSpec(config=LLAMA), target=Target(gpu="h100-80gb"))
ROOMS = (make_device(0, 79, name="H100 80GB"),)


class FixedCheck(Check, frozen=True):
    """A check with a given result, which waits for ``go``."""

    waits_for: str = "a word"
    scopes: list[CancelToken] = msgspec.field(default_factory=list)


def fixed_check(
    name: str,
    status: CheckStatus = "pass",
    *,
    found: str = "so it is",
    advice: str | None = None,
    go: threading.Event | None = None,
) -> FixedCheck:
    """Make one; it waits only the first time."""
    scopes: list[CancelToken] = []

    def run(context: CheckContext) -> CheckResult:
        scopes.append(current_token())
        if go is not None and len(scopes) == 1:
            go.wait(60)
        return CheckResult(name=name, status=status, found=found, advice=advice)

    return FixedCheck(name, run, scopes=scopes)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[PreflightRequest], CheckContext]:
    def read(subject: PreflightRequest) -> CheckContext:
        machine = Machine(devices=ROOMS, gpu_type=find_gpu("h100-80gb"))
        python = JobInterpreter(path=Path("/opt/env/bin/python"), origin="--python")
        return prepare(subject.job, machine, python, environ={}, folder=tmp_path)

    return read


@pytest.fixture
def make_screen(read: Callable[[PreflightRequest], CheckContext]) -> Callable[..., PreflightScreen]:
    def make(*checks: Check, **more: Any) -> PreflightScreen:
        return PreflightScreen(PreflightRequest(job=JOB), read=read, checks=checks, **more)

    return make


@pytest.fixture
def no_network(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("HF_", "CUDA_", "NSS_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(in_folder / "hf"))


def lines(app: App[Any]) -> list[str]:
    return [line.rstrip() for line in screen_lines(app)]


def text(app: App[Any]) -> str:
    return "\n".join(lines(app))


def rows(app: App[Any]) -> list[list[str]]:
    """Return mark, word and name of each row."""
    heads = [line.split() for line in lines(app)]
    return [words[:3] for words in heads if len(words) > 2 and words[0] in "✓!✗·?…"]


@pytest.mark.parametrize("size", first_quick([(80, 24), (120, 40)]))
async def test_rows_are_filled_as_checks_finish_and_failures_end_up_first(make_screen, size):
    go = threading.Event()
    done: list[PreflightProgress] = []
    slow = fixed_check("Slow", "failure", found="it is not there", advice="put it there", go=go)
    async with opened(
        make_screen(
            fixed_check("First"),
            fixed_check("Second", "skipped"),
            slow,
            fixed_check("Third", "warning"),
            on_done=done.append,
        ),
        size=size,
    ) as (_screen, pilot):
        await until_shown(pilot, lambda: "3 of 4 checks done; so far 1 warning" in text(pilot.app))
        await until_shown(pilot, lambda: "of 30 s: waits for a word" in text(pilot.app))
        assert [name for _, _, name in rows(pilot.app)] == ["First", "Second", "Slow", "Third"]
        assert rows(pilot.app)[2] == ["…", "running", "Slow"]
        assert "on 1 × H100 80GB elsewhere · /opt/env/bin/python (--python)" in text(pilot.app)
        assert not done
        go.set()
        worst_first = [["✗", "FAILURE", "Slow"], ["!", "warning", "Third"], ["✓", "pass", "First"]]
        await until_shown(pilot, lambda: rows(pilot.app) == [*worst_first, ["·", "skipped", "Second"]])
        await until_shown(pilot, lambda: "to do: put it there" in text(pilot.app))
        await until_shown(pilot, lambda: bool(done) and summary_line(done[0].worst_first) in text(pilot.app))
        assert "1 failure, 1 warning, 1 passed, 1 skipped: the job will fail" in text(pilot.app)


async def test_r_reruns_all_checks_without_waiting_for_one_that_hangs(make_screen):
    never = threading.Event()
    hangs = fixed_check("Hangs", found="answers now", go=never)
    async with ScreenHost(make_screen(hangs, fixed_check("Quick"))).run_test() as pilot:
        await until_shown(pilot, lambda: "1 of 2 checks done" in text(pilot.app))
        await pilot.press("r")
        await until_shown(pilot, lambda: "2 passed" in text(pilot.app))
        first, second = hangs.scopes
        assert first.cancelled
        assert not second.cancelled
        assert "answers now" in text(pilot.app)
    never.set()


async def test_leaving_the_screen_cancels_running_checks_and_quitting_is_not_delayed(make_screen):
    never = threading.Event()
    hangs, done = fixed_check("Hangs", go=never), []
    async with ScreenHost(make_screen(hangs, fixed_check("Quick"), on_done=done.append)).run_test() as pilot:
        await until_shown(pilot, lambda: bool(hangs.scopes))
        await pilot.press("escape")
        await until_shown(pilot, lambda: not isinstance(pilot.app.screen, PreflightScreen))
        await until_shown(pilot, lambda: hangs.scopes[0].cancelled)
        await pilot.app.push_screen(make_screen(hangs))
        await until_shown(pilot, lambda: len(hangs.scopes) == 2)
    assert hangs.scopes[1].cancelled
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("preflight"))
    assert not done
    never.set()


async def test_invalid_settings_are_reported_in_one_sentence():
    def refuse(_: PreflightRequest) -> CheckContext:
        raise InputError("lora.targets: no module of this model is called [nope]")

    async with opened(
        PreflightScreen(PreflightRequest(job=JOB), read=refuse, checks=[fixed_check("First")]), size=(80, 24)
    ) as (_screen, pilot):
        await until_shown(pilot, lambda: "cannot check: lora.targets" in text(pilot.app))
        assert "called [nope]" in text(pilot.app)
        assert not rows(pilot.app)


async def test_a_real_run_on_a_described_machine_ends_with_the_summary_of_the_command(no_network):
    run = Run(output_dir="out", inference_endpoint="https://integrate.api.nvidia.com/v1")
    job = Job(name="real", model=JOB.model, target=JOB.target, run=run)
    async with opened(PreflightScreen(PreflightRequest(job=job, devices=ROOMS)), size=(120, 50)) as (screen, pilot):
        await until_shown(pilot, lambda: screen.progress is not None and screen.progress.done)
        await pilot.pause()
        outcomes = screen.progress.worst_first
        assert {outcome.name for outcome in outcomes} == {check.name for check in CHECKS}
        assert "on 1 × H100 80GB elsewhere" in text(pilot.app)
        assert "NSS_INFERENCE_KEY is not set" in text(pilot.app)
        assert rows(pilot.app)[0][:2] == ["✗", "FAILURE"]
        assert summary_line(outcomes) in text(pilot.app)
        assert next(each.status for each in outcomes if each.name == "VRAM verdict") == "pass"


OTHER = Job(name="other", model=JOB.model)
OWN = Job(name="own", program=Program(command="python train.py"))


@pytest.mark.parametrize(
    ("pending", "keys", "words"),
    [
        ((JOB, OTHER), ("p", "down", "enter"), ("Preflight: other", "on this machine - ")),
        ((OWN,), ("p",), ("Preflight: own",)),
    ],
)
async def test_p_opens_preflight_for_the_pending_job_and_asks_which_of_several(no_network, pending, keys, words):
    app = VramtopApp(
        ScriptedSource([make_snapshot([make_gpu()])]),
        make_watchlist(pending=pending),
        AppOptions(interval=0.25, ascii_only=True),
    )
    async with app.run_test(size=(80, 24), notifications=True) as pilot:
        await until_shown(pilot, lambda: app.board is not None)
        for key in keys:
            await pilot.press(key)
            await pilot.pause()
        await until_shown(pilot, lambda: all(each in text(app) for each in words))
        assert text(app).isascii()


async def test_f12_in_the_fit_check_checks_the_machine_chosen_there(no_network):
    async with opened(FitCheckScreen(make_watchlist(), estimate=make_budget, initial=JOB)) as (
        screen,
        pilot,
    ):
        await pilot.pause()
        await pilot.press("f12")
        await until_shown(pilot, lambda: "on 1 × H100" in text(pilot.app) and "elsewhere" in text(pilot.app))
        await pilot.press("escape")
        await until_shown(pilot, lambda: pilot.app.screen is screen)


async def test_an_opened_launch_line_is_checked_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: dict[str, Any] = {}
    monkeypatch.setattr("vramtop.tui.screens.fit.screen.open_preflight", lambda *_, **given: asked.update(given))
    line = (
        "torchrun --nproc-per-node 1 train.py --model_name_or_path gpt2 --per_device_train_batch_size 1 --max_length 64"
    )
    async with opened(FitCheckScreen(make_watchlist(), estimate=make_budget)) as (screen, pilot):

        async def opens(text: str) -> None:
            await pilot.press("f3")
            await until_shown(
                pilot, lambda: isinstance(pilot.app.screen, OpenJobScreen) and pilot.app.screen.is_mounted
            )
            await pilot.pause()
            pilot.app.screen.query_one(Input).value = text
            await pilot.press("enter")

        await pilot.pause()
        await opens(line)
        await until_shown(pilot, lambda: pilot.app.screen is screen and screen.job.model.id == "gpt2")
        await pilot.press("f12")
        assert asked["launch"] == line.split()
        await opens("gpt2")
        await until_shown(pilot, lambda: pilot.app.screen is screen)
        await pilot.press("f12")
        assert asked["launch"] is None


async def test_f12_reports_that_there_is_no_job_yet():
    screen = FitCheckScreen(make_watchlist(), estimate=make_budget)
    async with ScreenHost(screen).run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.pause()
        await pilot.press("f12")
        await until_shown(pilot, lambda: "There is no job to check" in text(pilot.app))


def test_memory_that_running_jobs_will_still_take_is_not_free(no_network, monkeypatch: pytest.MonkeyPatch):
    snapshot = make_snapshot([make_gpu(0), make_gpu(1)])
    here = Machine(devices=device_capacities(snapshot, {}), snapshot=snapshot)
    monkeypatch.setattr("vramtop.tui.background.preflight_run.this_machine", lambda: here)
    board = replace(make_watchlist().update(snapshot), committed={0: 60 * GIB})
    job = Job(name="here", model=JOB.model)
    assert [room.available_bytes for room in read_context(PreflightRequest(job=job)).machine.devices] == [
        78.5 * GIB
    ] * 2
    machine = read_context(PreflightRequest(job=job, board=board)).machine
    assert [room.available_bytes for room in machine.devices] == [18.5 * GIB, 78.5 * GIB]
    elsewhere = replace(snapshot, source=replace(snapshot.source, kind="recording"))
    recorded = replace(board, snapshot=elsewhere)
    assert read_context(PreflightRequest(job=job, board=recorded)).machine == here


def test_a_known_deep_budget_is_not_estimated_again(no_network):
    traced = replace(make_budget(JOB), method="traced")
    assert read_context(PreflightRequest(job=JOB, devices=ROOMS, budget=traced)).deepest_budget() is traced
    other = replace(traced, job=Job(name="other"))
    context = read_context(PreflightRequest(job=JOB, devices=ROOMS, budget=other))
    cancel = CancelToken()
    cancel.cancel()
    with cancel.scope(), pytest.raises(CancelledError):
        context.deepest_budget()


def progress_of(*checks: FixedCheck) -> PreflightProgress:
    return PreflightProgress(
        checks=checks,
        outcomes={check.name: check.run(None) for check in checks},  # type: ignore[arg-type]
    )


def test_the_mark_counts_failures_and_warnings_or_else_passed_checks():
    bad = progress_of(
        fixed_check("a"), fixed_check("b", "failure"), fixed_check("c", "warning"), fixed_check("d", "failure")
    )
    assert str(mark_line(bad)) == "preflight: ✗ 2 failures, 1 warning · F12"
    assert str(mark_line(progress_of(fixed_check("a"), fixed_check("b", "skipped")))) == "preflight: ✓ 1 passed · F12"
    assert str(mark_line(bad, stale=True)) == "preflight: ✗ 2 failures, 1 warning (with other settings) · F12"
    assert str(mark_line(None)) == "preflight: not run · F12"
