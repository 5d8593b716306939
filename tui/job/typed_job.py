"""Loads the job that the user types or pastes: a path, a launch line, a command of vramtop's, or a model with flags."""

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.paths import expand_user, is_file, is_folder
from vramtop.estimator.common.records import replace
from vramtop.estimator.job.job_file.changes import parse_assignment, with_changes
from vramtop.estimator.model.find_config import PIPELINE

from .flags.gpu_flags import GPU_TYPE_FLAGS, GpuAction, GpuCountAction, GpuTypeAction
from .flags.job_flags import add_job_arguments
from .flags.settings import settings_of_flags
from .flags.words import normal_words
from .load_job import load_from_options
from .loaded_job import LoadedJob
from .program_job import if_rehearsable, program_job, program_of_file, program_of_script
from .read_job import JOB_SUFFIXES, NO_MODEL, PROGRAM_SUFFIXES, from_file, from_launch_line, from_model, is_shell_script
from .usual_sizes import with_older_libraries, with_sizes

_REHEARSAL = re.compile(r"(?:vramtop )?(?:rehearse|(?:fit|wait|run --fit) --rehearse) (?:-- )?")
"""The beginning of a line that rehearses a program."""
_COMMAND = re.compile(r"(?:vramtop )?(?:fit|estimate|wait|preflight|run|rehearse) (?:.* )?-- ")
"""A line of vramtop's with a launch line."""
_OWN_WORDS = re.compile(r"vramtop(?: (?:fit|estimate))?(?: |$)")
"""The beginning of a line of vramtop's own."""


def load_from_text(text: str, given: Mapping[str, Any] | None = None) -> LoadedJob:
    """Load the job that the user typed or pasted; required settings may be missing.

    Args:
        text: the path of a job file or of a tool's configuration, perhaps quoted; a launch line, perhaps of several
            lines; or a model, perhaps with its flags.
        given: values that the user gives by dotted job key, in place of those there.

    Raises:
        InputError: it is none of these, or cannot be read.
    """
    changes = dict(given or {})
    text = text.strip().removeprefix("$ ").strip()
    if _COMMAND.match(text) is not None:
        return _of_command(text, changes)
    if (found := _REHEARSAL.match(text)) is not None:
        rest = text[found.end() :]
        if rest.endswith(JOB_SUFFIXES[0]):
            return program_of_file(expand_user(rest))
        return program_job(_program_words(rest))
    text = _OWN_WORDS.sub("", text, count=1)
    unquoted = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    path = expand_user(unquoted)
    if path.suffix in JOB_SUFFIXES and (is_file(path) or len(text.split()) == 1):
        return with_sizes(from_file(path, changes))
    if is_file(path) and is_shell_script(path):
        return _read_or_rehearsed(shlex.quote(str(path)), changes)
    if path.suffix in PROGRAM_SUFFIXES and is_file(path):
        return _read_or_rehearsed(shlex.join(["python", unquoted]), changes)
    if len(text.split()) > 1 and not is_folder(path):
        words = _words(text)
        starts_program = words[0].startswith("python") or "=" in words[0] or _is_launch_line(words)
        has_flags = words[1:] and words[1].startswith("-") and not starts_program
        return _with_flags(words) if has_flags else _read_or_rehearsed(text, changes)
    if not unquoted:
        raise InputError("enter a job file, a tool's configuration, a launch line, or a model")
    from .scripted_models import may_be_scripted

    if not changes and (not is_folder(path) or is_file(path / PIPELINE)) and may_be_scripted(unquoted):
        return _with_flags([unquoted])
    job = with_changes(from_model(unquoted, changes), changes, where="what you give")
    loaded = LoadedJob(job=job, origins={"model.id": "as you gave it"}, typed=frozenset(changes))
    return with_sizes(with_older_libraries(loaded, None))


def _with_flags(words: Sequence[str]) -> LoadedJob:
    """Return the job of a model or file with flags; ``--gpu`` sets its card.

    Raises:
        InputError: the flags or the job are wrong, or a required setting is missing.
    """
    from vramtop.estimator.job.gpu_catalogue import find_gpu

    options = _Parser().parse_args(normal_words(words))
    options.command = "fit"
    if options.gpu:
        raise InputError(
            f"--gpu {options.gpu}: give a card, such as h100; the screen already shows this machine's GPUs"
        )
    if size := getattr(options, "gpu_memory", None):
        raise InputError(f"{size}: here give a card by its name, such as h100")
    loaded = load_from_options(options, None)
    card = {} if options.gpu_type is None else {"target.gpu": find_gpu(options.gpu_type).name}
    return replace(loaded, job=with_changes(loaded.job, card))


_COMMANDS = ("fit", "estimate", "wait", "preflight", "run", "--fit")


def _of_command(text: str, changes: Mapping[str, Any]) -> LoadedJob:
    """Return the job of a line of vramtop's with a launch line: ``vramtop fit --gpu-type h100 -- python train.py``.

    Raises:
        InputError: the flags or the launch line are wrong.
    """
    from vramtop.estimator.job.gpu_catalogue import find_gpu

    words = _words(text)
    at = words.index("--")
    before, launch = [each for each in words[:at] if each != "vramtop"], words[at + 1 :]
    parser = _Parser()
    for flag in ("--data", "--steps", "--python"):
        parser.add_argument(flag, action="append", dest="set", type=f"program.{flag[2:]}={{}}".format)
    asked = [each for each in before if each in ("rehearse", "--rehearse")]
    options = parser.parse_args(normal_words([each for each in before if each not in (*_COMMANDS, *asked)]))
    given = settings_of_flags(options.flags, gpus=options.gpus)
    stated = {**given.changes, **dict(parse_assignment(each) for each in options.set)}
    if options.gpu_type is not None:
        stated["target.gpu"] = find_gpu(options.gpu_type).name
    if asked:
        loaded = program_job(launch)
        return replace(loaded, job=with_changes(loaded.job, stated, where="the command line"))
    loaded = _read_or_rehearsed(shlex.join(launch), {**stated, **changes})
    return replace(loaded, origins={**loaded.origins, **dict.fromkeys(stated, "as you gave it")})


def _words(text: str) -> list[str]:
    """Return the words of a line.

    Raises:
        InputError: a quotation has no end.
    """
    try:
        return shlex.split(text)
    except ValueError:
        raise InputError("a quotation mark is missing") from None


def _program_words(text: str) -> list[str]:
    """Return the words of the program in a shell's line, without redirections and what follows."""
    from vramtop.estimator.readers.program.launch import LaunchParser

    return LaunchParser(()).split([text])


def _read_or_rehearsed(text: str, changes: Mapping[str, Any]) -> LoadedJob:
    """Return the job of a launch line, with its program if that can be rehearsed; of one without a model the latter."""
    words = _program_words(text)
    program = if_rehearsable(lambda: program_of_script(words) or program_job(words))
    try:
        read = from_launch_line([text], changes)
    except InputError as error:
        if program is None:
            raise
        return replace(program, unread=error.message)
    if program is None or read.job.is_served:
        return read
    if "model.id" in read.missing:
        return replace(program, unread=NO_MODEL.format("the launch line"))
    return replace(read, program=program.job)


_GIVEN = "you"
"""Origin of a value that the user edited."""


def load_again(text: str, first: LoadedJob, edits: Mapping[str, Any]) -> LoadedJob:
    """Load a job again with the user's edits: what follows from a model then follows from that of the user.

    Args:
        text: what was loaded, see ``load_from_text``.
        first: the job as it was loaded without edits.
        edits: values by dotted job key.

    Raises:
        InputError: it can no longer be read, or not with these values.
    """
    is_same_model = "model.id" in edits and edits["model.id"] == first.job.model.id
    given = {key: value for key, value in edits.items() if not (is_same_model and key == "model.id")}
    loaded = load_from_text(text, given)
    return replace(loaded, origins={**loaded.origins, **dict.fromkeys(given, _GIVEN)})


def _is_launch_line(words: Sequence[str]) -> bool:
    """Return True if words start a program or a shell script, and do not name a model with its flags."""
    from vramtop.estimator.readers.source.shell_script import shell_script_in
    from vramtop.estimator.readers.tools.tool_registry import parse_launch  # with the readers of all tools

    runs_script = shell_script_in(words, Path()) not in (None, 0)
    is_launch = len(words) > 1 and (runs_script or parse_launch(words).program_name is not None)
    return is_launch and not is_file(expand_user(words[0]))


class _Parser(argparse.ArgumentParser):
    """Parses the job and its flags; a mistake is an InputError."""

    def __init__(self) -> None:
        super().__init__(prog="job", add_help=False, allow_abbrev=False)
        self.add_argument("--gpus", action=GpuCountAction)
        self.add_argument(*GPU_TYPE_FLAGS, action=GpuTypeAction)
        self.add_argument("--gpu", action=GpuAction)
        add_job_arguments(self)

    def error(self, message: str) -> NoReturn:
        """Raise the sentence.

        Raises:
            InputError: always.
        """
        raise InputError(message.replace("unrecognized arguments", "jobs have no such setting"))
