"""Location of a job's model: a folder, the Hugging Face cache, or the hub."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vramtop.estimator.common import expand_user, is_folder, read_file
from vramtop.estimator.job import Job, names_user_code
from vramtop.estimator.job.rules import FRAMEWORKS
from vramtop.estimator.model import cached_model, find_built_in

from .model_files import ModelFolder, inspect_model_folder

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_REVISION = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLocation:
    """Location of a job's model."""

    folder: Path | None
    """Folder with its files; None: not in the cache."""
    hub_id: str | None
    """None: a folder of the user's own."""


def find_model_location(job: Job, environ: Mapping[str, str]) -> ModelLocation | None:
    """Return the location of the weights; None if the job has its config inline, or its model is code."""
    name = job.model.id
    if name is None or job.model.config is not None or names_user_code(name):
        return None
    path = expand_user(name)
    if is_folder(path) or name.startswith((".", "/", "~")) or name.endswith(".json"):
        return ModelLocation(folder=path.parent if name.endswith(".json") else path, hub_id=None)
    cached = _cached_snapshot(name, environ)
    built_in = find_built_in(name) if cached is None and "/" not in name else None
    hub_id = built_in.id if built_in else name
    return ModelLocation(folder=cached or _cached_snapshot(hub_id, environ), hub_id=hub_id)


def inspect_model(location: ModelLocation, job: Job) -> ModelFolder | None:
    """Return the files of the model that are on the disk; None if there is no folder.

    Raises:
        OSError: an index cannot be read.
    """
    if location.folder is None:
        return None
    checkpoint_file = FRAMEWORKS[job.training.framework].checkpoint_file
    return inspect_model_folder(location.folder, single=(checkpoint_file,) if checkpoint_file else ())


def is_downloaded(location: ModelLocation, job: Job) -> bool:
    """Return True if all files of the model are on the disk."""
    folder = inspect_model(location, job)
    return folder is not None and folder.complete


def _cached_snapshot(name: str, environ: Mapping[str, str]) -> Path | None:
    """Return the cached snapshot of ``main``, which libraries load by default."""
    if not _HUB_ID.fullmatch(name):
        return None
    repository = cached_model(name, environ)
    try:
        revision = read_file(repository / "refs" / "main").decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    folder = repository / "snapshots" / revision
    return folder if _REVISION.fullmatch(revision) and is_folder(folder) else None
