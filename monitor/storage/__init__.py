"""Files that vramtop keeps for the user: pending jobs, recent models, and reservations of GPU memory.

Lives here: reading and writing them safely beside other instances of vramtop.
Callers: ``attach``, preflight, doctor, and the user interface.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .file_lock import lock_file as lock_file
    from .pending_jobs import PendingJobs as PendingJobs
    from .recent_models import RecentModels as RecentModels
    from .reservations import Reservation as Reservation, Reservations as Reservations
    from .user_file import (
        UserFile as UserFile,
        change_in_background as change_in_background,
        data_file as data_file,
        data_folder as data_folder,
        leave_files_unchanged as leave_files_unchanged,
        name_for_damaged as name_for_damaged,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "file_lock": "lock_file",
            "pending_jobs": "PendingJobs",
            "recent_models": "RecentModels",
            "reservations": "Reservation Reservations",
            "user_file": "change_in_background data_file data_folder leave_files_unchanged name_for_damaged UserFile",
        },
    )
