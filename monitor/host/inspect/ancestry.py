"""The processes that have started those on the GPUs: launchers, shells, scheduler steps. Read for the tree view."""

from collections.abc import Collection, Mapping

import msgspec

from ..known_programs import starts_sessions
from ..process_directory import GONE_NOTE, ProcessDirectory

_MAX_ANCESTORS = 64
"""More are not followed from one process."""


class Ancestor(msgspec.Struct, frozen=True, kw_only=True):
    """A process that has started others, and is on no GPU itself."""

    pid: int
    name: str | None = None
    command: str | None = None
    user: str | None = None
    parent: int | None = None
    """Pid of the next ancestor; None: that one starts whole sessions, and is of no interest."""


class AncestryReader:
    """Reads ancestors from ``/proc``; what was read of a process is kept while it is asked for. Not thread-safe."""

    def __init__(self) -> None:
        self._directory = ProcessDirectory()

    def read(self, parents: Collection[int], on_gpu: Collection[int]) -> Mapping[int, Ancestor]:
        """Return the ancestors by pid, up to the one that starts sessions.

        Args:
            parents: pids of the parents of the processes on the GPUs.
            on_gpu: pids of these processes, which are no ancestors to be read.
        """
        found: dict[int, Ancestor] = {}
        for parent in parents:
            pid: int | None = parent
            for _ in range(_MAX_ANCESTORS):
                if pid is None or pid <= 1 or pid in found or pid in on_gpu:
                    break
                facts = self._directory.describe(pid)
                if facts.note == GONE_NOTE or starts_sessions(facts.name):
                    break
                found[pid] = Ancestor(
                    pid=pid, name=facts.name, command=facts.command, user=facts.user, parent=facts.parent
                )
                pid = facts.parent
        self._directory.end_tick()
        return found
