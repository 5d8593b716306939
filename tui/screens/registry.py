"""The screens that open from the dashboard, one row each: their menu entries and help come from here.

To add a screen, write its module with a function that opens it, and add a row here and one in the table of keys.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import cast

import msgspec
from textual.binding import BindingType

from vramtop.estimator.common.process_limit import ProcessLimitError

from ..background.latest_only_task import TaskThread
from ..keys import KEYS
from .base import BoardApp


class ScreenSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A screen that a key of the dashboard opens; the key is the row ``dashboard.NAME`` of the table of keys."""

    name: str
    """Identifies the screen in actions."""
    label: str = ""
    """Text beside the key in the footer; empty: it is not there."""
    title: str
    """Entry of the command palette, title of the section in the help, and ``TITLE`` of the screen."""
    from_any_screen: bool = False
    """The command palette offers it on every screen, not only on the dashboard."""
    open: str
    """``module:function`` that opens it, called with the app; imported only then."""
    keys: str | None = None
    """``module:list`` of its bindings, for the help; None: it has no keys that need any."""

    @property
    def command_help(self) -> str:
        """Help of the entry in the command palette: what the key does, without the title."""
        words = KEYS[f"dashboard.{self.name}"].does.rpartition(": ")[2]
        return words[0].upper() + words[1:]

    def open_from(self, app: BoardApp) -> None:
        """Open the screen."""
        cast("Callable[[BoardApp], None]", _load(self.open))(app)

    def bindings(self) -> Sequence[BindingType]:
        """Return the keys of the screen."""
        return cast("Sequence[BindingType]", _load(self.keys)) if self.keys else ()


_NEEDED_BY_SCREENS = ("vramtop.estimator.estimation", "vramtop.estimator.advice", "vramtop.tui.job.form.job_form")
"""Modules that screens import only with the first job, or after their first frame."""
SCREENS = (
    ScreenSpec(
        name="fit_check",
        label="Fit",
        title="Fit check",
        from_any_screen=True,
        open="fit.screen:open_fit_check",
        keys="fit.screen:FIT_KEYS",
    ),
    ScreenSpec(
        name="attach",
        label="Attach",
        title="Attach",
        from_any_screen=True,
        open="attach.screen:open_attach",
        keys="attach.screen:ATTACH_KEYS",
    ),
    ScreenSpec(name="step", label="Step", title="Step", open="step.screen:open_step"),
    ScreenSpec(name="preflight", title="Preflight", open="preflight.screen:open_pending_preflight"),
    ScreenSpec(name="gpu", title="GPU", open="gpu.screen:open_gpu", keys="gpu.screen:GPU_KEYS"),
    ScreenSpec(name="crash", title="Out of memory", open="crash:open_crash"),
)


def preload_screens() -> None:
    """Import the screens and what they need before a key asks for one, on a thread of its own."""
    paths = (path for screen in SCREENS for path in (screen.open, screen.keys) if path)
    preload_modules([*(f"{__package__}.{path.partition(':')[0]}" for path in paths), *_NEEDED_BY_SCREENS])


_PAUSE_SECONDS = 0.02
"""Pause between two modules, in which other threads run: an import holds the interpreter's lock."""
_NICENESS = 10


def preload_modules(names: Sequence[str]) -> None:
    """Import these modules and all that they import; one that cannot be imported is reported when it is needed."""

    def import_all() -> None:
        with suppress(OSError, AttributeError):  # Linux gives each thread a niceness of its own
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        for name in names:
            with suppress(ImportError):
                import_module(name)
            time.sleep(_PAUSE_SECONDS)

    with suppress(ProcessLimitError):
        TaskThread("preload").submit(import_all)


def _load(path: str) -> object:
    module, _, name = path.partition(":")
    return getattr(import_module(f".{module}", __package__), name)
