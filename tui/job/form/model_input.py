"""Inputs of the job form; that of the model searches names."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.events import Paste
from textual.message import Message
from textual.widgets import Input

from ...keys import bind, shown_key
from ...widgets.match_list import MatchList
from .model_choices import ModelChoice, search_models

READS_LINE = "Enter reads the whole line"


class ModelInput(Input):
    """The input of the model: what is typed searches the known models; a pasted launch line or path is passed on.

    Args:
        value: the initial text.
        models: that can be chosen.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
        Binding("enter", "take", show=False),
        bind("app.back", "close"),
    ]

    @dataclass
    class JobPasted(Message):
        """A launch line, a model with flags, or the path of a file, was pasted, or entered."""

        text: str

    def __init__(self, value: str, models: Sequence[ModelChoice]) -> None:
        super().__init__(value, placeholder="type to search, or a hub id or folder", compact=True, classes="control")
        self._models = tuple(models)
        self._list = MatchList(self)
        self.taken = value
        """The text that opens no list: it was taken from it, or not typed."""

    def on_unmount(self) -> None:
        """Remove the list, unless the whole screen is removed."""
        if self._list.is_attached:
            self._list.remove()

    @on(MatchList.Taken)
    def clicked(self, event: MatchList.Taken) -> None:
        """Take the model that was clicked in the list."""
        event.stop()
        self.action_take()

    @property
    def hint(self) -> str | None:
        """What Enter does with what is typed; None where it only goes on."""
        if self.is_line:
            return READS_LINE
        keeps = shown_key("app.back")
        return f"Enter takes the highlighted model, {keeps} keeps your text" if self._list.highlighted else None

    @property
    def is_line(self) -> bool:
        """True if it holds a model with flags, or a launch line, rather than words to search models by."""
        return any(word.startswith("-") for word in self.value.split()[1:])

    def set_models(self, models: Sequence[ModelChoice]) -> None:
        """Search these models from now on."""
        self._models = tuple(models)

    def show_matches(self, text: str) -> None:
        """List the models that match what was typed."""
        is_known = any(
            text.casefold() in (each.name.casefold(), *map(str.casefold, each.other_names)) for each in self._models
        )
        if not self.has_focus or is_known or self.is_line or text == self.taken or not text.strip():
            self._list.close()
        else:
            self._open(search_models(text, self._models))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the keys to the form and the screen while there is no list to move in."""
        if action in ("move", "take", "close"):
            can_open = action == "move" and parameters == (1,) and not self.value.strip() and bool(self._models)
            is_line = action == "take" and self.is_line
            return self._list.highlighted is not None or can_open or is_line
        return super().check_action(action, parameters)

    def action_move(self, by: int) -> None:
        """Highlight another model; in an empty field, list all of them."""
        if self._list.highlighted is not None:
            self._list.move(by)
        else:
            self._open(self._models)

    def action_take(self) -> None:
        """Take the highlighted model; open a model with flags, or a launch line, that was typed."""
        if self.is_line:
            self.post_message(self.JobPasted(self.value.strip()))
        elif (name := self._list.highlighted) is not None:
            self.taken = name
            self._list.close()
            self.value = name
            self.action_end()

    def action_close(self) -> None:
        """Close the list, and keep what was typed."""
        self.taken = self.value
        self._list.close()

    def _open(self, models: Sequence[ModelChoice]) -> None:
        """Open the list, on the screen since there are other fields below this one."""
        if not self._list.is_attached:
            self.screen.mount(self._list)
        self._list.styles.offset = (self.region.x, self.region.bottom)
        self._list.open([each.name for each in models], [each.note for each in models])

    def on_blur(self) -> None:
        """Close the list: another field has the focus."""
        self._list.close()

    def on_paste(self, event: Paste) -> None:
        """Pass on what is not a model; everything else is left to ``Input``, which handles the event next."""
        text = event.text.strip()
        if len(text.split()) > 1 or text.strip("'\"").endswith((".toml", ".yaml", ".yml")):
            event.stop()
            event.prevent_default()
            self.post_message(self.JobPasted(text))
