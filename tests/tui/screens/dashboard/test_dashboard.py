import gc
import queue
import threading
import time
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import pytest
from builders import (
    NoDriver,
    ScriptedSource,
    make_budget,
    make_gpu,
    make_process,
    make_run,
    make_snapshot,
    make_watchlist,
)
from rich.cells import cell_len
from screen_host import on_first_board, retype, screen_lines, screen_text
from slow_cases import quick_every
from textual.content import Content, Span
from textual.drivers.headless_driver import HeadlessDriver
from waiting import until_shown

from vramtop.estimator.budget import Budget
from vramtop.estimator.common.records import replace
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import ModelSpec
from vramtop.monitor.snapshot.figures import NO_DRIVER, Fault
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.monitor.sources.sampler import EarlySampler
from vramtop.tui.app.app import SourceFailed, VramtopApp
from vramtop.tui.app.help import HelpScreen
from vramtop.tui.app.options import AppOptions
from vramtop.tui.screens.dashboard.gpu_panel import GpuPanel
from vramtop.tui.screens.dashboard.gpu_rows import GpuRows
from vramtop.tui.screens.dashboard.process_table import ProcessTable

NEEDS = {"llama-8b-sft": 62.0, "qwen-7b-dpo": 52.0, "big": 70.0, "small": 5.0}


def job(name: str) -> Job:
    return Job(name=name, model=ModelSpec(id="meta-llama/Llama-3.1-8B"))


def open_app(
    snapshots: Sequence[Snapshot],
    *,
    jobs: dict[str, Sequence[int]] | None = None,
    pending: Sequence[str] = (),
    early: bool = False,
    **options: Any,
) -> VramtopApp:
    """Make an app that shows these snapshots; ``jobs`` maps the name of a job to the pids of its run."""

    def estimate(asked: Job) -> Budget:
        return make_budget(asked, device=NEEDS[asked.label])

    runs = [make_run(job(name), *pids) for name, pids in (jobs or {}).items()]
    watchlist = make_watchlist(*runs, pending=[job(name) for name in pending], estimate=estimate)
    source = ScriptedSource(snapshots)
    app = VramtopApp(
        EarlySampler(source, 0.05, watchlist.update) if early else source,
        watchlist,
        AppOptions(**({"interval": 0.25} | options)),
    )
    while early and source.reads < 2:  # by then the first snapshot has been passed on
        time.sleep(0.01)
    app.source_for_test = source
    return app


async def opened(pilot: Any, name: str) -> None:
    """Wait until a screen of this class is on top, with the latest board."""
    await until_shown(
        pilot, lambda: type(pilot.app.screen).__name__ == name and pilot.app.screen.is_mounted and pilot.app.screen.size
    )
    await until_shown(pilot, lambda: not pilot.app._is_opening)
    await pilot.pause()


async def test_panel_shows_figures_of_the_gpu_and_its_process():
    app = open_app([make_snapshot([make_gpu(0, [make_process(4711, 60.5)])])])
    async with on_first_board(app):
        text = screen_text(app)
        assert "61.5 of 80.0 GiB in use (77 %) · free 18.0 · util 98 % · 412 of 700 W · 63 °C" in text
        assert "train.py 60.5" in text
        assert "gpubox-3 · driver 580.95 · CUDA 13.0" in text
        assert "unattributed: driver" in text


async def test_the_first_frame_shows_the_early_reading(monkeypatch):
    """The first frame with the header also has the GPU's figures and its process."""
    written: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "is_headless", property(lambda _: False))
    monkeypatch.setattr(HeadlessDriver, "write", lambda _, data: written.append(data))
    app = open_app([make_snapshot([make_gpu(0, [make_process(4711, 60.5)])])], early=True)
    async with on_first_board(app):
        first = next(frame for frame in written if "vramtop" in frame)
        assert "61.5 of 80.0 GiB" in first
        assert "4711" in first


def test_readings_after_the_first_frame_go_to_the_app():
    taken, snapshot = queue.Queue(), make_snapshot([])
    head_start = EarlySampler(ScriptedSource([snapshot]), 0.05, lambda found: found)
    head_start.subscribe(taken.put, taken.put)
    assert taken.get(timeout=20) == taken.get(timeout=20) == snapshot
    head_start.sampler.stop(20)


async def test_a_failure_from_before_the_app_started_is_shown():
    closed = threading.Event()
    source, watchlist = NoDriver("no NVIDIA driver here"), make_watchlist()
    source.close = closed.set
    head_start = EarlySampler(source, 0.05, watchlist.update)
    assert closed.wait(20)
    app = VramtopApp(head_start, watchlist)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        assert "no NVIDIA driver here" in screen_text(app)


async def test_a_source_that_cannot_be_opened_is_reported():
    app = VramtopApp(NoDriver("no NVIDIA driver was found"), make_watchlist())
    async with app.run_test(size=(80, 24)) as pilot:
        await until_shown(pilot, lambda: "no NVIDIA driver was found" in screen_text(app))


async def test_job_over_its_budget_is_shown_by_word_and_sign_in_panel_table_and_summary():
    snapshot = make_snapshot([make_gpu(0, [make_process(1, 61.5)]), make_gpu(1, [make_process(2, 74.5)])])
    app = open_app([snapshot], jobs={"llama-8b-sft": [1], "qwen-7b-dpo": [2]})
    async with on_first_board(app):
        lines = screen_lines(app)
        assert any("▲ OVER  qwen-7b-dpo +22.5 on GPU 1" in line and "✓ 1 within budget" in line for line in lines)
        assert any("qwen-7b-dpo  ▲ OVER  +22.5 GiB" in line for line in lines)
        assert any(line.split()[:7] == ["2", "ana", "1", "74.5", "52.0", "+22.5", "▲"] for line in lines)


def grounds(line: Content) -> list[Span]:
    """The painted parts of a line."""
    return [span for span in line.spans if " on #" in str(span.style)]


async def test_observed_and_budget_bars_share_the_scale_of_the_gpu():
    gpu = make_gpu(0, [make_process(1, 40)], used_bytes=40 * GIB, reserved_bytes=0, free_bytes=40 * GIB)
    app = open_app([make_snapshot([gpu])], jobs={"qwen-7b-dpo": [1]})
    async with on_first_board(app):
        (panel,) = app.screen.query("#panels GpuPanel").results(GpuPanel)
        (held,), (*components,) = (grounds(panel.lines[at]) for at in (1, 2))
        ends = [line.plain.rindex("▏") for line in panel.lines[1:3]]
        assert ends[0] == ends[1]
        assert components[0].start == held.start
        width = ends[0] - held.start
        assert held.end - held.start == round(40 * width / 80)
        assert panel.lines[2].plain.index("┤") + 1 - held.start == round((52 + 52 / 16) * width / 80)


async def test_unknown_figures_are_shown_as_na_with_the_reason_and_never_as_zero():
    fault = Fault(field="used_bytes", code="NOT_SUPPORTED", message="this driver does not tell used memory")
    unknown = dict.fromkeys(
        ("used_bytes", "free_bytes", "reserved_bytes", "utilisation_percent", "power_w", "temperature_c", "processes")
    )
    app = open_app([make_snapshot([replace(make_gpu(0), **unknown, faults=(fault,))])])
    async with on_first_board(app, (160, 40)):
        text = screen_text(app)
        assert "memory n/a: this driver does not tell used memory" in text
        assert "processes n/a" in text
        assert "nothing is running" not in text
        assert "util n/a" in text
        assert " 0.0 " not in text.replace("every 0.25 s", "")


@pytest.mark.parametrize(("size", "table_rows"), [((120, 40), 8), ((80, 24), 2)])
async def test_sixteen_gpus_are_all_visible_with_the_processes_below(size, table_rows):
    gpus = [make_gpu(at, [make_process(100 + at, 20), make_process(200 + at, 30)]) for at in range(16)]
    app = open_app([make_snapshot(gpus)], jobs={"qwen-7b-dpo": [203]}, pending=["big", "small"])
    async with on_first_board(app, size):
        lines = screen_lines(app)
        gpu_lines = [line for line in lines if "51.0/80.0" in line]
        assert [int(line[1:3]) for line in gpu_lines] == list(range(16))
        assert sum("python train.py" in line or "qwen-7b-dpo: python" in line for line in lines) >= table_rows
        assert any("next: big" in line and "DOES NOT FIT" in line for line in lines)
        assert all(cell_len(line) == size[0] for line in lines)


async def test_arrow_chooses_a_gpu_and_opens_its_panel_and_a_small_terminal_scrolls_to_every_gpu():
    app = open_app([make_snapshot([make_gpu(at, [make_process(100 + at, 20)]) for at in range(16)])])
    async with on_first_board(app) as pilot:
        app.screen.query_one(GpuRows).focus()
        await pilot.press("down", "down")
        await pilot.pause()
        assert app.screen.query_one("#open", GpuPanel).shown.plain.startswith("┌─ 2 H100")
        await pilot.resize_terminal(80, 18)
        await pilot.press("end")
        await until_shown(pilot, lambda: any(line.startswith("▶15") for line in screen_lines(app)))


async def test_pending_job_that_does_not_fit_is_marked_by_a_word():
    app = open_app([make_snapshot([make_gpu(0, [make_process(1, 40)])])], pending=["small", "big"])
    async with on_first_board(app):
        lines = screen_lines(app)
        assert any("pending small  ✓ FITS" in line for line in lines)
        assert any("pending big  ✗ DOES NOT FIT  needs 70.0 GiB" in line for line in lines)


async def test_figures_are_marked_as_old_when_updates_stop():
    now = [100.0]
    app = open_app([], interval=1.0, clock=lambda: now[0])
    app.source_for_test.read = chain([make_snapshot([make_gpu(0)])], repeat(None)).__next__
    async with on_first_board(app, (120, 30)) as pilot:
        assert "old" not in screen_text(app)
        now[0] += 12.0
        await until_shown(pilot, lambda: "! figures are 12 s old" in screen_lines(app)[0])
        lines = screen_lines(app)
        assert any(line.startswith("── 0") and "! 12 s old" in line for line in lines)


async def test_gpu_with_an_old_reading_is_marked():
    app = open_app([make_snapshot([make_gpu(0), make_gpu(1, read_at=1_940.0)])], interval=1.0)
    async with on_first_board(app):
        titles = [line for line in screen_lines(app) if line.startswith("── ")]
        assert "old" not in titles[0]
        assert "! 1 min old" in titles[1]


async def test_app_quits_while_its_source_hangs():
    app = open_app([make_snapshot([make_gpu(0)])])
    source = app.source_for_test
    async with on_first_board(app, (80, 24)) as pilot:
        source.read_allowed.clear()
        await pilot.pause(0.1)
        await pilot.press("q")
        await pilot.pause()
    assert not app.is_running
    assert not source.read_allowed.is_set()
    source.read_allowed.set()


async def test_failed_source_is_one_line_and_the_app_goes_on():
    app = open_app([make_snapshot([make_gpu(0)])])
    async with on_first_board(app, (120, 30)) as pilot:
        app.source_for_test.read_allowed.clear()
        await pilot.pause(0.1)
        app.post_message(SourceFailed("the driver is gone"))
        await pilot.pause()
        text = screen_text(app)
        assert "the driver is gone" in text
        assert "0 H100" in text
        await pilot.press("question_mark")
        await pilot.pause()
        assert isinstance(app.screen, HelpScreen)
        app.source_for_test.read_allowed.set()


async def test_banner_distinguishes_a_replay_from_live_figures():
    app = open_app([make_snapshot([make_gpu(0)])], banner="demo recording: no NVIDIA driver found here")
    async with on_first_board(app, (80, 24)):
        assert "REPLAY  demo recording: no NVIDIA driver found here" in screen_text(app)


async def test_without_a_driver_the_dashboard_offers_planning():
    why = "no NVIDIA driver here: libnvidia-ml.so.1 was not found; install the driver, or start the container with it"
    app = open_app([make_snapshot([], faults=(Fault(field=None, code=NO_DRIVER, message=why),))])
    async with on_first_board(app, (80, 24)) as pilot:
        text = screen_text(app)
        assert " ".join(why.split()) in " ".join(text.split())  # in full, over two lines
        assert "PLANNING  press f to check a job against any GPU; --demo plays a recording" in text
        assert "0 GPUs" in text
        await pilot.press("f")
        await opened(pilot, "FitCheckScreen")


async def test_hostile_command_is_shown_as_plain_text():
    evil = make_process(1, 40, command="\x1b[31mrun [red]x[/red] [@click=app.quit]y\x07", user="[bold]eve")
    app = open_app([make_snapshot([make_gpu(0, [evil], name="[blink]card\x1b]0;t")])])
    async with on_first_board(app, (160, 40)):
        text = screen_text(app)
        assert "[red]x[/red] [@click=app.quit]y" in text
        assert "[blink]card" in text
        assert "\x1b" not in text
        assert "\x07" not in text


@pytest.mark.slow
async def test_control_characters_in_names_never_reach_the_terminal_from_any_screen(monkeypatch):
    evil = "[red]\x1b[31mx[/]\x07\u202e\u200b\u3164"
    monkeypatch.setitem(NEEDS, evil, 40.0)
    process = make_process(1, 30, command=evil, user=evil, note=evil)
    app = open_app([make_snapshot([make_gpu(0, [process], name=evil)])], jobs={evil: [1]}, pending=[evil])
    async with on_first_board(app, (160, 40)) as pilot:
        for keys, name in (
            ((), "DashboardScreen"),
            (("enter",), "AttachScreen"),
            (("escape", "a"), "AttachScreen"),
            (("escape", "f"), "ChoiceMenu"),
        ):
            await pilot.press(*keys)
            await opened(pilot, name)
            assert all(line.isprintable() and "\u3164" not in line for line in screen_lines(app)), keys


async def test_ascii_mode_draws_only_ascii():
    gpus = [make_gpu(0, [make_process(1, 61), make_process(3, 4)]), make_gpu(1, [make_process(2, 74.5)])]
    jobs = {"llama-8b-sft": [1], "qwen-7b-dpo": [2]}
    app = open_app([make_snapshot(gpus)], jobs=jobs, pending=["big", "small"], ascii_only=True)
    async with on_first_board(app) as pilot:
        text = screen_text(app)
        assert text.isascii(), set(text) - set(map(chr, range(128)))
        assert "^ OVER" in text
        assert "x DOES NOT FIT" in text
        await pilot.press("question_mark")
        await pilot.pause()
        assert screen_text(app).isascii()


async def test_ascii_and_pause_are_switched_while_running_and_a_repeated_key_opens_one_screen():
    app = open_app([make_snapshot([make_gpu(0)])])
    async with on_first_board(app, (100, 30)) as pilot:
        assert not screen_text(app).isascii()
        app.action_toggle_ascii()
        await pilot.press("Z")
        await pilot.pause()
        assert screen_text(app).isascii()
        assert " paused " in screen_lines(app)[0]
        app.action_open_screen("fit_check")
        app.action_open_screen("fit_check")
        await opened(pilot, "FitCheckScreen")
        assert [type(screen).__name__ for screen in app.screen_stack] == ["DashboardScreen", "FitCheckScreen"]


async def test_recording_can_be_started_and_contains_the_jobs(in_folder):
    from vramtop.monitor.sources.recording import read_recording

    app = open_app([make_snapshot([make_gpu(0, [make_process(1, 40)])])], jobs={"qwen-7b-dpo": [1]}, pending=["small"])
    async with on_first_board(app, (120, 30)) as pilot:
        await pilot.press("r")
        await until_shown(pilot, lambda: "recording vramtop-" in screen_lines(app)[0])
        reads = app.source_for_test.reads
        await until_shown(pilot, lambda: app.source_for_test.reads > reads + 1)
        await pilot.press("r")
    (path,) = in_folder.iterdir()
    first = next(iter(read_recording(path)))
    assert [watched.job.name for watched in first.watched] == ["qwen-7b-dpo"]
    assert [waiting.name for waiting in first.pending] == ["small"]


@pytest.mark.parametrize(
    ("key", "screen"), quick_every(3, [("f", "FitCheckScreen"), ("a", "AttachScreen"), ("enter", "AttachScreen")])
)
async def test_key_opens_the_screen_and_figures_keep_updating_behind_it(key, screen):
    app = open_app([make_snapshot([make_gpu(0, [make_process(999_999_001, 40)])])])
    async with on_first_board(app) as pilot:
        await pilot.press(key)
        await opened(pilot, screen)
        reads = app.source_for_test.reads
        await until_shown(pilot, lambda: app.source_for_test.reads > reads)
        await pilot.press("escape")
        await until_shown(pilot, lambda: "0 H100" in screen_text(app))


async def test_footer_is_complete_at_80_columns():
    app = open_app([make_snapshot([make_gpu(0, [make_process(1, 30)])])])
    async with on_first_board(app, (80, 24)):
        assert screen_lines(app)[-1].startswith(
            "Enter Open f Fit a Attach t Step / Filter v View s Sort k Kill ? Help q Quit"
        )


async def test_typing_filters_and_escape_shows_all():
    processes = [make_process(1, 10, user="ana"), make_process(2, 20, user="bob")]
    app = open_app([make_snapshot([make_gpu(0, processes)])])
    async with on_first_board(app) as pilot:
        await pilot.press("slash", *"bob")
        await pilot.pause()
        table = app.screen.query_one(ProcessTable)
        assert table.row_count == 1
        await pilot.press(*"zz")
        await pilot.pause()
        assert "no process matches 'bobzz'; Esc shows all" in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert table.row_count == 3
        assert table.has_focus
        assert "no process matches" not in screen_text(app)


async def test_pinned_jobs_can_be_unpinned():
    app = open_app([make_snapshot([make_gpu(0)])], pending=["big", "small"])
    async with on_first_board(app, (80, 24)) as pilot:
        await pilot.press("x", "down", "enter")
        await until_shown(pilot, lambda: [job.name for job in app.watchlist.pending()] == ["big"])
        await pilot.press("x")
        await until_shown(pilot, lambda: app.watchlist.pending() == ())
        await until_shown(pilot, lambda: not any(line.startswith(" pending") for line in screen_lines(app)))
        await pilot.press("x")
        await pilot.pause()
        assert any("No job is pinned here" in note.message for note in app._notifications)


async def test_an_ended_run_stays_in_the_table_until_it_is_dismissed():
    running = make_snapshot([make_gpu(0, [make_process(999_999_001, 40)])])
    gone = make_snapshot([make_gpu(0)], time=2_001.0)
    app = open_app([running, gone], jobs={"big": [999_999_001]})
    async with on_first_board(app) as pilot:
        await until_shown(pilot, lambda: any("■ ended" in line for line in screen_lines(app)))
        row = next(line for line in screen_lines(app) if "■ ended" in line and "999999001" in line)
        assert "was 40.0" in row
        app.screen.query_one(ProcessTable).focus()
        await pilot.press("x")
        await until_shown(pilot, lambda: not any("999999001" in line for line in screen_lines(app)))


async def test_attach_opens_the_run_under_the_cursor():
    running = make_snapshot([make_gpu(0, [make_process(999_999_001, 40), make_process(999_999_002, 20)])])
    app = open_app([running], jobs={"big": [999_999_001], "small": [999_999_002]})
    async with on_first_board(app) as pilot:
        await pilot.press("a")
        await until_shown(pilot, lambda: "no process 999999002" in screen_text(app))
        text = screen_text(app)
        assert text.lstrip().startswith("small")  # it is under its budget, so that its row is the first
        assert "pid 999999002" in text


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("a", "vramtop PID opens one"),
        ("e", "vramtop explain FILE"),
        ("k", "no process under the cursor"),
        ("p", "No job is pending"),
        ("t", "no step to show"),
    ],
)
async def test_a_key_with_nothing_to_open_says_so(key, words):
    app = open_app([make_snapshot([make_gpu(0)])])
    async with on_first_board(app) as pilot:
        await pilot.press(key)
        await until_shown(pilot, lambda: any(words in note.message for note in app._notifications))
        assert len(app.screen_stack) == 1


async def test_click_on_the_row_under_the_cursor_opens_it_in_every_column():
    app = open_app([make_snapshot([make_gpu(0, [make_process(1, 10), make_process(2, 20)])])])
    async with on_first_board(app) as pilot:
        await pilot.click(ProcessTable, offset=(50, 2))
        await pilot.pause()
        assert type(app.screen).__name__ == "DashboardScreen"
        await pilot.click(ProcessTable, offset=(5, 2))
        await opened(pilot, "AttachScreen")


@pytest.mark.slow
async def test_f_opens_a_pending_job_and_restores_the_settings_typed_before_escape():
    app = open_app([make_snapshot([make_gpu(0)])], pending=["small"])
    async with on_first_board(app) as pilot:
        await pilot.press("f")
        await until_shown(pilot, lambda: "small (pending)" in screen_text(app))
        await pilot.press("enter")
        await opened(pilot, "FitCheckScreen")
        assert app.screen.job in app.watchlist.pending()
        await retype(pilot, app.screen, "training.micro_batch", "2")
        await until_shown(pilot, lambda: app.screen.job and app.screen.job.training.micro_batch == 2)
        await pilot.press("escape")
        await until_shown(pilot, lambda: app.fit_draft is not None)
        await pilot.press("f")
        await opened(pilot, "ChoiceMenu")
        await pilot.press("down", "enter")
        await opened(pilot, "FitCheckScreen")
        assert app.screen.job.training.micro_batch == 2
        await pilot.press("f2")
        await until_shown(pilot, lambda: 2 in [job.training.micro_batch for job in app.watchlist.pending()])


async def test_garbage_is_collected_again_once_the_first_frame_is_drawn():
    app = open_app([make_snapshot([make_gpu()])])
    gc.disable()
    try:
        async with on_first_board(app):
            assert gc.isenabled()
            assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.enable()
