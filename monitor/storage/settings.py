"""The user's settings of vramtop itself, kept between runs in the user's data folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramtop.estimator.common import CannotTellError

from .user_file import UserFile, change_in_background, data_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_Values = dict[str, str]
_VERSION = 1
_THEME = "theme"
_ATTACH = "attach"
_OFF = "off"


@dataclass(slots=True)
class Settings:
    """The settings file. Changes are written on their own thread, as a disk may hang.

    Args:
        path: of the file; None: ``settings.json`` in the user's data folder.
        notify: called on any thread with a sentence if the file could not be read or written, or was damaged.
    """

    path: Path | None = None
    notify: Callable[[str], None] = lambda _: None

    def theme(self) -> str | None:
        """Return the name of the last chosen theme; None if there is none, or it cannot be read."""
        try:
            return self._file.read().get(_THEME)
        except CannotTellError as error:
            self.notify(error.message)
            return None

    def attaches(self) -> bool:
        """Return False if training processes are not to be attached to by themselves: ``"attach": "off"``."""
        try:
            return self._file.read().get(_ATTACH) != _OFF
        except CannotTellError:  # the theme, which is read first, says so
            return True

    def save_theme(self, name: str) -> None:
        """Save a theme; other settings in the file stay."""
        change_in_background(
            lambda: self._file, lambda values: {**values, _THEME: name}, self.notify, thread="save settings"
        )

    @property
    def _file(self) -> UserFile[_Values]:
        path = self.path or data_file("settings.json")
        return UserFile(path, kind=_Values, empty=dict, version=_VERSION, description="your settings")
