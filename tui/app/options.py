"""Options of the app, as the command line and the settings file give them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vramtop.monitor.snapshot.demand import CurrentDemand

if TYPE_CHECKING:
    from vramtop.monitor.attach.automatic.automatic_attach import AutomaticAttach
    from vramtop.monitor.storage.settings.schema import Value

    from ..background.job_estimates import EstimateFunction
    from ..draw.terminal_capabilities import ColourDepth


class Notices:
    """Sentences that are kept until there is a screen to show them on.

    Args:
        sentences: the first ones.
    """

    def __init__(self, sentences: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._kept = list(sentences)
        self._show: Callable[[str], None] | None = None

    def add(self, sentence: str) -> None:
        """Show a sentence now, or once there is a screen."""
        with self._lock:
            if self._show is None:
                self._kept.append(sentence)
                return
        self._show(sentence)  # outside of the lock: it may wait for the screen's thread

    def show_on(self, show: Callable[[str], None]) -> tuple[str, ...]:
        """Pass every further sentence to this callback, on the thread that adds it; returns those until now."""
        with self._lock:
            self._show = show
            return tuple(self._kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    """Everything about the app but its source of snapshots and its jobs."""

    interval: float = 1.0
    """Seconds between readings."""
    ascii_only: bool = False
    """Draw with ASCII characters only."""
    colours: ColourDepth = "true"
    """Colours of the terminal."""
    theme: str | None = None
    """Name of the initial theme; None or unknown: that of ``TEXTUAL_THEME``, otherwise vramtop's dark one."""
    notices: Notices = field(default_factory=Notices)
    """Problems found before the app was open; they are shown once it is."""
    settings: dict[str, Value] = field(default_factory=dict)
    """The settings in force by dotted name, such as the view of the process table; absent: the default."""
    save_setting: Callable[[str, Value | None], None] = lambda _, __: None
    """Called with name and value of each setting that the user changes, the theme among them."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""

    banner: str | None = None
    """A notice in the header, for example that a recording is being played."""
    pid: int | None = None
    """A process to attach to at once."""
    estimate: EstimateFunction | None = None
    """A quick estimate; None: that of ``estimation``."""
    refine: EstimateFunction | None = None
    """A better and slower estimate than the watchlist's; None: there is none."""
    python: str | None = None
    """The interpreter given with ``--python``."""
    attach: AutomaticAttach | None = None
    """Attaches to training processes by itself and measures them; None: this is not about this machine."""
    read_only: bool = False
    """No process can be terminated from here."""
    preload_after: float | None = None
    """Seconds after which screens are imported that no key has asked for; None: never."""
    demand: CurrentDemand = field(default_factory=CurrentDemand)
    """What the screen in front shows beyond memory; the source reads only that."""
