"""Reads job files (TOML); an error names the file."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...common.errors import InputError
from ...common.paths import expand_user, is_file, note_job_folder
from ...common.private_files import write_private
from ...common.untrusted_files import parse_toml, read_file
from ..job import Job
from ..rules.optimizers.table import LISTED_LIBRARIES
from ..settings import Parallel, Target
from .changes import job_differences, job_from_mapping, job_to_mapping
from .edit import edit_job_file

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
        raise InputError(f"{name}: there is no file {file}; give its path, or its folder with --code-folder")
    return {"folder": str(file.parent), "model": f"{file.stem}:{attribute}"}


def names_user_code(name: str | None) -> bool:
    """Return True if a name is written ``module:attribute`` or ``FILE.py:attribute`` and is not that of a file."""
    return bool(name) and _CALLABLE.fullmatch(name or "") is not None and not os.access(name or "", os.F_OK)


def load_job(path: Path) -> Job:
    """Return the job in a TOML file; a model id that is a folder beside the file becomes that folder's full path.

    Raises:
        InputError: the file cannot be read, is not TOML, or is not a job.
    """
    note_job_folder(path.parent)
    job = job_from_mapping(_read(path), where=str(path))
    if job.program is not None:
        folder = str((path.parent / (job.program.folder or "")).resolve())
        file = str(path.absolute())
        return msgspec.structs.replace(job, program=msgspec.structs.replace(job.program, folder=folder, file=file))
    if job.model.id is None and job.model.config is None:
        raise InputError(f"{path}: no model given; write [model] with an id, [model.config], or [program]")
    others = [msgspec.structs.replace(other, id=_id_beside(path, other.id)) for other in job.other_models]
    model = msgspec.structs.replace(job.model, id=_id_beside(path, job.model.id))
    job = msgspec.structs.replace(job, model=model, other_models=others)
    if uses_user_code(job):
        place = str((path.parent / (job.model.code_folder or "")).resolve())
        job = msgspec.structs.replace(job, model=msgspec.structs.replace(job.model, code_folder=place))
    return job


def _id_beside(path: Path, name: str | None) -> str | None:
    """Return a model's id; for a folder beside the file, the folder's full path."""
    return str((path.parent / name).resolve()) if name and is_file(path.parent / name / "config.json") else name


def written_keys(path: Path) -> tuple[str, ...]:
    """Return the dotted keys that a job file sets.

    Raises:
        InputError: it cannot be read, or is not TOML.
    """
    tables = _read(path)
    return tuple(
        f"{table}.{key}".rstrip(".")
        for table, fields in tables.items()
        for key in (fields if isinstance(fields, dict) else ("",))
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_file(path).decode()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read as text: {reason}") from None
    try:
        return parse_toml(text)
    except ValueError as error:
        raise InputError(f"{path}: not TOML: {error}") from None


def job_to_toml(job: Job, *, of_this_machine: bool = True) -> str:
    """Return the job as TOML, with every setting that an estimate reads, so that later defaults change nothing.

    Args:
        job: the job.
        of_this_machine: its relative paths are from the working directory, and are made absolute; False: they stay.
    """
    import tomlkit  # 15 ms

    tables = job_to_mapping(_with_absolute_paths(job) if of_this_machine else job)
    tables.get("program", {}).pop("file", None)
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
        changes.pop("program.file", None)
        text = read_file(path).decode()
    except (InputError, OSError, ValueError):
        return None
    return None if None in changes.values() else edit_job_file(text, changes)


def _with_absolute_paths(job: Job) -> Job:
    """Return the job with paths that mean the same from any folder."""
    if job.program is not None:
        place = str(Path(job.program.folder or "").resolve())
        return msgspec.structs.replace(job, program=msgspec.structs.replace(job.program, folder=place))
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
