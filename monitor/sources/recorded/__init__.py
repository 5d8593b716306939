"""A recording as a whole: memory over time of its GPUs and runs, what happened, and what was predicted.

Lives here: ``read_recorded`` plays a recording through the watchlist, as fast as it can be read, and keeps what a
report shows, bounded in size however long the recording is.
Callers: ``vramtop report``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .events import Event as Event, EventKind as EventKind
    from .memory_series import Stretch as Stretch
    from .recorded import (
        Recorded as Recorded,
        RecordedGpu as RecordedGpu,
        RecordedProcess as RecordedProcess,
        RecordedRun as RecordedRun,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "events": "Event EventKind",
            "memory_series": "Stretch",
            "recorded": "Recorded RecordedGpu RecordedProcess RecordedRun",
        },
    )
