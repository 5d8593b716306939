"""Keys of the process screen."""

from textual.binding import BindingType

from ...keys import bind

PROCESS_INFO_KEYS: list[BindingType] = [
    bind("app.back", "leave", "Back"),
    bind("dashboard.process", "leave", help_text=""),
    bind("list.filter", "filter", "Filter", help_text="show only lines with these words; then back shows all"),
    bind("process.next_part", "section(1)", "Next"),
    bind("process.previous_part", "section(-1)"),
    bind("process.read", "read", "Read again"),
    bind("dashboard.attach", "attach", "Attach", help_text="the settings and the budget of this process"),
    bind("list.down", "scroll(1)"),
    bind("list.up", "scroll(-1)"),
    bind("list.page_down", "scroll_page(1)"),
    bind("list.page_up", "scroll_page(-1)"),
    bind("list.first", "scroll_to_edge(-1)"),
    bind("list.last", "scroll_to_edge(1)"),
]
