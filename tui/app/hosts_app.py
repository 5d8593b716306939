"""The dashboard over many hosts: it shows what they say of themselves, and changes nothing on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .view_only_app import ViewOnlyApp

if TYPE_CHECKING:
    from vramtop.monitor.board.board import ProcessRow


class HostsApp(ViewOnlyApp):
    """Shows the boards of ``HostsWatchlist``; what needs the files or the driver of a host is refused."""

    refusal = "vramtop only shows other hosts; run it there to attach, to check a job, or to end a process."
    refused_screens = (*ViewOnlyApp.refused_screens, "attach", "crash", "step")
    stop_seconds = 3.0
    """What was started on the hosts gets this long to end."""

    def show_process(self, row: ProcessRow) -> None:
        """Open what the host says of this process."""
        from ..screens.process.screen import show_process_details

        show_process_details(self, row.process.key)
