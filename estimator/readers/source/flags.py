"""Command-line flags as argparse and transformers' HfArgumentParser understand them."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from .settings import Setting

_FLAG = re.compile(r"--?[A-Za-z_]")
IGNORED_FLAGS = re.compile(
    r"-*(output_?dir|run_?name|logging_?dir|report_?to|master_?(addr|port)|rdzv\w*|node_?rank|machine_?rank|seed|"
    r"main_?process_?(ip|port)|(wandb|hub|log|exp|project|save|ckpt|checkpoint)\w*|learning_?rate|lr|warmup\w*|data\w*|"
    r"\w*_?(data|files?|path_to_data)|num_?train_?epochs|epochs|max_?steps|weight_?decay|local_?rank|hostfile|tag\w*|"
    r"(python|ld_library)_?path)"
)
"""Flags that never change the memory of a GPU, whatever their value."""


def is_flag(token: str) -> bool:
    """Return True for ``--name`` and ``-n``, but not for ``-1`` or ``-``."""
    return _FLAG.match(token) is not None


def flag_name(flag: str) -> str:
    """Return a flag's name: without leading dashes and without its value, with underscores inside."""
    return flag.lstrip("-").partition("=")[0].replace("-", "_")


def parse_flags(tokens: Sequence[str], *, where: str = "on the command line") -> tuple[dict[str, Setting], list[str]]:
    """Return flags by name, and the words before the first flag.

    Flags are ``--name value``, ``--name=value``, ``--name v1 v2`` (a list), ``--name`` alone (true) and ``--no_name``
    (false for ``name``). The last one wins, as in argparse. Values stay strings.
    """
    flags: dict[str, Setting] = {}
    words: list[str] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        index += 1
        if not is_flag(token):
            words.append(token)
            continue
        flag, equals, inline = token.partition("=")
        values = [inline] if equals else []
        while not equals and index < len(tokens) and not is_flag(tokens[index]):
            values.append(tokens[index])
            index += 1
        value = True if not values else values[0] if len(values) == 1 else values
        name = flag_name(flag)
        flags[name] = Setting(value=value, origin=f"{flag} {where}")
        if value is True and name.startswith("no_"):
            flags[name[3:]] = Setting(value=False, origin=f"{flag} {where}")
    return flags, words


def abbreviations(flags: Mapping[str, Setting], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield flags that argparse may take for abbreviations of options, which are not spelled out, with a sentence.

    Args:
        flags: flags by name.
        known: the names of the options.
    """
    for name, setting in flags.items():
        meant = [] if name in known else sorted(each for each in known if each.startswith(name))
        if setting.origin.startswith("--") and not all(map(IGNORED_FLAGS.fullmatch, meant)):
            options = " or ".join(f"--{each}" for each in meant[:3])
            yield name, f"{setting.origin} may stand for {options}; it is not counted."
