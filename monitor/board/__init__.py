"""The board: one immutable view of GPUs, processes, runs and pending jobs beside their budgets.

Lives here: ``Watchlist`` keeps the known jobs and turns each snapshot into a ``Board``.
Callers: the dashboard, ``--once``, ``attach`` and ``fit``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .board import (
        BEING_READ as BEING_READ,
        LEFT_ALONE as LEFT_ALONE,
        NOT_ATTACHED as NOT_ATTACHED,
        REASONS_IN_WORDS as REASONS_IN_WORDS,
        AttachProgress as AttachProgress,
        Board as Board,
        GpuRow as GpuRow,
        Hidden as Hidden,
        NoBudgetReason as NoBudgetReason,
        PendingRow as PendingRow,
        ProcessRow as ProcessRow,
        RunRow as RunRow,
    )
    from .board_age import stale_after_seconds as stale_after_seconds
    from .display_filter import (
        ONLY_WORDS as ONLY_WORDS,
        DisplayFilter as DisplayFilter,
        parse_devices as parse_devices,
    )
    from .missing_reason import NOT_ON_GPU_YET as NOT_ON_GPU_YET, MissingReason as MissingReason
    from .process_groups import GroupKey as GroupKey, ProcessGroup as ProcessGroup, group_processes as group_processes
    from .watchlist import Watchlist as Watchlist
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "board": (
                "AttachProgress BEING_READ Board GpuRow Hidden LEFT_ALONE NoBudgetReason NOT_ATTACHED PendingRow "
                "ProcessRow REASONS_IN_WORDS RunRow"
            ),
            "board_age": "stale_after_seconds",
            "display_filter": "DisplayFilter ONLY_WORDS parse_devices",
            "missing_reason": "MissingReason NOT_ON_GPU_YET",
            "process_groups": "group_processes GroupKey ProcessGroup",
            "watchlist": "Watchlist",
        },
    )
