"""A job as the text of a job file, which reads back as the same job."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..common.errors import InputError
from ..common.paths import expand_user, is_file
from ..common.untrusted_files import read_file
from .job import Job, Parallel, Target
from .job_file import job_differences, job_to_mapping, load_job, names_user_code, uses_user_code
from .job_file_edit import edit_job_file, toml_value

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def job_to_toml(job: Job) -> str:
    """The job as TOML: every setting that an estimate reads is written out, so that later defaults change nothing."""
    tables = job_to_mapping(_anywhere(job))
    lines = [f"name = {toml_value(tables.pop('name'))}"] if "name" in tables else []
    for table in ("software", "unsure"):  # what is not known there is today's, whenever that is
        if table in tables:
            tables[table] = msgspec.to_builtins(getattr(job, table))
    for table, default in (("parallel", Parallel()), ("target", Target())):
        if getattr(job, table) == default:
            tables.pop(table, None)
    for name, fields in tables.items():
        lines += ["", *_table_lines((name,), fields)]
    return "\n".join(lines).lstrip("\n") + "\n"


def save_job(job: Job, path: Path, *, overwrite: bool = False) -> None:
    """Write the job to a file; a job file that is replaced keeps its comments and its order, where it can.

    Args:
        job: what to write.
        path: where; its folder must be there.
        overwrite: replace a file that is there.

    Raises:
        InputError: it is there and must not be replaced, or it cannot be written.
    """
    place = expand_user(str(path))
    beside = place.with_name(f".{place.name}.{os.getpid()}")
    made: Path | None = None
    try:
        if overwrite and place.exists():
            made = beside
            beside.write_text(_edited(place, job) or job_to_toml(job), encoding="utf-8")
            beside.chmod(place.stat().st_mode & 0o777)
            beside.replace(place.resolve())
        else:
            with place.open("x", encoding="utf-8") as file:
                made = place
                file.write(job_to_toml(job))
    except FileExistsError:
        raise InputError(f"{path} is there already") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if made is not None:  # half of it
            made.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written: {reason}") from None


def _edited(path: Path, job: Job) -> str | None:
    """The text of a job file with what is different set in it; None where it is none, or something is to be removed."""
    try:
        changes = job_differences(load_job(path), _anywhere(job))
        text = read_file(path).decode()
    except (InputError, OSError, ValueError):
        return None
    return None if None in changes.values() else edit_job_file(text, changes)


def _anywhere(job: Job) -> Job:
    """The job with paths that mean the same from any folder."""
    model = job.model
    if model.id and not names_user_code(model.id) and is_file(expand_user(model.id) / "config.json"):
        model = msgspec.structs.replace(model, id=str(expand_user(model.id).resolve()))
    if uses_user_code(job):
        model = msgspec.structs.replace(model, code_folder=str(Path(model.code_folder or "").resolve()))
    return msgspec.structs.replace(job, model=model)


def _table_lines(path: tuple[str, ...], fields: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{'.'.join(map(_key, path))}]"
    inner = {key: value for key, value in fields.items() if isinstance(value, Mapping)}
    for key, value in fields.items():
        if value is not None and key not in inner:  # TOML has no null; what is absent is not given either
            yield f"{_key(key)} = {toml_value(value)}"
    for key, value in inner.items():
        yield ""
        yield from _table_lines((*path, key), value)


def _key(word: str) -> str:
    return word if _BARE.fullmatch(word) else toml_value(word)
