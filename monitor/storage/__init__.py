"""Files that vramtop keeps for the user: settings, pending jobs, recent models, and reservations of GPU memory.

Lives here: reading and writing them safely beside other instances of vramtop.
Callers: ``attach``, preflight, doctor, and the user interface.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .pending_jobs import PendingJobs as PendingJobs
    from .recent_models import RecentModels as RecentModels
    from .reservations import Reservation as Reservation, Reservations as Reservations
    from .settings import Settings as Settings
    from .user_file import UserFile as UserFile, data_file as data_file, data_folder as data_folder
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "pending_jobs": "PendingJobs",
            "recent_models": "RecentModels",
            "reservations": "Reservation Reservations",
            "settings": "Settings",
            "user_file": "data_file data_folder UserFile",
        },
    )
