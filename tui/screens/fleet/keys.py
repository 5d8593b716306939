"""Keys of the dashboard over many hosts, and of its screens of a host and a run."""

from textual.binding import BindingType

from ...keys import bind
from ...widgets import ROW_BINDINGS

FLEET_KEYS: list[BindingType] = [
    bind("fleet.view", "view", "View"),
    bind("fleet.sort", "sort", "Sort"),
    bind(
        "list.filter", "filter", "Filter",
        help_text="filter by host, job, user, status: words that must all occur, or user:ann",
    ),
    bind("fleet.fit", "fit", "Fit"),
    bind("app.back", "show_all", "Show all"),
]  # fmt: skip
FLEET_TABLE_KEYS: list[BindingType] = [
    bind("list.open", "open", "Open", help_text="open the host or the run under the cursor"),
    bind("list.unfold", "unfold", "GPUs", help_text="show the GPUs of a host, or hide them", group="GPUs"),
    bind("list.fold", "fold", group="GPUs"),
    *ROW_BINDINGS,
]
DETAIL_KEYS: list[BindingType] = [
    bind("app.back", "app.pop_screen", "Back"),
    bind("list.fold", "app.pop_screen"),
    bind("list.up", "scroll(-1)"),
    bind("list.down", "scroll(1)"),
    bind("list.page_up", "scroll(-10)"),
    bind("list.page_down", "scroll(10)"),
]
