"""Work off the UI thread: estimates, preflight, recordings, reading processes, and the user's own commands.

Lives here: threads that post messages; no widgets.
Callers: ``screens``, ``app`` and ``vramtop export``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .answer_writer import AnswerWriter as AnswerWriter
    from .job_estimates import EstimateFunction as EstimateFunction, JobEstimates as JobEstimates
    from .latest_only_task import LatestOnlyTask as LatestOnlyTask
    from .preflight_run import (
        PreflightProgress as PreflightProgress,
        PreflightRequest as PreflightRequest,
        read_context as read_context,
        run_preflight as run_preflight,
    )
    from .preload import preload_modules as preload_modules
    from .recorder import Recorder as Recorder
    from .run_reader import AttachFunction as AttachFunction, RunReader as RunReader
    from .user_command import CommandQueue as CommandQueue, UserCommand as UserCommand
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "answer_writer": "AnswerWriter",
            "job_estimates": "EstimateFunction JobEstimates",
            "latest_only_task": "LatestOnlyTask",
            "preload": "preload_modules",
            "preflight_run": "PreflightProgress PreflightRequest read_context run_preflight",
            "recorder": "Recorder",
            "run_reader": "AttachFunction RunReader",
            "user_command": "CommandQueue UserCommand",
        },
    )
