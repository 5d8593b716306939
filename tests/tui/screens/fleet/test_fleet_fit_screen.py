"""The fit screen over the fleet, driven through the real app on a scripted source."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from screen_host import screen_lines, screen_text
from scripted_fleets import HOSTS, NOW, ScriptedFleets, host
from textual.widgets import Input
from waiting import until_shown

from vramtop.estimator.advice.suggestion_search import shifted
from vramtop.estimator.common.errors import CannotTellError
from vramtop.estimator.common.sizes import GIB
from vramtop.estimator.estimation import quick_estimator
from vramtop.monitor.fleet.fleet import Fleet, HostReading
from vramtop.tui.app.app import FleetOptions
from vramtop.tui.app.fleet_app import FleetApp
from vramtop.tui.job.budgets_by_card import BudgetsByCard
from vramtop.tui.screens.fleet import job_fit
from vramtop.tui.screens.fleet.job_fit import FleetFitScreen
from vramtop.tui.screens.fleet.screen import FleetScreen

JOB = "llama-3.1-8b --qlora --seq-len 512 --ddp 2"
"""Takes less than 20 GiB on each of two GPUs: the free GPUs of HOSTS have 80 GiB, those in use 20 GiB."""


@pytest.fixture(autouse=True)
def _no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a job as soon as it is typed."""
    monkeypatch.setattr(job_fit, "_DELAY_SECONDS", 0.01)


class Clock:
    """Monotonic seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Estimates:
    """Counts the estimates of a job by method, and adds bytes to the closed form of all; a trace may fail."""

    def __init__(self, more_bytes: int = 0, trace: CannotTellError | int = 0, formula_knows: bool = True) -> None:
        self.more_bytes, self.trace, self.formula_knows = more_bytes, trace, formula_knows
        self.made: list[str] = []

    def __call__(self, typed: Any, *, traced: bool) -> BudgetsByCard:
        def estimate(job: Any, gpu: Any, memory_bytes: int | None) -> Any:
            self.made.append("traced" if traced else "formula")
            if traced and isinstance(self.trace, CannotTellError):
                raise self.trace
            if not traced and not self.formula_knows:
                raise CannotTellError("The closed form does not know this model.")
            more = self.trace if traced else self.more_bytes
            budget = quick_estimator(job, gpu=gpu)(job)
            return replace(shifted(budget, more), method="traced" if traced else "formula")

        return BudgetsByCard(typed.loaded.job, estimate, gpu_type=typed.gpu_type)


def drive(
    check: Callable[..., Any],
    *,
    size: tuple[int, int] = (120, 40),
    estimates: Estimates | None = None,
    job: str = "",
    **options: Any,
) -> None:
    """Run the app until the fit screen is open, by its key unless there is a job; then the check."""

    async def run() -> None:
        source = ScriptedFleets(HOSTS)
        app = FleetApp(
            source,
            FleetOptions(
                source="5 hosts over ssh", interval=0.1, budgets_for=estimates or Estimates(), job=job, **options
            ),
        )
        async with app.run_test(size=size) as pilot:
            await until_shown(pilot, lambda: app.fleet is not None)
            if not job:
                await pilot.press("f")
            await until_shown(pilot, lambda: isinstance(app.screen, FleetFitScreen) and app.screen.query(Input))
            await check(app, pilot, source)

    asyncio.run(run())


async def judged(app: FleetApp, pilot: Any, job: str, words: str) -> list[str]:
    """Type the job and return the lines of the screen once these words are there."""
    app.screen.query_one(Input).value = job
    await until_shown(pilot, lambda: words in screen_text(app))
    return screen_lines(app)


def row(app: FleetApp, name: str) -> str:
    return next(line for line in screen_lines(app)[4:] if name in line.split()[:2])


def filled(*readings: HostReading) -> tuple[HostReading, ...]:
    """Return the hosts with these in place of those of the same names."""
    by_name = {each.host: each for each in readings}
    return tuple(by_name.get(each.host, each) for each in HOSTS)


@pytest.mark.parametrize(
    "size",
    [(80, 24), pytest.param((120, 40), marks=pytest.mark.slow), pytest.param((200, 60), marks=pytest.mark.slow)],
    ids=lambda size: f"{size[0]}x{size[1]}",
)
def test_a_typed_job_is_judged_on_every_host_and_a_host_opens(size: tuple[int, int]) -> None:
    async def check(app, pilot, source):
        assert "Type or paste a job" in screen_text(app)
        await judged(app, pilot, JOB, "FITS")
        facts = "of 4 hosts: 3 now, 3 later, 3 empty · 1 not considered · closed form, Enter traces a step"
        await until_shown(pilot, lambda: facts in " ".join(screen_text(app).split()))  # laid out
        assert "fits on node3 (GPU 0, 1)" not in screen_text(app)  # it leaves the largest block on hosts in use
        placed = next(line for line in screen_lines(app) if line.startswith("* "))
        assert placed.count("✓ fits") == 3
        gone = row(app, "node4")
        assert "not considered, unreachable (last reading 3 min ago)" in gone
        assert not set("✓✗?") & set(gone)
        assert "✗ no" in row(app, "node10")  # one GPU for two ranks
        await pilot.press("down", "down", "enter")
        await until_shown(pilot, lambda: "Host node" in screen_text(app))
        await pilot.press("escape")
        await until_shown(pilot, lambda: "FITS" in screen_text(app))
        await pilot.press("escape")
        await until_shown(pilot, lambda: isinstance(app.screen, FleetScreen))
        await pilot.press("f")
        await until_shown(pilot, lambda: "FITS" in screen_text(app))
        assert app.screen.query_one(Input).value == JOB

    drive(check, size=size)


def test_it_follows_the_readings_without_another_estimate() -> None:
    estimates = Estimates(more_bytes=30 * GIB)  # now it fits on idle GPUs only

    async def check(app, pilot, source):
        await judged(app, pilot, JOB, "fits on node3 (GPU 0, 1)")
        assert "✗ no" in row(app, "node1")
        assert "✓ fits" in row(app, "node1")  # later
        source.fleet = Fleet(NOW + 2, filled(host("node3", "on_budget", "on_budget"))[:4])
        await until_shown(
            pilot, lambda: ("does not fit on any host now; it fits once the running jobs") in screen_text(app)
        )
        silent = msgspec.structs.replace(HOSTS[2], state="silent", reason="no reading arrives", since=NOW)
        source.fleet = Fleet(NOW + 4, filled(silent))
        await until_shown(pilot, lambda: "CANNOT TELL" in screen_text(app))
        assert "not considered, silent" in row(app, "node3")
        source.fleet = Fleet(NOW + 6, HOSTS)
        await until_shown(pilot, lambda: "fits on node3" in screen_text(app))
        assert estimates.made == ["formula"]

    drive(check, estimates=estimates)


def test_old_figures_have_no_verdict() -> None:
    clock = Clock()

    async def check(app, pilot, source):
        await judged(app, pilot, JOB, "FITS")
        source.fleet = CannotTellError("Prometheus does not answer")
        await until_shown(pilot, lambda: "Prometheus does not answer" in screen_text(app))
        clock.now += 60
        await until_shown(pilot, lambda: "too old for a verdict" in screen_text(app))
        text = screen_text(app)
        assert "CANNOT TELL" in text
        assert "✓" not in text
        assert "node3" not in text
        source.fleet = Fleet(NOW + 60, HOSTS)
        await until_shown(pilot, lambda: "FITS" in screen_text(app))

    drive(check, clock=clock)


def test_the_screen_works_while_hosts_are_judged_and_the_latest_reading_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    release, times, place = threading.Event(), [], job_fit.place_job

    def slow(fleet: Fleet, *rest: Any) -> Any:
        times.append(fleet.time)
        if len(times) > 1:
            assert release.wait(60)
        return place(fleet, *rest)

    monkeypatch.setattr(job_fit, "place_job", slow)

    async def check(app, pilot, source):
        await judged(app, pilot, JOB, "FITS")
        for later in (1, 2):
            source.fleet = Fleet(NOW + later, HOSTS)
            await until_shown(pilot, lambda: app.fleet is source.fleet)
        await until_shown(pilot, lambda: len(times) == 2)
        source.fleet = Fleet(NOW + 30, filled(*(host(each.host) for each in HOSTS)))
        await until_shown(pilot, lambda: "placing" in screen_text(app))  # the verdict is of figures 30 s older
        release.set()
        await until_shown(pilot, lambda: "DOES NOT FIT" in screen_text(app) or "CANNOT TELL" in screen_text(app))
        assert times[-1] == NOW + 30
        assert NOW + 2 not in times[2:]

    drive(check)


@pytest.mark.slow
def test_mistakes_are_said_and_forgotten_with_the_next_key() -> None:
    async def check(app, pilot, source):
        await judged(app, pilot, "gpt2 --qlroa", "jobs have no such setting: --qlroa")
        await judged(app, pilot, "no-job.toml", "no-job.toml: no such file")
        await judged(app, pilot, f"{JOB} --gpu-type h200", "has no GPU that the job can use")
        await judged(app, pilot, JOB, "FITS")
        assert "no such" not in screen_text(app)

    drive(check)


@pytest.mark.parametrize(
    ("trace", "words"),
    [(50 * GIB, "· traced"), (CannotTellError("torch is not there."), "not traced: torch is not there")],
)
def test_enter_traces_after_the_closed_form(trace: CannotTellError | int, words: str) -> None:
    estimates = Estimates(trace=trace)

    async def check(app, pilot, source):
        await until_shown(pilot, lambda: words in screen_text(app))
        assert estimates.made == ["formula", "traced"]
        assert "Enter traces" not in screen_text(app)
        assert ("fits on node3 (GPU 0, 1)" in screen_text(app)) == isinstance(trace, int)
        await pilot.press("enter")  # nothing is estimated again
        await pilot.pause()
        assert app.screen.hosts.has_focus
        assert estimates.made == ["formula", "traced"]

    drive(check, estimates=estimates, job=JOB)


def test_a_model_that_the_closed_form_does_not_know_is_traced_on_enter() -> None:
    async def check(app, pilot, source):
        await judged(app, pilot, JOB, "The closed form does not know this model; Enter tries a trace")
        assert "✓" not in screen_text(app)
        await pilot.press("enter")
        await until_shown(pilot, lambda: "FITS" in screen_text(app) and "· traced" in screen_text(app))

    drive(check, estimates=Estimates(formula_knows=False))
