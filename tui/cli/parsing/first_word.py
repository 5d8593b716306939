"""Interprets the first word of a command line: a command, a process, a job, or a mistake."""

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import takewhile

from vramtop.estimator.common.errors import InputError

from .job_words import is_job, models_like

_LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "mpirun", "srun", "uv", "vllm")
_SYNONYMS = {"top": (), "version": ("--version",), "man": ("completion", "man"), "completions": ("completion",)}
"""Words that stand for others."""


def with_command(words: Sequence[str], commands: Sequence[str], values: Mapping[str, bool]) -> list[str]:
    """Return the command line with the command that its first word stands for, if that word is none.

    Flags of a job may stand in front of it: they are those of ``fit``, or of the command that follows.

    Args:
        words: after ``vramtop``, up to ``--``.
        commands: all commands.
        values: for each flag of vramtop itself whether a value follows it.

    Raises:
        InputError: the word is neither a command, a process, nor a job.
    """
    at = _first_word(words, values, stop=True)
    if at is not None and words[at].startswith("-"):
        found = _with_job_flags(words[:at], words[at:], commands)
        if found is not None:
            return found
        at = _first_word(words, values)
    if at is None or words[at] in (*commands, "__complete"):
        return list(words)
    before, word, after = list(words[:at]), words[at], list(words[at + 1 :])
    if word == "help":
        return [*before, *after[:1], "--help"]
    if word in _SYNONYMS:
        return [*before, *_SYNONYMS[word], *after]
    if word.isdecimal():
        return _attach(before, word, after)
    if is_job(word):
        return _fit(before, [word, *after])
    raise InputError(_mistake([word, *takewhile(lambda each: not each.startswith("-"), after)], commands))


def before_launch_line(words: Sequence[str]) -> int | None:
    """Return the place of the launcher in ``rehearse python train.py``, which has no ``--``; None: there is none.

    Args:
        words: the command, which takes a launch line, and what follows it.
    """
    names = [word.rpartition("/")[2] for word in words]
    at = next((at for at, name in enumerate(names) if name in _LAUNCHERS or name.startswith("python3.")), None)
    if at is None or at == len(words) - 1:
        return None
    from .parser import CommandParser  # not at start-up

    parser = CommandParser(command=words[0], prog=f"vramtop {words[0]}")
    parser.complete()
    return None if parser.flags_with_value().get(words[at - 1]) else at  # --python python3


def _with_job_flags(own: Sequence[str], words: Sequence[str], commands: Sequence[str]) -> list[str] | None:
    """Return the command line whose command or job stands behind flags of a job; None: the first is no such flag.

    Args:
        own: vramtop's own flags, which stand before them.
        words: the others, the first of them a flag.
        commands: all commands.
    """
    from ...job.flags.words import normal_words  # not at start-up
    from .parser import CommandParser

    parser = CommandParser(command="fit", prog="vramtop fit")
    parser.complete()
    values = parser.flags_with_value()
    normal = normal_words(words)
    if _name(normal[0]) not in values and normal[0][:2] not in values:  # -b4 is -b 4
        return None
    at = _first_word(normal, values)
    if at is not None and normal[at] in commands:
        return [*own, normal[at], *normal[:at], *normal[at + 1 :]]
    return _fit(own, normal)


def _fit(own: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the command line of ``fit``; ``--gpu`` before it is that of the job, not of the dashboard."""
    words, own = list(words), list(own)
    while (at := next((place for place, word in enumerate(own) if _name(word) == "--gpu"), None)) is not None:
        end = at + (1 if "=" in own[at] else 2)
        words += own[at:end]
        del own[at:end]
    return [*own, "fit", *words]


def _name(word: str) -> str:
    """Return the name of a flag, which ``=`` and its value may follow."""
    return word.partition("=")[0]


def _first_word(words: Sequence[str], values: Mapping[str, bool], *, stop: bool = False) -> int | None:
    """Return the place of the first word that is no flag and no value of one; None: there is none.

    Args:
        words: of the command line.
        values: for each flag that is known whether a value follows it.
        stop: at a flag that is not known too.
    """
    at = 0
    while at < len(words):
        if not words[at].startswith("-") or (stop and _name(words[at]) not in values):
            return at
        at += 2 if values.get(words[at], False) else 1
    return None


def _attach(before: list[str], pid: str, after: list[str]) -> list[str]:
    """Return the command line that attaches to a process: in the dashboard on a terminal, otherwise as text."""
    if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110 - pathlib need not be loaded here
        raise InputError(f"there is no process {pid} on this machine; vramtop --once lists those on its GPUs")
    text = "--json" in (*before, *after) or not (sys.stdout.isatty() and sys.stdin.isatty())
    return [*before, "attach", pid, *after] if text else [*before, "--pid", pid, *after]


_RECORDING_ENDINGS = (".jsonl", ".jsonl.gz")


def _mistake(words: Sequence[str], commands: Sequence[str]) -> str:
    word, text = words[0], " ".join(words)
    if word.rpartition("/")[2] in _LAUNCHERS:
        return f"vramtop fit -- {word} ... checks a launch line; vramtop run -- {word} ... starts it with the probe"
    if os.path.isfile(word) and word.lower().endswith(_RECORDING_ENDINGS):  # noqa: PTH113
        return f"a recording is not a command: vramtop --replay {word} plays it, vramtop report {word} writes a report"
    if os.path.isfile(word):  # noqa: PTH113
        return (
            f"{word} is neither a recording nor a job file, which ends in .toml, .yaml, .yml or .json; "
            f"vramtop explain {word} reads a log or a memory snapshot"
        )
    from vramtop.estimator.model.find_config import instead_of_model

    if (sentence := instead_of_model(text)) is not None:
        return sentence
    import difflib  # not at start-up

    near = difflib.get_close_matches(word, commands, n=1, cutoff=0.6)
    if near:
        return f"there is no command {word!r}; did you mean vramtop {near[0]}?"
    models = models_like(text)
    if models:
        return f"there is no command or model {text!r}{models}"
    return f"there is no command, model or job file {word!r}; commands are {', '.join(commands)}"
