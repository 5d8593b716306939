"""Asks for a memory snapshot or a log of a run, and reads it."""

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.crash.crash_file import read_crash_file
from vramtop.estimator.crash.records import CrashLog
from vramtop.estimator.crash.snapshot.records import MemorySnapshot

from ...job.dialogs import AskScreen

_HINT = (
    "a memory snapshot (torch.cuda.memory._dump_snapshot, vramtop run --snapshot-on-oom, vramtop snapshot PID); "
    "vramtop never executes its contents; or a log with torch's out-of-memory message"
)


class OpenedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was read."""

    name: str
    content: CrashLog | MemorySnapshot


class OpenFileScreen(AskScreen[OpenedFile]):
    """Asks for a snapshot or a log.

    Args:
        name: the file that is offered.
    """

    PLACEHOLDER = "dump_snapshot.pickle"

    def __init__(self, name: str = "") -> None:
        super().__init__(name, "path of a memory snapshot or a log", _HINT)

    def read(self, text: str) -> OpenedFile:
        """Read the file.

        Raises:
            VramtopError: it cannot be read.
        """
        name = text.strip("'\"")
        if not name:
            raise InputError("type the path of a file")
        return OpenedFile(name=name, content=read_crash_file(name))
