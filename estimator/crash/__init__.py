"""After a crash: out-of-memory messages, job logs and memory snapshots as plain records, and their explanation.

Lives here: readers of what a dead run has left, and what it says beside a job's budget. No processes, no GPUs.
Callers: ``vramtop explain``, and the dashboard for runs that ended out of memory.
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .messages import parse_message as parse_message
    from .read_log import read_log as read_log
    from .records import (
        CrashLog as CrashLog,
        Failure as Failure,
        FailureKind as FailureKind,
        OtherProcess as OtherProcess,
        OutOfMemory as OutOfMemory,
        StackFrame as StackFrame,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "messages": "parse_message",
            "read_log": "read_log",
            "records": "CrashLog Failure FailureKind OtherProcess OutOfMemory StackFrame",
        },
    )
