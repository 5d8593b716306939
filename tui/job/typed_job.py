"""Loads a job from the words that the user types or pastes, as ``vramtop fit`` takes them."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from vramtop.estimator.common import InputError, expand_user, is_file
from vramtop.estimator.readers.tools import parse_launch

from .flags import GPU_TYPE_FLAGS, GpuAction, GpuTypeAction, add_job_arguments, gpu_count, normal_words
from .load_job import LoadedJob, load_from_options

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMAND = ("vramtop", "fit")
_NO_JOB = "enter a job file, a model with its flags, or a launch line"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedJob:
    """A job as the user typed it."""

    loaded: LoadedJob
    gpu_type: str | None = None
    """The only type of GPU that is wanted, of ``--gpu-type``."""


def load_typed(text: str) -> TypedJob:
    """Load a job from words such as ``job.toml``, ``llama-3.1-8b --qlora --gpu-type h100``, or a launch line.

    Args:
        text: one line; ``vramtop fit`` at its beginning is left out, and a launch line may stand behind ``--``.

    Raises:
        InputError: it is none of these, cannot be read, or a required setting is missing.
    """
    text = text.strip().removeprefix("$ ").strip()
    try:
        words = [text] if is_file(expand_user(text)) else shlex.split(text)
    except ValueError:
        raise InputError("a quotation mark is not closed") from None
    if tuple(words[:2]) == _COMMAND:
        words = words[2:]
    if not words:
        raise InputError(_NO_JOB)
    before, launch = _parts(words)
    options = _Parser().parse_args(normal_words(before))
    if options.gpu:
        raise InputError(f"--gpu {options.gpu}: here give a card, such as h100; the screen shows GPUs of this machine")
    return TypedJob(loaded=load_from_options(options, launch), gpu_type=options.gpu_type)


def _parts(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Return the flags of the job, and the launch line if there is one."""
    if "--" in words:
        at = words.index("--")
        return list(words[:at]), list(words[at + 1 :])
    is_launch = len(words) > 1 and parse_launch(words).program_name is not None
    return ([], list(words)) if is_launch and not is_file(expand_user(words[0])) else (list(words), None)


class _Parser(argparse.ArgumentParser):
    """Parses the job and its flags; a mistake is an InputError."""

    def __init__(self) -> None:
        super().__init__(prog="job", add_help=False, allow_abbrev=False)
        self.add_argument("--gpus", type=gpu_count)
        self.add_argument(*GPU_TYPE_FLAGS, action=GpuTypeAction)
        self.add_argument("--gpu", action=GpuAction)
        add_job_arguments(self)

    def error(self, message: str) -> NoReturn:
        """Raise the sentence.

        Raises:
            InputError: always.
        """
        raise InputError(message.replace("unrecognized arguments", "a job has no such setting"))
