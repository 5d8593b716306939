"""Memory snapshots of torch: read without executing anything, their blocks by component, their history as a timeline.

Lives here: the unpickler for plain containers, the reader of the schema, and the rules from a stack to a component.
Callers: ``vramtop explain``, the explanation, and the screen that draws a snapshot.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .json_types import MemorySnapshotJson as MemorySnapshotJson
    from .records import MemorySnapshot as MemorySnapshot
    from .snapshot_reader import is_snapshot as is_snapshot, read_snapshot as read_snapshot
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "json_types": "MemorySnapshotJson",
            "snapshot_reader": "is_snapshot read_snapshot",
            "records": "MemorySnapshot",
        },
    )
