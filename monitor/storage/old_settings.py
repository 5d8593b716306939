"""The user's settings of vramtop itself, kept between runs in the user's data folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vramtop.estimator.common import CannotTellError

from .user_file import UserFile, change_in_background, data_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_Values = dict[str, str]
_VERSION = 1
_ATTACH = "attach"
HOST_LINE = "host_line"
"""Name of the setting that shows the line about the host."""
ON, OFF = "on", "off"


def is_on(settings: Mapping[str, str], name: str) -> bool:
    """Return True unless a setting is switched off."""
    return settings.get(name) != OFF


@dataclass(slots=True)
class Settings:
    """The settings file. Changes are written on their own thread, as a disk may hang.

    Args:
        path: of the file; None: ``settings.json`` in the user's data folder.
        notify: called on any thread with a sentence if the file could not be read or written, or was damaged.
    """

    path: Path | None = None
    notify: Callable[[str], None] = lambda _: None
    _problem: str | None = None
    """Why the file could not be read, as it was said to the user."""

    def read(self) -> _Values:
        """Return all settings by name; empty if there are none, or they cannot be read."""
        try:
            return self._file.read()
        except CannotTellError as error:
            if error.message != self._problem:
                self._problem = error.message
                self.notify(error.message)
            return {}

    def attaches(self) -> bool:
        """Return False if training processes are not to be attached to by themselves: ``"attach": "off"``."""
        return is_on(self.read(), _ATTACH)

    def save(self, name: str, value: str) -> None:
        """Save a setting; others in the file stay."""
        change_in_background(
            lambda: self._file, lambda values: {**values, name: value}, self.notify, thread="save settings"
        )

    @property
    def _file(self) -> UserFile[_Values]:
        path = self.path or data_file("settings.json")
        return UserFile(path, kind=_Values, empty=dict, version=_VERSION, description="your settings")
