"""The keys of a screen in one line at its bottom, made from its BINDINGS.

Textual's ``Footer`` has a widget for each key, makes new ones when the focus moves, and never frees the old ones.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import ClassVar, Protocol, runtime_checkable

from textual.binding import ActiveBinding, Binding
from textual.content import Content
from textual.dom import DOMNode
from textual.events import MouseDown
from textual.screen import Screen
from textual.widget import Widget

from ..keys import character_of

_GAP = 1
_Shown = tuple[tuple[Binding, ...], bool]
"""The bindings that share a label, and whether they are enabled now."""


@runtime_checkable
class RefusesActions(Protocol):
    """An app that refuses actions: their keys are not offered, and say why when they are pressed."""

    def refuses(self, action: str) -> bool:
        """Return True if this action is refused."""


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
        self._keys: list[_Shown] = []
        self._palette: Binding | None = None

    def on_mount(self) -> None:
        """Follow the screen's keys, which depend on the focus."""
        self.screen.bindings_updated_signal.subscribe(self, self._update_keys)

    def render(self) -> Content:
        """Return the line."""
        keys = Content(" " * _GAP).join([self._key_text(*shown) for shown in self._fitting()])
        palette = Content("") if self._palette is None else self._key_text((self._palette,), True)
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
        shown: dict[str, dict[str, tuple[Binding, bool]]] = {}
        command, focused = None, self.screen.focused
        for _, binding, enabled, _ in self._in_order(screen.active_bindings.values()):
            if binding.action == "command_palette" and self._show_command_palette:
                command = command or binding
            elif focused is not None and focused.check_consume_key(binding.key, character_of(binding.key)):
                continue  # the field with the focus takes the key as text
            elif binding.show and not (isinstance(self.app, RefusesActions) and self.app.refuses(binding.action)):
                together = f"group {binding.group.description}" if binding.group else binding.action
                shown.setdefault(together, {}).setdefault(binding.action, (binding, enabled))
        keys = [
            (tuple(binding for binding, _ in each.values()), any(enabled for _, enabled in each.values()))
            for each in shown.values()
        ]
        if (keys, command) != (self._keys, self._palette):
            self._keys, self._palette = keys, command
            self.refresh()

    def _in_order(self, active: Iterable[ActiveBinding]) -> list[ActiveBinding]:
        """Return the bindings in the order in which their screens, widgets and apps list them.

        Textual puts keys that the user chose behind all others.
        """
        active = list(active)
        nodes = list(dict.fromkeys(each.node for each in active))
        places = [{action: place for place, action in enumerate(_listed_actions(node))} for node in nodes]
        last = len(active)
        return sorted(
            active, key=lambda each: (at := nodes.index(each.node), places[at].get(each.binding.action, last))
        )

    def _fitting(self) -> list[_Shown]:
        """Return the keys that fit on the line, from the left; the help key, which lists them all, always fits."""
        keys = sorted(self._keys, key=lambda shown: shown[0][0].action != "help")
        ends = accumulate(self._key_text(*shown).cell_length + _GAP for shown in keys)
        fitting = [shown for shown, end in zip(keys, ends, strict=True) if end - _GAP <= self.size.width]
        return [shown for shown in self._keys if shown in fitting]

    def _key_text(self, bindings: tuple[Binding, ...], enabled: bool) -> Content:
        keys = "/".join(self.app.get_key_display(binding) for binding in bindings)
        key = Content.styled(keys, self.get_visual_style("keys--key"))
        label = bindings[0].description
        text = Content.assemble(key, f" {label}") if label else key
        return text if enabled else text.stylize(self.get_visual_style("keys--disabled"))

    def _key_columns(self) -> Iterator[tuple[Binding, int, int]]:
        """Yield each key with its first column and the column after its last; the label is part of the last one."""
        at = 0
        for bindings, enabled in self._fitting():
            end = at + self._key_text(bindings, enabled).cell_length
            for binding in bindings[:-1]:
                length = Content(self.app.get_key_display(binding)).cell_length
                yield binding, at, at + length
                at += length + 1
            yield bindings[-1], at, end
            at = end + _GAP
        if self._palette is not None:
            length = self._key_text((self._palette,), True).cell_length
            if self.size.width - at + _GAP - length >= 2 * _GAP:
                yield self._palette, self.size.width - length, self.size.width


def _listed_actions(node: DOMNode) -> Iterator[str]:
    """Yield the actions of a node as its classes list them."""
    for kind in reversed(type(node).__mro__):
        for binding in kind.__dict__.get("BINDINGS", ()):
            if isinstance(binding, Binding):
                yield binding.action
