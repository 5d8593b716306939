"""Process identity: pid and start time together, since the system reuses pids."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..snapshot.snapshot import ProcessKey


def is_running(key: ProcessKey) -> bool:
    """Whether a process of this machine still runs; one whose start is not known cannot be told from a later one."""
    import psutil  # not before there is a run

    pid, started = key
    try:
        process = psutil.Process(pid)
        same = started is None or abs(process.create_time() - started) < 0.05
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False
