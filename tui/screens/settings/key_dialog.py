"""Asks for a key by having it pressed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from ...keys import bind, shown_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Key


class KeyDialog(ModalScreen[str | None]):
    """Returns Textual's name of the key that was pressed; None: it stays as it is.

    Args:
        title: what the key is for.
        present: the keys that are in force, in words.
        refuse: returns why a key cannot be taken; None: it can.
    """

    BINDINGS: ClassVar[list[BindingType]] = [bind("app.back", "dismiss(None)", "Back")]
    DEFAULT_CSS = """
    KeyDialog { align: center middle; }
    KeyDialog Vertical {
        width: 72; max-width: 96%; height: auto; background: $surface; border: solid $primary; padding: 0 1;
    }
    KeyDialog Static { height: auto; }
    KeyDialog #refusal { color: $text-error; display: none; }
    """

    def __init__(self, title: str, present: str, refuse: Callable[[str], str | None]) -> None:
        super().__init__()
        self._heading, self._present, self._refuse = title, present, refuse

    def compose(self) -> ComposeResult:
        """Yield the question."""
        with Vertical() as box:
            box.border_title = self._heading
            box.border_subtitle = f"{shown_key('app.back')} leaves it as it is"
            yield Static(f"Press the new key. Now: {self._present}", markup=False)
            yield Static(id="refusal", markup=False)

    def on_key(self, event: Key) -> None:
        """Take the key, unless it cannot be used."""
        keys_of_back = [key for key, each in self.app.active_bindings.items() if each.binding.id == "app.back"]
        if event.key in keys_of_back:
            return
        event.stop()
        event.prevent_default()
        refusal = self._refuse(event.key)
        if refusal is None:
            self.dismiss(event.key)
            return
        line = self.query_one("#refusal", Static)
        line.update(f"✗ {refusal}")
        line.display = True
