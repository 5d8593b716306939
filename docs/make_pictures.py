"""Draws the README's pictures: the real program on the demo recording, stopped at one second of it."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from vramtop.estimator.budget.budget import Budget
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.monitor.sources.demo import demo_path
from vramtop.monitor.sources.recording import read_recording
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.background.job_estimates import EstimateFunction
from vramtop.tui.screens.step.screen import StepScreen

FOLDER = Path(__file__).parent
SECOND = 132
"""Second of the recording at which one job is on budget, one is over, and one no longer fits."""


class Still:
    """A source that always returns the same snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def open(self) -> None:
        """Nothing to open."""

    def read(self) -> Snapshot:
        """Return the snapshot."""
        return self._snapshot

    def close(self) -> None:
        """Nothing to close."""


async def draw(
    name: str,
    size: tuple[int, int],
    act: Callable[[Pilot[None]], Coroutine[Any, Any, None]],
    refine: EstimateFunction | None = None,
) -> None:
    """Open the program, act as a user would, and save the screen."""
    snapshots = list(read_recording(demo_path()))[: SECOND + 1]
    watchlist = Watchlist(estimate)
    for snapshot in snapshots:
        watchlist.update(snapshot)
    app = VramtopApp(Still(snapshots[-1]), watchlist, AppOptions(interval=1.0, refine=refine))
    async with app.run_test(size=size) as pilot:
        while app.board is None:
            await pilot.pause(0.05)
        await act(pilot)
        await pilot.pause(0.5)
        (FOLDER / f"{name}.svg").write_text(app.export_screenshot(title="vramtop"))


def trace(job: Job, *, environ: Mapping[str, str] | None = None, python: str | None = None) -> Budget:
    """Estimate a job by tracing it, under the Python that runs this script."""
    return estimate(job, method="traced", environ=environ, python=python or sys.executable)


async def nothing(pilot: Pilot[None]) -> None:
    """Wait for the first frame."""
    await pilot.pause(0.2)


async def check_a_job(pilot: Pilot[None]) -> None:
    """Open the fit check and type a model."""
    await pilot.press("f")
    await pilot.pause(0.5)
    await pilot.press(*"Qwen/Qwen2.5-7B")
    await pilot.pause(1.5)


async def attach_to_a_job(pilot: Pilot[None]) -> None:
    """Attach to the job that is over its budget, and wait for the explanation."""
    await pilot.press("enter")
    await pilot.pause(3)


async def look_at_a_step(pilot: Pilot[None]) -> None:
    """Open the step of the job that is on budget, and wait for its trace."""
    await pilot.press("down", "t")
    while not isinstance(pilot.app.screen, StepScreen) or pilot.app.screen.budget.timeline is None:
        await pilot.pause(0.1)


async def main() -> None:
    """Draw all pictures, in the time zone of the recording."""
    time.tzset()
    await draw("dashboard", (120, 38), nothing)
    await draw("fit-check", (120, 38), check_a_job)
    await draw("attach", (120, 44), attach_to_a_job)
    await draw("step", (120, 38), look_at_a_step, trace)
    sys.stdout.write("\n".join(str(path) for path in sorted(FOLDER.glob("*.svg"))) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
