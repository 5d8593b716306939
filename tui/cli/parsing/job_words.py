"""Words that name a job, a model or a card, and what is said of several of them and of flags that do not exist."""

import os
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

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


_HINTS = {
    **dict.fromkeys(
        ("--offload", "--offloading"),
        "choose --cpu-offload optimizer, --cpu-offload all (weights too), or --activation-offload",
    ),
    **dict.fromkeys(
        ("--ppo", "--gkd", "--online-dpo", "--prm", "--cpo", "--bco", "--dora", "--ia3", "--prompt-tuning"),
        "no flag describes this method; give the launch line, as in vramtop fit -- python train.py",
    ),
    **dict.fromkeys(("--fa", "--fa2"), "write --flash-attention"),
    "--fa3": "write --flash-attention 3",
    "--galore": "write --optimizer galore-adamw",
    "--max-target-length": "write --set training.loss_length=N, for a model with encoder and decoder",
    "--apollo": "write --optimizer apollo-adamw",
    **dict.fromkeys(
        ("--resume", "--resume-training", "--resume-from-checkpoint"),
        "leave it out: a run that is resumed needs the same memory",
    ),
}


def meant_by(name: str, actions: Mapping[str, Any]) -> str | None:
    """Return what to write in place of a flag that does not exist, as the end of a sentence; None: it is like none.

    Args:
        name: of the flag, with its dashes.
        actions: the command's flags by each of their names.
    """
    name = name.lower().replace("_", "-")
    keys = {key: flag for flag, action in actions.items() if (key := getattr(action, "key", None))}
    if keys and name in _HINTS:
        return _HINTS[name]
    near = _near(name, actions)
    if near and near[0].replace("-", "") == name.replace("-", ""):
        return f"did you mean {near[0]}?"
    if (setting := _setting_with_value(name.removeprefix("--"), keys)) is not None:
        return f"write {setting}"
    if "--gpu-type" in actions and is_card(re.sub(r"^\d{1,7}x", "", name.removeprefix("--"))):
        return f"write --gpu-type {name.removeprefix('--')}"
    return f"did you mean {' or '.join(near)}?" if near else None


def _setting_with_value(word: str, keys: Mapping[str, str]) -> str | None:
    """Return a flag with the word as its value, such as ``--optimizer adafactor``; None: no setting has it."""
    from vramtop.estimator.job.field_help import field_help  # with the job, only after a mistake

    if not keys or word in ("none", "auto", "full", "other"):
        return None
    for key, flag in keys.items():
        if word in field_help(key).choices:
            return f"{flag} {word}"
    return None


_LENGTH_OR_BATCH = re.compile(r"seq|ctx|cont|len|tok|batch|window")
"""Words of flags about the size of a step, for which none is suggested that splits the job over GPUs."""
_NEAR = 0.75
"""Likeness (``difflib``) from which a flag is one that was mistyped: ``precison``; not ``unsloth`` and ``use``."""
_MOST = 3
_SHORTEST_BEGINNING = 3
"""An unknown flag needs this many letters to be completed to a known one."""


def _near(name: str, actions: Mapping[str, Any]) -> list[str]:
    """Return the names that one may mean, one for each flag: those that begin with it, else those that are like it."""
    sizes = _LENGTH_OR_BATCH.search(name) and "par" not in name
    shown = {
        each: action
        for each, action in actions.items()
        if each.startswith("--") and not (sizes and getattr(action, "splits_job", False))
    }
    begun = sorted((each for each in shown if each.startswith(name)), key=len)
    found = begun if len(name) >= _SHORTEST_BEGINNING + len("--") else []
    import difflib  # not at start-up

    found = found or difflib.get_close_matches(name, shown, 1, _NEAR)
    return list({id(shown[each]): each for each in reversed(found)}.values())[::-1][:_MOST]
