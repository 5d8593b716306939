"""Names of the models that the user checked last, kept between runs in the user's data folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from vramtop.estimator.common.errors import CannotTellError

from .user_file import UserFile, change_in_background, data_file

if TYPE_CHECKING:
    from pathlib import Path

_MAX_MODELS = 8


class RecentModels(msgspec.Struct):
    """The file of recent models. It is a convenience: that it cannot be read or written is not reported.

    Args:
        path: of the file; None: ``recent_models.json`` in the user's data folder.
    """

    path: Path | None = None

    def names(self) -> tuple[str, ...]:
        """Return the names, the last one first; not for the UI thread, as a disk may hang."""
        try:
            return tuple(self._file().read())
        except CannotTellError:
            return ()

    def add(self, name: str) -> None:
        """Put a name first, on a thread of its own."""

        def change(names: list[str]) -> list[str]:
            return [name, *(other for other in names if other != name)][:_MAX_MODELS]

        change_in_background(self._file, change, lambda _: None, thread="save recent models")

    def _file(self) -> UserFile[list[str]]:
        path = self.path or data_file("recent_models.json")
        return UserFile(path, kind=list[str], empty=list, description="models you checked")
