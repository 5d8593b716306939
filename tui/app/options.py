"""Options of the two apps, as the command line and the settings file give them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vramtop.monitor.snapshot import CurrentDemand

if TYPE_CHECKING:
    from collections.abc import Callable

    from vramtop.monitor.attach.automatic import AutomaticAttach
    from vramtop.monitor.board import Board
    from vramtop.monitor.storage.settings import Value

    from ..background import EstimateFunction
    from ..draw import ColourDepth
    from ..screens.fleet.job_fit import BudgetsFor
    from .user_signals import Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """What both apps can be told."""

    interval: float = 1.0
    """Seconds between readings."""
    ascii_only: bool = False
    """Draw with ASCII characters only."""
    colours: ColourDepth = "true"
    """Colours of the terminal."""
    theme: str | None = None
    """Name of the initial theme; None or unknown: that of ``TEXTUAL_THEME``, otherwise vramtop's dark one."""
    signal_alert: Signal = "none"
    """How the user is told of an alert that fires or clears, besides by a notice."""
    on_alert: str | None = None
    """Shell command to run for each alert that fires or clears."""
    startup_notices: list[str] = field(default_factory=list)
    """Problems found before the app was open; they are shown once it is."""
    settings: dict[str, Value] = field(default_factory=dict)
    """The settings in force by dotted name, such as the view of the process table; absent: the default."""
    origins: dict[str, str] = field(default_factory=dict)
    """Where each setting is from: a flag, a variable, the file; absent: the default."""
    settings_file: str = "config.toml"
    """Path of the settings file."""
    save_setting: Callable[[str, Value | None], None] = lambda _, __: None
    """Called with name and value of each setting that the user changes, the theme among them."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions(SharedOptions):
    """Everything about the app over one machine but its source of snapshots and its jobs."""

    banner: str | None = None
    """A line about what is special about this run, such as that a recording is played."""
    pid: int | None = None
    """A process to attach to at once."""
    estimate: EstimateFunction | None = None
    """A quick estimate; None: that of ``estimation``."""
    refine: EstimateFunction | None = None
    """A better and slower estimate than the watchlist's; None: there is none."""
    signal_fit: Signal = "none"
    """How the user is told that a pending job starts or ceases to fit, besides by a notice."""
    on_fit: str | None = None
    """Shell command to run when a pending job starts to fit."""
    python: str | None = None
    """The interpreter given with ``--python``."""
    attach: AutomaticAttach | None = None
    """Attaches to training processes by itself; None: this is not about this machine."""
    observe_runs: Callable[[Board], None] = lambda _: None
    """Receives each board, on the sampler's thread: measures the runs on it."""
    read_only: bool = False
    """No process can be terminated from here."""
    preload_after: float | None = None
    """Seconds after which screens are imported that no key has asked for; None: never."""
    demand: CurrentDemand = field(default_factory=CurrentDemand)
    """What the screen in front shows beyond memory; the source reads only that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions(SharedOptions):
    """Everything about the app over many hosts but its source of fleets."""

    source: str
    """What is read, in a few words: ``12 hosts over ssh``."""
    budgets_for: BudgetsFor | None = None
    """Makes the budgets of a job on the fit screen; None: without corrections by measured runs."""
    job: str = ""
    """A job that the fit screen opens with, as it would be typed there."""
