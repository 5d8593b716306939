"""Turns a model that has no closed form into the program that is rehearsed for it: its training script in a file."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramtop.estimator.common.errors import CannotTellError, InputError
from vramtop.estimator.common.private_files import make_own_folder, write_private
from vramtop.estimator.job.job import Job
from vramtop.estimator.job.settings import Program
from vramtop.estimator.model.checkpoint import job_of_model
from vramtop.estimator.model.find_config import resolve_model
from vramtop.estimator.program.diffusion_script import diffusion_script, diffusion_words
from vramtop.estimator.program.image_script import LibraryModel, image_script, image_words
from vramtop.estimator.program.media_script import input_words, media_script
from vramtop.estimator.program.named_models import InputSizes, NamedModel
from vramtop.estimator.program.training_script import How, start_command
from vramtop.estimator.trace.answer_cache import cache_file
from vramtop.estimator.trace.installed_packages import installed_packages
from vramtop.estimator.trace.interpreters import choose_interpreter

from .scripted_models import ScriptedModel

_MEANINGLESS = ("inference.", "model.task", "rollout.", "training.mode", "training.loss_length")
"""Beginnings of keys that no script of such a model has a place for."""


def refuse_meaningless(keys: Mapping[str, str], label: str, *, has_length: bool) -> None:
    """Refuse a setting that means nothing for a model.

    Args:
        keys: the job keys that were set, each with its flag.
        label: name of the model.
        has_length: its sequences of tokens have a length.

    Raises:
        InputError: there is one.
    """
    no_length = () if has_length else ("training.sequence_length",)
    flag = next((flag for key, flag in keys.items() if key.startswith((*_MEANINGLESS, *no_length))), None)
    if flag == "--inference":
        raise InputError(
            f"vramtop has a training script for {label}, and none that runs it without training; "
            "vramtop rehearse -- python SCRIPT.py answers for yours"
        )
    if flag is not None:
        raise InputError(f"{flag} means nothing for {label}, whose training script is rehearsed; leave it out")


def chosen_python(model: ScriptedModel, python: str | None) -> tuple[Path, str | None]:
    """Return the Python that runs a model's script, and its version of transformers; None: the script needs none.

    Args:
        model: the model.
        python: interpreter that the user named; None: one that has the model's libraries is searched for.

    Raises:
        CannotTellError: no Python has them.
    """
    if isinstance(model, LibraryModel):
        return model.python, None
    found = choose_interpreter(python, os.environ)
    return found.path, found.transformers


def script_of_model(
    job: Job, named: ScriptedModel, sizes: Mapping[str, Any], how: How
) -> tuple[str, str, tuple[str, ...]]:
    """Return the training script of a described job, the command that starts it, and notes on what it assumes.

    Args:
        job: of a model without a closed form.
        named: the model.
        sizes: of these, as the command line gives them.
        how: how the script is written.

    Raises:
        InputError: the model takes no such input.
        CannotTellError: no script stands for the job.
    """
    inputs, training, stated = InputSizes(**sizes), job.training, how.stated or ()
    if isinstance(named, NamedModel):
        model = resolve_model(job.model)
        job = job_of_model(job, model)
        text = media_script(job, model, sizes=inputs, processed=named.processed, how=how)
        words, steps = input_words(job, model, inputs, stated, named.processed), job.training.optimizer
    else:
        if isinstance(named, LibraryModel):
            text, words = image_script(job, named, sizes=inputs, how=how), image_words(named, inputs)
        else:
            text = diffusion_script(job, named, sizes=inputs, how=how)
            words = diffusion_words(named, inputs)
        optimizer = f"{training.optimizer}, " if "training.optimizer" in stated else ""
        steps = f"{optimizer}as {named.loop(adapts=job.lora is not None)} does"
        job = job_of_model(job, resolve_model(job.model))
    tuning = "all parameters" if job.lora is None else f"LoRA rank {job.lora.rank}"
    note = (
        f"There is no closed form for {job.label}: its training script was rehearsed ({training.micro_batch} x "
        f"{words}, {tuning}, {job.training.precision}, {steps}); vramtop program prints it."
    )
    return text, start_command(job, how.file), (note,)


_STEPS = 2
"""Optimizer steps that are rehearsed: the first makes the optimizer's states, the second is like all others."""


def program_of_script(job: Job, script: str, command: str, file: str, *, python: Path) -> Job:
    """Return the job of the script, which is written into the user's cache.

    Args:
        job: that it stands for.
        script: its text.
        command: that starts it.
        file: its name.
        python: interpreter that runs it.

    Raises:
        CannotTellError: it lacks what the script imports.
    """
    _require_packages(script, job.label, python)
    place = cache_file("scripts", [file, script]).with_suffix("") / file
    make_own_folder(place)
    write_private(place, script.encode())
    launcher, *rest = shlex.split(command)
    words = [str(python), *(["-m", "torch.distributed.run"] if launcher == "torchrun" else []), *rest]
    program = Program(command=shlex.join(words), folder=str(place.parent), steps=_STEPS)
    return Job(name=job.label, program=program, target=job.target)


_NAMED_PACKAGES = {
    "deepspeed=": "deepspeed",
    "use_liger_kernel=": "liger_kernel",
    '"flash_attention_2"': "flash_attn",
    "_8bit": "bitsandbytes",
    '"paged_': "bitsandbytes",
}
"""Packages that a script needs without importing them, by the setting that needs each."""


def _require_packages(script: str, label: str, python: Path) -> None:
    lines = (line.split() for line in script.splitlines() if line.startswith(("import ", "from ")))
    names = {words[1].partition(".")[0] for words in lines}
    names |= {package for setting, package in _NAMED_PACKAGES.items() if setting in script}
    names |= {"torchvision"} if "timm" in names else set()  # which timm imports
    missing = sorted(names - set(installed_packages(python, distributions=[], modules=sorted(names)).modules))
    if missing:
        raise CannotTellError(
            f"the training script of {label} needs {', '.join(missing)}, which {python} does not have; "
            f"{python} -m pip install {' '.join(missing)} installs {'it' if len(missing) == 1 else 'them'}"
        )
