"""The dashboard over many hosts: it shows what they say of themselves, and changes nothing on them."""

from vramtop.monitor.board.board import ProcessRow

from ..draw.text_output import printable
from ..screens.dashboard.process_columns import process_command
from .view_only_app import ViewOnlyApp


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
