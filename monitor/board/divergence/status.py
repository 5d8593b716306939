"""The statuses: how a running job compares with its budget."""

from typing import Literal

Status = Literal[
    "loading", "warming_up", "on_budget", "over", "under", "growing", "incomplete", "ended", "out_of_memory", "unknown"
]
"""``incomplete``: settings of the job are guessed, so what the process holds says nothing about its budget."""
DIVERGING: tuple[Status, ...] = ("over", "under", "growing", "out_of_memory")
"""The statuses that need attention."""
