"""Says whether a job names Python code of the user, which only a worker imports."""

import os
import re

from ..job import Job
from ..rules import LISTED_LIBRARIES

_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def uses_user_code(job: Job) -> bool:
    """Return True if the job names user code that a worker has to import: a model, a plan or an optimizer."""
    optimizer = job.training.optimizer_class
    own_optimizer = optimizer is not None and optimizer.partition(":")[0].partition(".")[0] not in LISTED_LIBRARIES
    return isinstance(job.parallel.tensor_plan, str) or names_user_code(job.model.id) or own_optimizer


def names_user_code(name: str | None) -> bool:
    """Return True if a name is written ``module:attribute`` and is not that of a file."""
    return bool(name) and _CALLABLE.fullmatch(name or "") is not None and not os.access(name or "", os.F_OK)
