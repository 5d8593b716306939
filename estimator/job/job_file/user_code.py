"""Says whether a job names Python code of the user, which only a worker imports."""

import os
import re
from pathlib import Path

from ...common import InputError, expand_user, is_file
from ..job import Job
from ..rules import LISTED_LIBRARIES

_CALLABLE = re.compile(r"(?:[\w./~ -]+\.py|[A-Za-z_][\w.]*):[A-Za-z_][\w.]*")


def uses_user_code(job: Job) -> bool:
    """Return True if the job names user code that a worker has to import: a model, a plan or an optimizer."""
    optimizer = job.training.optimizer_class
    own_optimizer = optimizer is not None and optimizer.partition(":")[0].partition(".")[0] not in LISTED_LIBRARIES
    return isinstance(job.parallel.tensor_plan, str) or names_user_code(job.model.id) or own_optimizer


def model_code(name: str, folder: str | None) -> dict[str, str]:
    """Return the folder that a model of the user's is imported from, and its ``module:attribute``.

    Args:
        name: ``module:attribute`` or ``FILE.py:attribute``.
        folder: that modules and files are in; None: the current one.

    Raises:
        InputError: there is no such file.
    """
    module, _, attribute = name.partition(":")
    place = Path(folder or "").resolve()
    if not module.endswith(".py"):
        return {"folder": str(place), "model": name}
    file = place / expand_user(module)
    if not is_file(file):
        raise InputError(f"{name}: there is no file {file}; give its path, or with --code-folder its folder")
    return {"folder": str(file.parent), "model": f"{file.stem}:{attribute}"}


def names_user_code(name: str | None) -> bool:
    """Return True if a name is written ``module:attribute`` or ``FILE.py:attribute`` and is not that of a file."""
    return bool(name) and _CALLABLE.fullmatch(name or "") is not None and not os.access(name or "", os.F_OK)
