"""Reads job files (TOML); an error names the file."""

from pathlib import Path
from typing import Any

import msgspec

from ...common import InputError, is_file, note_job_folder, parse_toml, read_file
from ..job import Job
from .convert import job_from_mapping
from .user_code import uses_user_code


def load_job(path: Path) -> Job:
    """Return the job in a TOML file; a model id that is a folder beside the file becomes that folder's full path.

    Raises:
        InputError: the file cannot be read, is not TOML, or is not a job.
    """
    note_job_folder(path.parent)
    data = _read(path)
    job = job_from_mapping(data, where=str(path))
    if job.model.id is None and job.model.config is None:
        raise InputError(f"{path}: no model given; write [model] with an id, or [model.config]")
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
