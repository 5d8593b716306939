"""The pages of the command line: commands with their flags and exit codes, and the environment variables."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from vramtop.monitor.storage.settings.schema import SETTINGS, Setting
from vramtop.tui.cli.main import build_parser
from vramtop.tui.cli.parsing.help_text import (
    OF_COMMANDS,
    OF_EVERY_COMMAND,
    FlagFacts,
    FlagGroup,
    exit_codes_of,
    flag_groups,
    positionals,
    subcommands,
)
from vramtop.tui.cli.parsing.parser import EVERY_COMMAND, CommandParser

from .markdown import block, code, codes, page, prose, sentence, table

ENVIRONMENT: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER": "GPUs that fit considers, and how they are counted.",
    "VIRTUAL_ENV, CONDA_PREFIX": "Where a Python with torch and transformers is looked for.",
    "HF_HUB_CACHE, HF_HOME": "Where downloaded models are.",
    "VRAMTOP_CONFIG": "The settings file in place of the usual one; /dev/null for none.",
    "VRAMTOP_TABLE_KEY": "A setting, in place of what the settings file says: VRAMTOP_DASHBOARD_INTERVAL is "
    "dashboard.interval (vramtop config lists all).",
    "VRAMTOP_SSH": "The command in place of ssh for --host, such as ssh -F FILE.",
    "VRAMTOP_PROMETHEUS_USER, VRAMTOP_PROMETHEUS_PASSWORD": "User and password of the Prometheus that is read.",
    "VRAMTOP_EXPORT_PASSWORD": "Password that clients of vramtop export need.",
    "VRAMTOP_TORCH_PYTHON": "Of the programs of vramtop measure --suite, set by it: the Python that has torch.",
    "VRAMTOP_POD_GROUP": "Of a training process, set by its manifest: the group of pods that one run consists of.",
    "NO_COLOR, FORCE_COLOR, CLICOLOR, CLICOLOR_FORCE": "Whether the output has colours.",
    "TEXTUAL_THEME": "The theme, in place of that of your settings.",
    "TERM, COLORTERM": "What the terminal can do: how many colours, desktop notifications.",
    "LC_ALL, LC_CTYPE, LANG": "Without UTF-8 everything is drawn in ASCII.",
    "XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_CACHE_HOME": "Where settings, answers and estimates are stored.",
}
"""Meaning by the names of the variables."""
_OF_A_JOB = ("fit", "estimate", "wait", "preflight", "measure")
"""Commands that take the flags of a job."""
_WITH_MACHINE = ("fit", "estimate", "wait", "preflight")
_INTRODUCTION = """\
`vramtop` without a command opens the dashboard. A first word that is no command is a process to attach to, if it is a
number, and otherwise a job for `vramtop fit`. Flags may be written with `_` in place of `-`, and as `--flag VALUE` or
`--flag=VALUE`. `vramtop COMMAND --help` prints the flags that
most people use, `--help-all` and `man vramtop` all of them."""
_JOB = """\
`fit`, `estimate`, `wait`, `preflight` and `measure` take a job, with the same flags (`measure` without those of the
machine, since it runs here):

- a [job file](job-file.md) (TOML),
- the configuration file of [another tool](frameworks.md#tools-that-are-read),
- a model: a built-in name, a hub id in the local cache, a folder with a `config.json`, `module:callable`,
- a script or a notebook (`train.py`, `train.ipynb`), which is read and not run,
- or a launch line after `--`: `vramtop fit -- torchrun --nproc-per-node 8 train.py --bf16`.

The flags below set or change its settings."""


def commands_page() -> str:
    """Return the page of the commands."""
    parser = build_parser()
    commands = {name: (text, sub) for name, text, sub in subcommands(parser)}
    rows = [(f"[`{name}`](#vramtop-{name})", prose(sentence(text))) for name, (text, _) in commands.items()]
    every = [group for group in flag_groups(parser) if group.heading == EVERY_COMMAND]
    return page(
        "Commands",
        _INTRODUCTION,
        table(("command", "what it does"), rows),
        "## The dashboard",
        block(parser.examples),
        *_groups([group for group in flag_groups(parser) if group.heading != EVERY_COMMAND], level=3),
        _exit_codes(""),
        "## Flags of every command",
        *(_flags(group.flags) for group in every),
        "## A job on the command line",
        _JOB,
        *_groups(_job_groups(), level=3),
        *(part for name, (text, sub) in commands.items() for part in _command(name, text, sub)),
    )


def exit_codes_page() -> str:
    """Return the page of the exit codes."""
    columns = [0, 1, 3, 4]
    rows = [
        (f"[`{name}`](commands.md#vramtop-{name})" if name else "the dashboard", *_cells(name, columns))
        for name in OF_COMMANDS
    ]
    return page(
        "Exit codes",
        "A code means the same in all commands. A sentence on standard error says what is wrong; with `--json` too.",
        table(("code", "meaning"), [(code(number), text) for number, text in OF_EVERY_COMMAND.items()]),
        "## By command",
        "Every command ends with 2 on wrong input, and with 3 where it needs a driver and there is none. Empty: it "
        "does not end with this code.",
        table(("command", *(code(number) for number in columns)), rows),
        "## In scripts",
        "\n".join(
            [
                "`fit` distinguishes three answers that are not 0, since each has its own consequence:",
                "",
                block(
                    "vramtop fit job.toml\n"
                    "case $? in\n"
                    "    0) sbatch job.sh ;;\n"
                    '    4) echo "tight: it may run out of memory" ;;\n'
                    '    1) echo "it does not fit"; exit 1 ;;\n'
                    '    *) echo "cannot be told"; exit 3 ;;\n'
                    "esac",
                    "sh",
                ),
            ]
        ),
    )


def environment_page() -> str:
    """Return the page of the environment variables."""
    rows = [(codes(names.split(", ")), prose(text)) for names, text in ENVIRONMENT.items()]
    return page(
        "Environment variables",
        "The variables that a command of yours gets (`--on-alert`) are listed with the [alerts](alerts.md).",
        table(("variable", "what it does"), rows),
        "## Settings",
        "Each counts more than the [settings file](settings.md). Lists are separated by commas; a switch is `true` or "
        "`false`, `yes` or `no`, `on` or `off`, `1` or `0`.",
        table(
            ("variable", "setting", "flag"),
            [(code(each.variable), code(each.name), codes(_flag_words(each))) for each in SETTINGS if each.variable],
        ),
    )


def _flag_words(setting: Setting) -> list[str]:
    return setting.flag.split(", ") if setting.flag else []


def _cells(name: str, columns: Sequence[int]) -> Iterator[str]:
    meanings = {int(code): text for code, text in exit_codes_of(name).items()}
    yield from (prose(meanings.get(number, "")) for number in columns)


def _job_groups() -> list[FlagGroup]:
    """Return the flags that all commands with a job have; last those without a heading."""
    subs = {name: sub for name, _, sub in subcommands(build_parser())}
    shared = set.intersection(*({_key(flag) for flag in _all_flags(subs[name])} for name in _WITH_MACHINE))
    groups = [_only(group, lambda flag: _key(flag) in shared) for group in flag_groups(subs["fit"])]
    return [group for group in groups if group.flags and group.heading != EVERY_COMMAND]


def _only(group: FlagGroup, wanted: Callable[[FlagFacts], bool]) -> FlagGroup:
    return FlagGroup(group.heading, tuple(flag for flag in group.flags if wanted(flag)), group.text)


def _all_flags(parser: CommandParser) -> list[FlagFacts]:
    return [flag for group in flag_groups(parser) for flag in group.flags]


def _key(flag: FlagFacts) -> tuple[tuple[str, ...], str]:
    return flag.names, flag.text()


def _command(name: str, text: str, sub: CommandParser) -> Iterator[str]:
    yield f"## vramtop {name}"
    yield prose(sentence(text))
    usage = sub.usage or f"vramtop {name} {''.join(f'{each.placeholder} ' for each in positionals(sub))}[FLAG ...]"
    yield block("\n".join(line.strip() for line in usage.splitlines()))
    if sub.examples:
        yield "Examples:"
        yield block(sub.examples)
    operands = [each for each in positionals(sub) if each.placeholder != "JOB"]
    if operands:
        yield table(("argument", "meaning"), [(code(each.placeholder), prose(each.meaning)) for each in operands])
    shared = {_key(flag) for group in _job_groups() for flag in group.flags} if name in _OF_A_JOB else set()
    own = [
        _only(group, lambda flag: "--help" not in flag.names and _key(flag) not in shared)
        for group in flag_groups(sub)
        if group.heading != EVERY_COMMAND
    ]
    own = [group for group in own if group.flags]
    if shared:
        yield f"It takes a job and [its flags](#a-job-on-the-command-line){', and:' if own else '.'}"
    yield from _groups(own, level=0)
    if sub.epilog:
        yield prose(sub.epilog)
    yield _exit_codes(name)


def _groups(groups: Sequence[FlagGroup], *, level: int) -> Iterator[str]:
    for group in groups:
        if level:
            yield f"{'#' * level} {sentence(group.heading).removesuffix('.')}"
        elif len(groups) > 1:
            yield f"{prose(sentence(group.heading).removesuffix('.'))}:"
        if group.text:
            yield prose(group.text)
        yield _flags(group.flags)


def _flags(flags: Sequence[FlagFacts]) -> str:
    rows = [(_flag_cell(flag), prose(flag.text(all_choices=True))) for flag in flags]
    return table(("flag", "meaning"), rows)


def _flag_cell(flag: FlagFacts) -> str:
    value = f" {flag.placeholder}" if flag.placeholder else ""
    *others, last = flag.names
    return "<br>".join([*(code(name) for name in others), code(f"{last}{value}")])


def _exit_codes(name: str) -> str:
    listed = "; ".join(f"{code(int(number))} {prose(text)}" for number, text in exit_codes_of(name).items())
    return f"**Exit codes:** {listed}."
