"""Writes a job as a job file, which reads back as the same job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...common import InputError, expand_user, is_file, read_file, write_private
from ..job import Job
from ..settings import Parallel, Target
from .changes import job_differences
from .convert import job_to_mapping
from .edit import edit_job_file
from .load import load_job
from .user_code import names_user_code, uses_user_code


def job_to_toml(job: Job, *, of_this_machine: bool = True) -> str:
    """Return the job as TOML, with every setting that an estimate reads, so that later defaults change nothing.

    Args:
        job: the job.
        of_this_machine: its relative paths are from the working directory, and are made absolute; False: they stay.
    """
    import tomlkit  # 15 ms

    tables = job_to_mapping(_with_absolute_paths(job) if of_this_machine else job)
    for table in ("software", "unsure"):  # a version that is not stated stays the latest, whenever that is
        if table in tables:
            tables[table] = msgspec.to_builtins(getattr(job, table))
    for table, default in (("parallel", Parallel()), ("target", Target())):
        if getattr(job, table) == default:
            tables.pop(table, None)
    return tomlkit.dumps(_without_none(tables))


def save_job(job: Job, path: Path, *, overwrite: bool = False) -> None:
    """Write the job to a file; a job file that is replaced keeps its comments and its order where possible.

    Args:
        job: the job.
        path: file to write; its folder must exist.
        overwrite: replace an existing file.

    Raises:
        InputError: the file exists and must not be replaced, or it cannot be written.
    """
    target = expand_user(str(path))
    try:
        if overwrite and target.exists():
            text = _edited(target, job) or job_to_toml(job)
            write_private(target, text.encode(), mode=target.stat().st_mode & 0o777)
        else:
            write_private(target, job_to_toml(job).encode(), new=True)
    except FileExistsError:
        raise InputError(f"{path} already exists; give another name, or remove it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: cannot be written: {reason}") from None


def _edited(path: Path, job: Job) -> str | None:
    """Return the text of a job file with the job's differences set; None if it is no job file, or keys must go."""
    try:
        changes = job_differences(load_job(path), _with_absolute_paths(job))
        text = read_file(path).decode()
    except (InputError, OSError, ValueError):
        return None
    return None if None in changes.values() else edit_job_file(text, changes)


def _with_absolute_paths(job: Job) -> Job:
    """Return the job with paths that mean the same from any folder."""
    model = msgspec.structs.replace(job.model, id=_absolute_id(job.model.id))
    if uses_user_code(job):
        model = msgspec.structs.replace(model, code_folder=str(Path(model.code_folder or "").resolve()))
    others = [msgspec.structs.replace(other, id=_absolute_id(other.id)) for other in job.other_models]
    return msgspec.structs.replace(job, model=model, other_models=others)


def _absolute_id(name: str | None) -> str | None:
    """Return a model's id; of a model in a folder, the folder's full path."""
    if name and not names_user_code(name) and is_file(expand_user(name) / "config.json"):
        return str(expand_user(name).resolve())
    return name


def _without_none(value: Any) -> Any:
    """Return tables and lists without None: TOML has none, and an absent key means the same."""
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_without_none(each) for each in value if each is not None]
    return value
