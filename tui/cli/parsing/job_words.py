"""Words that name a job, a model or a card, and what is said of several where a command takes one job."""

import os
import re
from collections.abc import Container, Sequence

from vramtop.estimator.common.errors import InputError

_JOB_FILE = re.compile(r".*\.(toml|ya?ml|json|py|ipynb|sh|sbatch|slurm)", re.IGNORECASE)


def not_one_job(words: Sequence[str], flags: Container[str]) -> str:
    """Return the sentence on several words where a command takes one job.

    Args:
        words: all of them.
        flags: names of the command's flags.
    """
    setting = next((word for word in words[1:] if "=" in word), None)
    if setting is not None:
        name, _, value = setting.partition("=")
        flag = f"--{name.replace('_', '-')}"
        return f"{setting}: write {flag} {value}" if flag in flags else f"{setting}: write --set {setting}"
    for word in words[1:]:
        if f"--{word}" in flags:
            return f"{word}: write --{word}"
        if "--gpu-type" in flags and is_card(word):
            return f"{word}: write --gpu-type {word}"
    job = next((word for word in words if is_job(word)), None)
    if job is not None:
        other = next((word for word in words if word != job), job)
        return f"{other}: unexpected word; after the job {job}, give only flags and their values"
    text = " ".join(words)
    return f"no job {text!r}{models_like(text)}" if models_like(text) else f"expected one job, not {text!r}"


def is_job(word: str) -> bool:
    """Return True for a job file, a script, a folder, or the name of a model that is here."""
    if _JOB_FILE.fullmatch(word) or "/" in word or os.path.isdir(word):  # noqa: PTH112
        return True
    from vramtop.estimator.job.job_file.load_and_save import names_user_code
    from vramtop.estimator.job.settings import ModelSpec
    from vramtop.estimator.model.find_config import resolve_model

    if names_user_code(word):
        return True
    try:
        resolve_model(ModelSpec(id=word))
    except InputError:
        from ...job.scripted_models import is_scripted  # not at start-up

        return is_scripted(word)
    return True


def is_card(word: str) -> bool:
    """Return True for the name of a GPU of the catalogue."""
    from vramtop.estimator.job.gpu_catalogue import find_gpu

    try:
        find_gpu(word)
    except InputError:
        return False
    return True


def models_like(text: str) -> str:
    """Return a question for models whose names are like this text; empty if there are none."""
    from vramtop.estimator.model.find_config import search_models

    near = search_models(text)
    return f"; did you mean {', '.join(near[:-1])}{' or ' if near[1:] else ''}{near[-1]}?" if near else ""
