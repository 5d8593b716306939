"""Fields of a form: that of a model completes names and folders, and passes on what is no name."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.events import Paste
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from vramtop.estimator.common.paths import expand_user

WITH_ALT = "¡™£¢∞§¶•ª"
"""What Textual makes of Alt and a digit from 1 to 9, as a Mac's keyboard would."""


class FieldInput(Input):
    """An input that leaves Alt and a digit to the screen."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Everything that can be typed, but for these."""
        return super().check_consume_key(key, character) and (character is None or character not in WITH_ALT)


class ModelInput(FieldInput):
    """An input that does not take several words for a model.

    Args:
        value: to begin with.
        models: names to complete.
    """

    @dataclass
    class PastedMore(Message):
        """What was pasted is no name: a launch line, or the path of a file."""

        text: str

    def __init__(self, value: str, models: Sequence[str]) -> None:
        super().__init__(
            value,
            placeholder="name, hub id or folder",
            suggester=ModelSuggester(models),
            compact=True,
            classes="control",
        )

    def _on_paste(self, event: Paste) -> None:
        text = event.text.strip()
        if len(text.split()) > 1 or text.strip("'\"").endswith((".toml", ".yaml", ".yml")):
            event.stop()
            event.prevent_default()
            self.post_message(self.PastedMore(text))
        else:
            super()._on_paste(event)
            event.prevent_default()


class ModelSuggester(Suggester):
    """Completes names of models, and folders where what is typed is a path."""

    def __init__(self, models: Sequence[str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._models = tuple(models)

    async def get_suggestion(self, value: str) -> str | None:
        """The first name that goes on as typed; folders are read off the UI thread, for a disk may hang."""
        if value.startswith(("/", "./", "../", "~/")):
            return await asyncio.to_thread(_folder, value)
        typed = value.casefold()
        return next((name for name in self._models if typed and name.casefold().startswith(typed)), None)


def _folder(typed: str) -> str | None:
    """The first folder in order that goes on as typed."""
    before, _, begin = typed.rpartition("/")
    try:
        entries = sorted(each.name for each in expand_user(f"{before}/").iterdir() if each.name.startswith(begin))
    except (OSError, ValueError):
        return None
    found = (f"{before}/{name}" for name in entries if Path(expand_user(f"{before}/{name}")).is_dir())
    return next((path for path in found if path != typed), None)
