"""Keys of the process screen."""

from textual.binding import Binding, BindingType

PROCESS_KEYS: list[BindingType] = [
    Binding("escape,i", "leave", "Back", key_display="Esc"),
    Binding("slash", "filter", "Filter", key_display="/", tooltip="show only lines with these words; Esc shows all"),
    Binding(
        "tab", "section(1)", "Next", key_display="Tab",
        tooltip="to the next part: command, place, parents, environment, open files, limits; Shift+Tab goes back",
    ),
    Binding("shift+tab", "section(-1)", "Previous", show=False),
    Binding("r", "read", "Read again", tooltip="read environment, open files and limits again"),
    Binding("a", "attach", "Attach", tooltip="the settings and the budget of this process"),
    Binding("down", "scroll(1)", "Down", show=False),
    Binding("up", "scroll(-1)", "Up", show=False),
    Binding("pagedown", "scroll_page(1)", "Page down", show=False),
    Binding("pageup", "scroll_page(-1)", "Page up", show=False),
    Binding("home", "scroll_to_edge(-1)", "First", show=False),
    Binding("end", "scroll_to_edge(1)", "Last", show=False),
]  # fmt: skip
