"""The keys at the bottom of a screen."""

from textual.screen import Screen
from textual.widgets import Footer


class Keys(Footer):
    """A ``Footer`` that is composed anew only when it would show something else: it takes a widget for each key."""

    _shown: tuple[object, ...] | None = None

    def bindings_changed(self, screen: Screen[object]) -> None:
        """The keys that can be used may be others now; nothing happens where they are the same."""
        keys = (
            self.show_command_palette,
            *((name, *active[1:]) for name, active in screen.active_bindings.items() if active.binding.show),
        )
        if keys != self._shown and screen.app.app_focus:
            self._shown = keys
            super().bindings_changed(screen)
