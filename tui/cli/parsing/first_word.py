"""Interprets the first word of a command line: a command, a process, a job, or a mistake."""

import os
import re
import sys
from collections.abc import Container, Mapping, Sequence

from vramtop.estimator.common import InputError

_JOB_FILE = re.compile(r".*\.(toml|ya?ml|json|py|ipynb)", re.IGNORECASE)
_RECORDING_ENDINGS = (".jsonl", ".jsonl.gz")
_LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "mpirun", "srun", "uv")
_SYNONYMS = {"top": (), "version": ("--version",), "man": ("completion", "man"), "completions": ("completion",)}
"""Words that stand for others."""


def with_command(words: Sequence[str], commands: Sequence[str], values: Mapping[str, bool]) -> list[str]:
    """Return the command line with the command that its first word stands for, if that word is none.

    Args:
        words: after ``vramtop``, up to ``--``.
        commands: all commands.
        values: for each flag of vramtop itself whether a value follows it.

    Raises:
        InputError: the word is neither a command, a process, nor a job.
    """
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
    if _is_job(word):
        return [*before, "fit", word, *after]
    raise InputError(_mistake([word, *[each for each in after if not each.startswith("-")]], commands))


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
    text = " ".join(words)
    return f"no job {text!r}{_models_like(text)}" if _models_like(text) else f"one job is expected, not {text!r}"


def _first_word(words: Sequence[str], values: Mapping[str, bool]) -> int | None:
    at = 0
    while at < len(words):
        if not words[at].startswith("-"):
            return at
        at += 2 if values.get(words[at], False) else 1
    return None


def _attach(before: list[str], pid: str, after: list[str]) -> list[str]:
    """Return the command line that attaches to a process: in the dashboard on a terminal, otherwise as text."""
    if not os.path.exists(f"/proc/{pid}"):  # noqa: PTH110 - pathlib need not be loaded here
        raise InputError(f"there is no process {pid} on this machine; vramtop --once lists those on its GPUs")
    text = "--json" in (*before, *after) or not (sys.stdout.isatty() and sys.stdin.isatty())
    return [*before, "attach", pid, *after] if text else [*before, "--pid", pid, *after]


def _is_job(word: str) -> bool:
    """Return True for a job file, a script, a folder, or the name of a model that is here."""
    if _JOB_FILE.fullmatch(word) or "/" in word or os.path.isdir(word):  # noqa: PTH112
        return True
    from vramtop.estimator.job import ModelSpec, names_user_code
    from vramtop.estimator.model import resolve_model

    if names_user_code(word):
        return True
    try:
        resolve_model(ModelSpec(id=word))
    except InputError:
        return False
    return True


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
    import difflib  # not at start-up

    near = difflib.get_close_matches(word, commands, n=1, cutoff=0.6)
    if near:
        return f"there is no command {word!r}; did you mean vramtop {near[0]}?"
    models = _models_like(text)
    if models:
        return f"there is no command or model {text!r}{models}"
    return f"there is no command, model or job file {word!r}; commands are {', '.join(commands)}"


def _models_like(text: str) -> str:
    """Return a question for models whose names are like this text; empty if there are none."""
    from vramtop.estimator.model import search_models

    near = search_models(text)
    return f"; did you mean {', '.join(near[:-1])}{' or ' if near[1:] else ''}{near[-1]}?" if near else ""
