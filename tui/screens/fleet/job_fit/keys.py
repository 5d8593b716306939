"""Keys of the fit screen over many hosts."""

from textual.binding import BindingType

from ....keys import bind
from ....widgets import ROW_BINDINGS

FLEET_FIT_KEYS: list[BindingType] = [
    bind("app.back", "back", "Back"),
    bind("fleet.edit_job", "edit", "Job"),
    bind("list.down", "hosts"),
]
HOST_LIST_KEYS: list[BindingType] = [
    bind("list.open", "open", "Open", help_text="open the host under the cursor"),
    *ROW_BINDINGS,
]
