"""Fills in what a typed model leaves open: sequence length, engine sizes, library versions and attention."""

import os
from typing import Any

from vramtop.estimator.common.library_versions import find_interpreters, package_folders, versions_in
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.job_file.changes import parse_assignment, with_changes
from vramtop.estimator.job.job_file.load_and_save import names_user_code
from vramtop.estimator.job.rules.library_defaults import ATTENTION, LONGEST, serving_defaults, usual
from vramtop.estimator.job.settings import ModelSpec, Training
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.model.read_architecture import max_positions

from .loaded_job import LoadedJob


def with_sizes(loaded: LoadedJob) -> LoadedJob:
    """Return the job with what nothing states: sequences' length, its engine's own sizes, its versions' attention."""
    if loaded.reading is not None or loaded.job.program is not None:
        return loaded
    job, software = loaded.job, loaded.job.software
    wanted: dict[str, Any] = usual_sizes(job) if loaded.is_typed else {LENGTH: usual_length(job.model)}
    if job.training.framework == "transformers" and not job.is_served:
        versions = {"transformers": software.transformers, "torch": software.torch}
        wanted[ATTENTION] = usual("transformers", ATTENTION, versions)
    changes = {key: value for key, value in wanted.items() if key not in loaded.stated}
    return replace(loaded, job=with_changes(job, changes))


_COUNTED = ("torch", "transformers", "peft", "trl", "bitsandbytes")
_OLD = ("2", "3", "4")
"""Major versions of transformers whose defaults are not those that are assumed where no version is known."""


def with_older_libraries(loaded: LoadedJob, python: str | None) -> LoadedJob:
    """Return a typed model's job with the library versions of its Python, if that has transformers 4 or older.

    A job file states its own versions, so that it means the same on every machine.

    Args:
        loaded: the job.
        python: interpreter that the user named; None: the active environment's, or vramtop's own.

    Raises:
        InputError: ``python`` does not exist.
    """
    job = loaded.job
    if job.software.transformers is not None or job.is_served or job.training.framework != "transformers":
        return loaded
    for path in find_interpreters(python, os.environ):
        found = versions_in(package_folders(path))
        if {"torch", "transformers"} <= found.keys():
            if found["transformers"].partition(".")[0] not in _OLD:
                return loaded
            software = job.software
            has = {name: getattr(software, name) or found.get(name) for name in _COUNTED}
            note = f"Counted with transformers {has['transformers']}, which {path} has."
            counted = replace(job, software=replace(software, **has))
            return replace(loaded, job=counted, notes=(*loaded.notes, note))
    return loaded


def usual_sizes(job: Job) -> dict[str, Any]:
    """Return the length of sequences, and the sizes that the job's engine has, where nothing states them."""
    length = usual_length(job.model)
    engine = job.inference.engine if job.is_served and job.inference is not None else ""
    written = serving_defaults(engine)
    found = dict(parse_assignment(f"{key}={value}") for key, value in written.items() if value != LONGEST)
    longest = None if names_user_code(job.model.id) else max_positions(resolve_model(job.model).config)
    return {**found, LENGTH: (longest if written.get(LENGTH) == LONGEST else None) or length}


LENGTH = "training.sequence_length"


def usual_length(model: ModelSpec, usual: int = Training().sequence_length) -> int:
    """Return the tokens of a sequence where nothing states them, no more than the model takes.

    Args:
        model: the model.
        usual: tokens that are usual, by default those of a job that states none.
    """
    most = None if names_user_code(model.id) else max_positions(resolve_model(model).config)
    return min(usual, most or usual)
