"""Keys of the process table, and of the screens that show it."""

from ....keys import bind
from ....widgets import ROW_BINDINGS

PROCESS_KEYS = (
    bind("processes.view", "view", "View"),
    bind("processes.mark", "mark", "Mark", show=False),
    bind("processes.columns", "columns", "Columns", show=False),
    bind("processes.sort", "sort", "Sort"),
    bind("processes.signal", "terminate", "Kill"),
    bind("processes.signal", "explain_refusal", help_text=""),
    bind("processes.leave_alone", "leave_alone", "Leave", show=False),
    bind("app.back", "unmark", "Unmark", show=False),
)
"""Keys that act on the rows of the process table; other keys of the dashboard follow."""
TABLE_KEYS = (
    bind(
        "list.open", "open", "Open",
        help_text="unfold the run under the cursor; of an unfolded run or a process: settings, ranks, memory over "
        "time, why it diverges",
    ),
    bind("list.unfold", "unfold", help_text="show the processes of a run, or hide them", group="Fold", show=False),
    bind("list.fold", "fold", group="Fold", show=False),
    *ROW_BINDINGS,
)  # fmt: skip
"""Keys of the table itself."""
