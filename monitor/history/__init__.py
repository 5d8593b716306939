"""The history: measurements of the user's own runs, in one small SQLite file of the user's.

Lives here: the file, what makes measurements of runs, and what corrects budgets by them.
Callers: automatic attaching, doctor, and the commands of ``tui``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .corrections import Corrections as Corrections
    from .hindsight import corrected_by_others as corrected_by_others
    from .history import Choice as Choice, History as History
    from .recorder import RunRecorder as RunRecorder
    from .run_measurement import (
        is_own as is_own,
        measurement_of_run as measurement_of_run,
        run_identity as run_identity,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "corrections": "Corrections",
            "hindsight": "corrected_by_others",
            "history": "Choice History",
            "recorder": "RunRecorder",
            "run_measurement": "is_own measurement_of_run run_identity",
        },
    )
