"""The real program on the demo recording, without this machine's settings, moved from second to second by hand."""

import argparse
import faulthandler
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from rich.color import ColorTriplet
from rich.segment import Segment
from textual.pilot import Pilot
from textual.widgets import Input

from vramtop.estimator.budget import Budget
from vramtop.estimator.estimation import estimate
from vramtop.estimator.job.job import Job
from vramtop.monitor.board.watchlist import Watchlist
from vramtop.monitor.fleet.hosts_board import HostsSource, HostsWatchlist
from vramtop.monitor.snapshot.snapshot import Snapshot
from vramtop.monitor.sources.recording import read_recording
from vramtop.monitor.sources.replay import demo_path
from vramtop.tui.app.app import VramtopApp
from vramtop.tui.app.options import AppOptions
from vramtop.tui.app.view_only_app import HostsApp
from vramtop.tui.background.job_estimates import EstimateFunction

from .demo_fleet import ClusterSource
from .terminal_svg import Cell, Row, Screen

_TURNS = 4
_LONGEST_SECONDS = 240.0
"""Longest wait for a screen: seconds where nothing else runs, minutes on a busy machine."""


class Player:
    """A source that plays snapshots up to a second that others choose."""

    def __init__(self, watchlist: Watchlist, snapshots: Sequence[Snapshot]) -> None:
        self._snapshots = snapshots
        self._watchlist = watchlist
        self._next = 0
        self.second = 0

    def open(self) -> None:
        """Nothing to open."""

    def read(self) -> Snapshot | None:
        """Return the snapshot of the second; those before it are seen, not returned."""
        while self._next < self.second:
            self._watchlist.update(self._snapshots[self._next])
            self._next += 1
        if self._next > self.second:
            return None
        self._next += 1
        return self._snapshots[self.second]

    def close(self) -> None:
        """Nothing to close."""

    @property
    def time(self) -> float:
        """The time of the second."""
        return self._snapshots[self.second].time


class Program:
    """The program, open in a terminal of some size."""

    def __init__(self, app: VramtopApp, pilot: Pilot[None], player: Player | None) -> None:
        self.app, self.pilot, self._player = app, pilot, player

    async def play(self, second: int) -> None:
        """Play until this second of the recording."""
        if self._player is None:
            raise TypeError("a cluster stands still")
        player, app = self._player, self.app
        player.second = second

        def is_played() -> bool:
            app._sampler.read_soon()
            return app.board is not None and app.board.snapshot.time == player.time

        await self.until(is_played, f"second {second} of the recording", pause=0.02)
        await self.settled()

    async def press(self, *keys: str) -> None:
        """Press keys, and wait until the screen has nothing more to say."""
        await self.pilot.press(*keys)
        await self.settled()

    async def shown(self, words: str) -> None:
        """Wait until the screen shows these words."""
        await self.until(lambda: words in text_of(self.screen()), repr(words), pause=0.3)

    async def settled(self, seconds: float = 0.8) -> None:
        """Wait until the screen has been the same for some time, in which the program had its turns."""
        shown, since, turns = self.screen(), time.monotonic(), 0

        def is_settled() -> bool:
            nonlocal shown, since, turns
            turns += 1
            for field in self.app.screen.query(Input):
                field.cursor_blink = False
            if (now := self.screen()) != shown:
                shown, since, turns = now, time.monotonic(), 0
            return turns >= _TURNS and time.monotonic() - since >= seconds

        await self.pilot.pause(0.1)
        await self.until(is_settled, f"a screen that stays the same for {seconds:g} s", pause=0.1)

    async def until(self, condition: Callable[[], bool], what: str, *, pause: float) -> None:
        """Wait for something that the program comes to, and look at it every so many seconds.

        Raises:
            TimeoutError: it did not come; with the threads' stacks on the standard error output.
        """
        end = time.monotonic() + _LONGEST_SECONDS
        while not condition():
            if time.monotonic() > end:
                faulthandler.dump_traceback()
                raise TimeoutError(
                    f"{what} has not come in {_LONGEST_SECONDS:g} s; the screen shows:\n{text_of(self.screen())}"
                )
            await self.pilot.pause(pause)

    def screen(self) -> Screen:
        """Return what the terminal shows."""
        strips = self.app.screen._compositor.render_strips()
        rows = [_row(list(strip)) for strip in strips]
        return tuple(rows)


@asynccontextmanager
async def open_program(
    size: tuple[int, int], refine: EstimateFunction | None = None, snapshots: Sequence[Snapshot] | None = None
) -> AsyncIterator[Program]:
    """Open the program in a terminal of this size, at the first second of the recording, or of other snapshots."""
    watchlist = Watchlist(estimate)
    player = Player(watchlist, snapshots or list(read_recording(demo_path())))
    app = VramtopApp(player, watchlist, AppOptions(interval=1.0, refine=refine, clock=lambda: 0.0))
    async with app.run_test(size=size) as pilot:
        yield Program(app, pilot, player)


@asynccontextmanager
async def open_cluster(size: tuple[int, int]) -> AsyncIterator[Program]:
    """Open the dashboard over many hosts in a terminal of this size."""
    source = HostsSource(ClusterSource(), "6 hosts over ssh")
    app = HostsApp(source, HostsWatchlist(estimate), AppOptions(clock=lambda: 0.0))
    async with app.run_test(size=size) as pilot:
        yield Program(app, pilot, None)


@asynccontextmanager
async def clean_machine() -> AsyncIterator[str]:
    """Hide the user's files, models and time zone; give an empty folder."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # what the program keeps may be written yet
        names = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME")
        os.environ.update({**dict.fromkeys(names, folder), "TZ": "UTC", "LANG": "C.UTF-8"})
        time.tzset()
        yield folder


def trace(job: Job, *, environ: Mapping[str, str] | None = None, python: str | None = None) -> Budget:
    """Estimate a job by tracing it, under the Python that runs this script."""
    return estimate(job, method="traced", environ=environ, python=python or sys.executable)


def folder_and_names() -> tuple[Path, list[str]]:
    """Return where to write, and the names of what to draw (none: all), from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[2] / "pictures")
    options = parser.parse_args()
    return options.folder.resolve(), options.names


def text_of(screen: Screen) -> str:
    """Return a screen as plain text."""
    return "\n".join("".join(cell.text for cell in row).rstrip() for row in screen)


def _row(segments: list[Segment]) -> Row:
    cells = []
    for text, style, _ in segments:
        colour = ground = None
        bold = underline = False
        if style is not None:
            colour = style.color.get_truecolor() if style.color and not style.color.is_default else None
            ground = (
                style.bgcolor.get_truecolor(foreground=False)
                if style.bgcolor and not style.bgcolor.is_default
                else None
            )
            if style.reverse:
                colour, ground = ground, colour
            if style.dim and colour and ground:
                colour = ColorTriplet(*((2 * a + b) // 3 for a, b in zip(colour, ground, strict=True)))
            bold, underline = bool(style.bold), bool(style.underline)
        plain = Cell()
        cell = (colour.hex if colour else plain.colour, ground.hex if ground else plain.ground, bold, underline)
        cells += [Cell(character, *cell) for character in text]
    return tuple(cells)
