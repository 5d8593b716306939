"""The length of sequences, an engine's own sizes, and older libraries' attention, where nothing states them."""

from typing import Any

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
