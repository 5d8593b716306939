"""What the user has chosen about vramtop itself, kept between runs in the user's data folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import CannotTellError

from .user_file import UserFile, change_later, data_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_Values = dict[str, str]
_VERSION = 1
_THEME = "theme"


@dataclass(slots=True)
class Settings:
    """The file of settings. Changes are written on a thread of their own: a disk may hang.

    Args:
        path: of the file; None: where the user's data belongs (``$XDG_DATA_HOME/vramtop/settings.json``).
        say: told in a sentence when something could not be kept, or was set aside; on any thread.
    """

    path: Path | None = None
    say: Callable[[str], None] = lambda _: None

    def theme(self) -> str | None:
        """The name of the theme that was chosen last; None: none was, or it cannot be read, which is said."""
        try:
            return self._file.read().get(_THEME)
        except CannotTellError as error:
            self.say(error.message)
            return None

    def keep_theme(self, name: str) -> None:
        """Remember a theme; what else is in the file stays."""
        change_later(lambda: self._file, lambda values: {**values, _THEME: name}, self.say, thread="keep settings")

    @property
    def _file(self) -> UserFile[_Values]:
        path = self.path or data_file("settings.json")
        return UserFile(path, kind=_Values, empty=dict, version=_VERSION, holds="your settings")
