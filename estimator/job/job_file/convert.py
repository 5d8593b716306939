"""Turns the tables of a job file into a ``Job`` and back; an error names the key, the value and the nearest choice."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ...common import InputError
from ..job import Job
from ..settings import Run, Software, Uncertainties
from .wrong_value import explain_wrong_value

_TABLES = tuple(name for name in Job.__struct_fields__ if name not in ("name", "other_models"))


def job_from_mapping(data: Mapping[str, Any], *, where: str) -> Job:
    """Return the job of nested tables as a job file has them.

    Args:
        data: the tables.
        where: name of their source in an error.

    Raises:
        InputError: an unknown key (the nearest known one is named) or a wrong value.
    """
    try:
        return msgspec.convert(data, Job)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {explain_wrong_value(str(error), data)}") from None
    except UnicodeEncodeError:  # half a character, which JSON and YAML can spell
        raise InputError(f"{where}: a text holds half a character, such as \\ud83d alone; write it out") from None


def check_job(job: Job) -> None:
    """Check the values of a job that was made in Python, which ``Job`` itself does not.

    Raises:
        InputError: a value that a job file could not have.
    """
    try:
        msgspec.convert(msgspec.to_builtins(job), Job)
    except msgspec.ValidationError as error:
        raise InputError(f"Job: {explain_wrong_value(str(error), msgspec.to_builtins(job))}") from None


def job_to_mapping(job: Job) -> dict[str, Any]:
    """Return the job as nested tables with every field written out, as a job file would have them."""
    tables: dict[str, Any] = {} if job.name is None else {"name": job.name}
    for table in _TABLES:
        value = getattr(job, table)
        if value is not None and value not in (Software(), Run(), Uncertainties()):  # rarely set
            tables[table] = _fields(value)
    if job.other_models:
        tables["other_models"] = [_fields(model) for model in job.other_models]
    return tables


def _fields(table: msgspec.Struct) -> dict[str, Any]:
    return {key: field for key, field in msgspec.structs.asdict(table).items() if field is not None}
