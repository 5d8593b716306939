"""The processes that the user wants left alone, for as long as they live: kept in a file of the user's data folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramtop.estimator.common.errors import CannotTellError

from ...host.process_stat import is_running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ...snapshot.snapshot import ProcessKey
    from ...storage.user_file import UserFile


_MAX_PROCESSES = 1000
_Keys = list[tuple[int, float | None]]


class LeftAlone:
    """A set of processes, and its file; changes are written on their own thread.

    Args:
        notify: called on any thread with a sentence if the file could not be read or written.
    """

    def __init__(self, notify: Callable[[str], None] = lambda _: None) -> None:
        self.notify = notify
        self._keys: set[ProcessKey] | None = None

    def __contains__(self, key: object) -> bool:
        return key in self._known

    def add(self, keys: Iterable[ProcessKey]) -> None:
        """Leave these processes alone."""
        added = set(keys)
        self._known.update(added)
        self._change(lambda saved: saved | added)

    def remove(self, keys: Iterable[ProcessKey]) -> None:
        """Leave these processes alone no longer."""
        removed = self._known & set(keys)
        if removed:
            self._known.difference_update(removed)
            self._change(lambda saved: saved - removed)

    @property
    def _known(self) -> set[ProcessKey]:
        if self._keys is None:
            try:
                self._keys = {(pid, start) for pid, start in self._file.read()}
            except CannotTellError as error:
                self._keys = set()
                self.notify(error.message)
        return self._keys

    def _change(self, change: Callable[[set[ProcessKey]], set[ProcessKey]]) -> None:
        from ...storage.user_file import change_in_background

        def changed(saved: _Keys) -> _Keys:
            keys = change({(pid, start) for pid, start in saved})
            return sorted((key for key in keys if is_running(key)), key=str)[:_MAX_PROCESSES]

        change_in_background(lambda: self._file, changed, self.notify, thread="save the processes left alone")

    @property
    def _file(self) -> UserFile[_Keys]:
        from ...storage.user_file import UserFile, data_file  # not before a process could be left alone

        path = data_file("left-alone.json")
        return UserFile(path, kind=_Keys, empty=list, description="the processes that you left alone")
