"""After a crash: out-of-memory messages, job logs and memory snapshots as plain records, and their explanation.

Lives here: readers of what a dead run has left, and what it says beside a job's budget. No processes, no GPUs.
Callers: ``vramtop explain``, and the dashboard for runs that ended out of memory.
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .crash_file import read_crash_file as read_crash_file, read_crash_stream as read_crash_stream
    from .explanation import (
        Explanation as Explanation,
        explain_failure as explain_failure,
        failure_of_snapshot as failure_of_snapshot,
    )
    from .findings import size_text as size_text
    from .json_types import ExplanationJson as ExplanationJson, FailureJson as FailureJson
    from .predicted_place import PredictedPlace as PredictedPlace
    from .records import (
        CrashLog as CrashLog,
        Failure as Failure,
        OtherProcess as OtherProcess,
        OutOfMemory as OutOfMemory,
    )
    from .snapshot import MemorySnapshot as MemorySnapshot, MemorySnapshotJson as MemorySnapshotJson
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "crash_file": "read_crash_file read_crash_stream",
            "explanation": "explain_failure Explanation failure_of_snapshot",
            "findings": "size_text",
            "json_types": "ExplanationJson FailureJson",
            "predicted_place": "PredictedPlace",
            "records": "CrashLog Failure OtherProcess OutOfMemory",
            "snapshot": "MemorySnapshot MemorySnapshotJson",
        },
    )
