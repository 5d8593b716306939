"""Replaces the model of a job: what was said of the old model goes with it."""

from collections.abc import Mapping
from typing import Any

from .job import Job

ABOUT_THE_MODEL: Mapping[str, Any] = {
    "name": None,
    "model.id": None,
    "model.config": None,
    "model.code_folder": None,
    "model.trust_remote_code": False,
    "training.trainable": None,
    "training.trainable_parameters": None,
}
"""Keys that are about one model, with their values for a job of which nothing is known."""


def replaces_model(changes: Mapping[str, Any]) -> bool:
    """Return True if changes of a job name another model."""
    return "model.id" in changes or "model.config" in changes


def with_old_model_removed(job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a job; if they name another model, also those that remove what is about the old one.

    Args:
        job: the job before.
        changes: new values by dotted key.
    """
    id_given, config_given = changes.get("model.id", job.model.id), changes.get("model.config", job.model.config)
    if not replaces_model(changes) or (id_given, config_given) == (job.model.id, job.model.config):
        return dict(changes)
    return {**ABOUT_THE_MODEL, **changes}
