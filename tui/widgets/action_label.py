"""A word that runs an action of the screen when it is clicked, as a key does."""

from textual.widgets import Static


class ActionLabel(Static):
    """A button of one widget: Textual's own has dozens of style rules, which take time to parse.

    Args:
        text: what it says.
        action: of the screen.
        id: the widget's id in the DOM.
    """

    DEFAULT_CSS = """
    ActionLabel { width: auto; height: 1; padding: 0 1; pointer: pointer; background: $primary; color: $text; }
    """

    def __init__(self, text: str, action: str, *, id: str | None = None) -> None:  # noqa: A002 - Textual's own name for it
        super().__init__(text, markup=False, id=id)
        self._action = action

    async def on_click(self) -> None:
        """Run the action."""
        await self.screen.run_action(self._action)
