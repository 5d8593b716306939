"""The keys of a screen in one line at its bottom, made from its BINDINGS.

Textual's ``Footer`` has a widget for each key, makes new ones when the focus moves, and never frees the old ones.
"""

from collections.abc import Iterator
from typing import ClassVar

from textual.binding import Binding
from textual.content import Content
from textual.events import MouseDown
from textual.screen import Screen
from textual.widget import Widget

_GAP = 1


class KeysLine(Widget):
    """Each key with its description; the key of the command palette at the right, if there is room.

    Args:
        show_command_palette: show the key of the command palette.
    """

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key", "keys--disabled", "keys--palette"}
    DEFAULT_CSS = """
    KeysLine { dock: bottom; height: 1; color: $footer-foreground; background: $footer-background; }
    KeysLine > .keys--key { color: $footer-key-foreground; text-style: bold; }
    KeysLine > .keys--disabled { text-style: dim; }
    """

    def __init__(self, *, show_command_palette: bool = True) -> None:
        super().__init__()
        self._show_command_palette = show_command_palette
        self._keys: list[tuple[Binding, bool]] = []
        """The keys, and whether each is enabled now."""
        self._palette: Binding | None = None

    def on_mount(self) -> None:
        """Follow the screen's keys, which depend on the focus."""
        self.screen.bindings_updated_signal.subscribe(self, self._update_keys)

    def render(self) -> Content:
        """Return the line."""
        keys = Content(" " * _GAP).join([self._key_text(binding, enabled) for binding, enabled in self._keys])
        palette = Content("") if self._palette is None else self._key_text(self._palette, True)
        gap = self.size.width - keys.cell_length - palette.cell_length
        return keys if gap < 2 * _GAP else Content.assemble(keys, " " * gap, palette)

    def on_mouse_down(self, event: MouseDown) -> None:
        """Press the key that was clicked."""
        for binding, start, end in self._key_columns():
            if start <= event.x < end:
                self.app.simulate_key(binding.key)

    def _update_keys(self, screen: Screen[object]) -> None:
        if screen is not self.screen or not screen.app.app_focus:
            return
        shown: dict[str, tuple[Binding, bool]] = {}
        active = screen.active_bindings
        for _, binding, enabled, _ in active.values():
            if binding.show:
                shown.setdefault(binding.action, (binding, enabled))
        palette = active.get(self.app.COMMAND_PALETTE_BINDING) if self._show_command_palette else None
        keys, command = list(shown.values()), palette.binding if palette else None
        if (keys, command) != (self._keys, self._palette):
            self._keys, self._palette = keys, command
            self.refresh()

    def _key_text(self, binding: Binding, enabled: bool) -> Content:
        key = Content.styled(self.app.get_key_display(binding), self.get_visual_style("keys--key"))
        text = Content.assemble(key, f" {binding.description}") if binding.description else key
        return text if enabled else text.stylize(self.get_visual_style("keys--disabled"))

    def _key_columns(self) -> Iterator[tuple[Binding, int, int]]:
        """Yield each key with its first column and the column after its last."""
        at = 0
        for binding, enabled in self._keys:
            length = self._key_text(binding, enabled).cell_length
            yield binding, at, at + length
            at += length + _GAP
        if self._palette is not None:
            length = self._key_text(self._palette, True).cell_length
            if self.size.width - at + _GAP - length >= 2 * _GAP:
                yield self._palette, self.size.width - length, self.size.width
