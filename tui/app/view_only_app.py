"""The apps that change nothing: no process ends, nothing is started, and no file is opened or written from them.

The screens that it may open are listed; every other one, new ones among them, is refused where Textual opens screens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.actions import ActionParseResult
from textual.await_complete import AwaitComplete
from textual.command import CommandPalette
from textual.dom import DOMNode
from textual.screen import Screen

from vramtop.monitor.board.board import ProcessRow

from ..draw.text_output import printable
from ..screens.dashboard.process_columns import process_command
from .app import VramtopApp

REFUSAL = "vramtop was started with --view-only: it starts, ends, opens and saves nothing."
_VIEWS = frozenset(
    (
        "vramtop.tui.app.help.HelpScreen",
        "vramtop.tui.screens.attach.screen.AttachScreen",
        "vramtop.tui.screens.crash.CrashScreen",
        "vramtop.tui.screens.dashboard.screen.DashboardScreen",
        "vramtop.tui.screens.gpu.screen.GpuScreen",
        "vramtop.tui.screens.step.screen.StepScreen",
        "vramtop.tui.tty.terminal_app.TooSmallScreen",
        "vramtop.tui.widgets.choice.ChoiceMenu",
    )
)
"""Screens that show, and change nothing: none asks for a path, takes settings, or starts anything."""
_REFUSED_ACTIONS = frozenset(("forget", "record", "rehearse", "suspend_process", "terminate"))
"""Actions of these screens that would change something; the keys of others open screens that are refused."""


class ViewOnlyApp(VramtopApp):
    """Shows everything and changes nothing.

    What the user chooses on screens, such as the view of a table, holds for this app and is not kept:
    ``leave_files_unchanged`` sees to that, in whatever place it would be written.
    """

    view_only = True
    refusal = REFUSAL
    """Why something is not done."""
    refused_screens: tuple[str, ...] = ("fit_check", "preflight")
    """Screens of the registry that are refused at their key already: they would ask something before they open."""

    @property
    def termination_refusal(self) -> str | None:
        """Why no process can be terminated from here."""
        return self.refusal

    def push_screen(self, screen: Screen[Any] | str, *args: Any, **settings: Any) -> Any:
        """Open a screen that only shows, and no other."""
        kind = type(screen)
        if f"{kind.__module__}.{kind.__qualname__}" in _VIEWS or kind is CommandPalette:
            return super().push_screen(screen, *args, **settings)
        self._refuse()
        return AwaitComplete.nothing()  # type: ignore[no-untyped-call]

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run an action of a key or a click, unless it changes something."""
        if self.refuses(action if isinstance(action, str) else action[1]):
            self._refuse()
            return True
        return await super().run_action(action, default_namespace, namespaces)

    def refuses(self, action: str) -> bool:
        """Return True if an action changes something, or opens a screen that does; no footer offers its key."""
        name, _, parameters = action.partition("(")
        name = name.rpartition(".")[2]
        screen = parameters.strip("')\"") if name == "open_screen" else name
        return name in _REFUSED_ACTIONS or screen in self.refused_screens

    def action_open_screen(self, name: str) -> None:
        """Open a screen of the registry, unless it takes settings or starts something."""
        if name in self.refused_screens:
            self._refuse()
        else:
            super().action_open_screen(name)

    def action_record(self) -> None:
        """Write no recording; the command palette calls this directly."""
        self._refuse()

    def deliver_screenshot(self, *_: Any, **__: Any) -> str | None:
        """Write no picture."""
        self._refuse()
        return None

    def _refuse(self) -> None:
        self.notify(self.refusal, severity="warning", markup=False)


class HostsApp(ViewOnlyApp):
    """Shows the boards of ``HostsWatchlist``; what needs the files or the driver of a host is refused."""

    refusal = "vramtop only shows other hosts; run it there to attach, to check a job, or to end a process."
    refused_screens = (*ViewOnlyApp.refused_screens, "attach", "crash", "step")
    stop_seconds = 3.0
    """What was started on the hosts gets this long to end."""

    def show_process(self, row: ProcessRow) -> None:
        """Say what the host says of this process: how it compares with its budget, and its command line."""
        sentence = row.comparison.sentence if row.comparison else "It has no budget."
        self.notify(f"{process_command(row)}\n{printable(sentence)}", markup=False)
