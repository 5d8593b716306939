"""Reads who has started the processes of the tree view, off the UI thread and only while that is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vramtop.monitor.host.inspect import Ancestor, AncestryReader

    from ....background import LatestOnlyTask
    from .table_views import TableView


class TreeReader:
    """Brings the ancestors of the processes into a view.

    Args:
        view: what the table shows.
        call_later: ``call_later`` of the table.
        on_changed: called on the UI thread when the tree has changed.
    """

    def __init__(self, view: TableView, call_later: Callable[..., object], on_changed: Callable[[], None]) -> None:
        self._view = view
        self._call_later = call_later
        self._on_changed = on_changed
        self._reader: AncestryReader | None = None
        self._task: LatestOnlyTask[Mapping[int, Ancestor]] | None = None

    def read(self) -> None:
        """Read the ancestors again, if the view shows them."""
        if (pids := self._view.ancestors_to_read()) is None:
            return
        if self._reader is None or self._task is None:
            from vramtop.monitor.host.inspect import AncestryReader

            from ....background import LatestOnlyTask

            self._reader = AncestryReader()
            self._task = LatestOnlyTask("process tree", self._call_later, self._show)
        reader = self._reader
        self._task.submit(lambda: reader.read(*pids))

    def _show(self, ancestors: Mapping[int, Ancestor]) -> None:
        if self._view.show_ancestors(ancestors):
            self._on_changed()
