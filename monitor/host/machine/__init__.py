"""The machine as a whole: how busy it is, and the limits of vramtop's container.

Lives here: figures from /proc and of control groups that belong to no process.
Callers: ``available_ram`` and ``sources``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .cgroup import CGROUP as CGROUP, inactive_file_bytes as inactive_file_bytes, read_number as read_number
    from .load_reader import HostLoadReader as HostLoadReader
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "cgroup": "CGROUP inactive_file_bytes read_number",
            "load_reader": "HostLoadReader",
        },
    )
