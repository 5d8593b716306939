"""Inputs of the job form; that of the model completes names and folders."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.events import Paste
from textual.message import Message
from textual.suggester import Suggester
from textual.widgets import Input

from vramtop.estimator.common import expand_user

ALT_DIGIT_CHARACTERS = "¡™£¢∞§¶•ª"
"""The characters of Alt and a digit from 1 to 9, as Textual receives them (those of a Mac's keyboard)."""


class FieldInput(Input):
    """An input that leaves Alt with a digit to the screen."""

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Return True if the input takes the key: all characters but those of Alt with a digit."""
        return super().check_consume_key(key, character) and (
            character is None or character not in ALT_DIGIT_CHARACTERS
        )


class ModelInput(FieldInput):
    """The input of the model; a pasted launch line or file path is passed on in a message.

    Args:
        value: the initial text.
        models: names to complete.
    """

    @dataclass
    class JobPasted(Message):
        """A launch line, or the path of a file, was pasted."""

        text: str

    def __init__(self, value: str, models: Sequence[str]) -> None:
        super().__init__(
            value,
            placeholder="name, hub id or folder",
            suggester=ModelSuggester(models),
            compact=True,
            classes="control",
        )

    def on_paste(self, event: Paste) -> None:
        """Pass on what is not a model; everything else is left to ``Input``, which handles the event next."""
        text = event.text.strip()
        if len(text.split()) > 1 or text.strip("'\"").endswith((".toml", ".yaml", ".yml")):
            event.stop()
            event.prevent_default()
            self.post_message(self.JobPasted(text))


class ModelSuggester(Suggester):
    """Completes names of models; if a path is typed, folders."""

    def __init__(self, models: Sequence[str]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._models = tuple(models)

    async def get_suggestion(self, value: str) -> str | None:
        """Return the first completion; folders are read off the UI thread, since a disk may hang."""
        if value.startswith(("/", "./", "../", "~/")):
            try:
                return await asyncio.to_thread(_folder, value)
            except RuntimeError:  # no thread can be started
                return None
        typed = value.casefold()
        return next((name for name in self._models if typed and name.casefold().startswith(typed)), None)


def _folder(typed: str) -> str | None:
    """Return the first folder, in alphabetical order, whose path begins as typed."""
    before, _, begin = typed.rpartition("/")
    try:
        entries = sorted(each.name for each in expand_user(f"{before}/").iterdir() if each.name.startswith(begin))
    except (OSError, ValueError):
        return None
    found = (f"{before}/{name}" for name in entries if Path(expand_user(f"{before}/{name}")).is_dir())
    return next((path for path in found if path != typed), None)
