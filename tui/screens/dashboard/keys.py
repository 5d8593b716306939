"""Keys of the dashboard."""

from textual.binding import BindingType

from ...keys import bind
from ..registry import screen_bindings
from .processes import PROCESS_KEYS

DASHBOARD_KEYS: list[BindingType] = [
    *screen_bindings(),
    bind("list.filter", "filter", "Filter", help_text="filter the processes: pid, user, command, job, status, gpu3"),
    *PROCESS_KEYS,
    bind("dashboard.record", "app.record", "Record", show=False),
    bind("dashboard.dismiss", "dismiss_selected", "Dismiss", show=False),
    bind("dashboard.host_line", "host_line", "Host", show=False),
    bind("app.back", "show_all", "Show all"),
]
