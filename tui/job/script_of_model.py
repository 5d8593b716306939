"""Turns a model that has no closed form into the program that is rehearsed for it: its training script in a file."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.private_files import make_own_folder, write_private
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Program
from vramtop.estimator.model.checkpoint import job_of_model
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.program.media_script import input_words, media_script
from vramtop.estimator.program.named_models import InputSizes
from vramtop.estimator.program.training_script import start_command
from vramtop.estimator.trace.installed_packages import installed_packages
from vramtop.estimator.trace.interpreters import choose_interpreter
from vramtop.estimator.trace.worker_pool import cache_file

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_STEPS = 2
"""Optimizer steps that are rehearsed: the first makes the optimizer's states, the second is like all others."""
_MEANINGLESS = ("inference.", "model.task", "rollout.", "training.mode", "training.loss_length")
"""Beginnings of keys that no script of such a model has a place for."""


def refuse_meaningless(keys: Mapping[str, str], label: str, *, generates: bool) -> None:
    """Refuse a setting that means nothing for a model.

    Args:
        keys: the job keys that were set, each with its flag.
        label: name of the model.
        generates: it generates text, so that its sequences have a length.

    Raises:
        InputError: there is one.
    """
    no_length = () if generates else ("training.sequence_length",)
    flag = next((flag for key, flag in keys.items() if key.startswith((*_MEANINGLESS, *no_length))), None)
    if flag is not None:
        raise InputError(f"{flag} means nothing for {label}, whose training script is rehearsed; leave it out")


def script_of_model(
    job: Job, sizes: Mapping[str, Any], stated: Collection[str], file: str
) -> tuple[str, str, tuple[str, ...]]:
    """Return the training script of a described job, the command that starts it, and notes on what it assumes.

    Args:
        job: of a model that is given images or audio.
        sizes: of these, as the command line gives them.
        stated: keys of the job that somebody gave.
        file: name under which it is started.

    Raises:
        InputError: the model takes no such input.
        CannotTellError: no script stands for the job.
    """
    model, inputs = resolve_model(job.model), InputSizes(**sizes)
    job = job_of_model(job, model)
    text = media_script(job, model, sizes=inputs, stated=stated, file=file)
    training = job.training
    tuning = "all parameters" if job.lora is None else f"LoRA rank {job.lora.rank}"
    assumed = f"{training.micro_batch} x {input_words(job, model, inputs, stated)}, {tuning}, {training.precision}"
    note = (
        f"There is no closed form for {job.label}: its training script was rehearsed ({assumed}, "
        f"{training.optimizer}); vramtop program prints it."
    )
    return text, start_command(job, file), (note,)


def program_of_script(job: Job, script: str, command: str, file: str, *, python: str | None) -> Job:
    """Return the job of the script, which is written into the user's cache.

    Args:
        job: that it stands for.
        script: its text.
        command: that starts it.
        file: its name.
        python: interpreter that the user named; None: one that has torch and transformers is searched for.

    Raises:
        CannotTellError: no Python has torch and transformers, or this one lacks what the script imports.
    """
    interpreter = str(choose_interpreter(python, os.environ).path)
    _require_packages(script, job.label, Path(interpreter))
    place = cache_file("scripts", [file, script]).with_suffix("") / file
    make_own_folder(place)
    write_private(place, script.encode())
    launcher, *rest = shlex.split(command)
    words = [interpreter, *(["-m", "torch.distributed.run"] if launcher == "torchrun" else []), *rest]
    program = Program(command=shlex.join(words), folder=str(place.parent), steps=_STEPS)
    return Job(name=job.label, program=program, target=job.target)


def _require_packages(script: str, label: str, python: Path) -> None:
    lines = (line.split() for line in script.splitlines() if line.startswith(("import ", "from ")))
    names = {words[1].partition(".")[0] for words in lines}
    missing = sorted(names - set(installed_packages(python, distributions=[], modules=sorted(names)).modules))
    if missing:
        raise CannotTellError(
            f"the training script of {label} needs {', '.join(missing)}, which {python} does not have; "
            f"{python} -m pip install {' '.join(missing)} installs {'it' if len(missing) == 1 else 'them'}"
        )
