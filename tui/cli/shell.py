"""Files that shells and ``man`` read: completions for bash, zsh and fish, and the manual page, all from the parsers."""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vramtop.estimator.common.version import version_number
from vramtop.estimator.job.field_help import choices_of_key, is_switch
from vramtop.estimator.job.gpu_catalogue import catalogue
from vramtop.estimator.job.job_file.changes import job_keys
from vramtop.monitor.board.display_filter import ONLY_WORDS
from vramtop.monitor.storage.settings.schema import SETTINGS, TABLES, find_setting

from .parsing.help_text import OF_EVERY_COMMAND, FlagFacts, FlagGroup, exit_codes_sentence, flag_groups, positionals
from .parsing.parser import EVERY_COMMAND, CommandParser, Parser

# Words that completions ask for (``vramtop __complete KIND``): models that are here, and processes on GPUs.


def dynamic_words(kind: str = "") -> list[str]:
    """Return the words of a kind, each perhaps with a tab and its meaning; none for a kind that there is not.

    Args:
        kind: ``models`` or ``pids``.
    """
    return list(_KINDS[kind]()) if kind in _KINDS else []


def _models() -> Iterator[str]:
    from ..job.form.fields import cached_models, model_names

    yield from dict.fromkeys([*cached_models(), *(name.lower() for name in model_names() if "/" not in name)])


def _pids() -> Iterator[str]:
    from vramtop.estimator.common.errors import CannotTellError
    from vramtop.estimator.common.sizes import format_gib
    from vramtop.monitor.sources.nvml.nvml_source import NvmlSource

    source = NvmlSource()
    try:
        source.open()
        snapshot = source.read()
    except CannotTellError:
        return
    finally:
        source.close()
    for gpu, process in snapshot.processes():
        used = "memory n/a" if process.used_bytes is None else f"{format_gib(process.used_bytes)} GiB"
        command = (process.command or "")[:60]
        yield f"{process.pid}\tGPU {gpu.index}, {used}: {command}".replace("\n", " ")


_KINDS: Mapping[str, Callable[[], Iterator[str]]] = {"models": _models, "pids": _pids}


# The files that the wheel installs where shells and ``man`` look; ``make completion`` writes them from the parsers.


FILES: Mapping[str, str] = {
    "bash": "bash/vramtop",
    "zsh": "zsh/_vramtop",
    "fish": "fish/vramtop.fish",
    "man": "man/vramtop.1",
}
"""Path of each below ``shell/`` in the checkout."""


def shell_text(kind: str) -> str:
    """Return the completion of a shell, or with ``man`` the manual page."""
    from .main import build_parser

    parser = build_parser()
    if kind == "man":
        return man_page(parser)
    texts: Mapping[str, Callable[..., str]] = {"bash": bash_text, "zsh": zsh_text, "fish": fish_text}
    return texts[kind](completable(parser))


def write_files(folder: Path) -> None:
    """Write all of them below a folder."""
    for kind, name in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shell_text(kind))


if __name__ == "__main__":
    write_files(Path(sys.argv[1]))


# Words that can be completed: the commands, their flags, and what may follow each.


Source = Literal["", "models", "pids", "files", "folders", "jobs", "keys", "commands"]
"""Where further words come from: ``models`` and ``pids`` from vramtop itself, ``jobs`` are models or files."""
_WORDS_SOURCES: Mapping[str, Source] = {
    "MODEL": "models",
    "JOB": "jobs",
    "FILE": "files",
    "PATH": "files",
    "FOLDER": "folders",
    "PID": "pids",
    "KEY=VALUE": "keys",
    "COMMAND": "commands",
}
"""Source by the word that stands for a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag, or an argument without a name."""

    names: tuple[str, ...]
    meaning: str
    takes_value: bool
    value_optional: bool = False
    words: tuple[str, ...] = ()
    """Words that its value may be."""
    source: Source = ""
    familiar: bool = False
    """It has another tool's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command; an empty name is vramtop itself."""

    name: str
    help: str
    flags: tuple[Flag, ...]
    operands: tuple[Flag, ...]


def completable(parser: Parser) -> tuple[Command, ...]:
    """Return vramtop itself and all commands."""
    return (
        _command_words("", "", parser),
        *(_command_words(name, text, sub) for name, text, sub in subcommands(parser)),
    )


def subcommands(parser: Parser) -> list[tuple[str, str, CommandParser]]:
    """Return name, help and parser of each command, with its arguments."""
    action = next(each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    found = []
    for choice in action._choices_actions:
        sub = action.choices[choice.dest]
        sub.complete()
        found.append((choice.dest, choice.help or "", sub))
    return found


def words_by_job_key() -> dict[str, tuple[str, ...]]:
    """Return each key of the job file for ``--set``, with the words that it may be set to."""
    keys = [key for key in job_keys() if "." in key]
    return {key: choices_of_key(key) or (("true", "false") if is_switch(key) else ()) for key in keys}


def _command_words(name: str, text: str, parser: Parser) -> Command:
    return Command(
        name=name,
        help=text,
        flags=tuple(_flag(flag) for group in flag_groups(parser) for flag in group.flags),
        operands=tuple(_flag(operand) for operand in positionals(parser)),
    )


def _flag(facts: FlagFacts) -> Flag:
    words = facts.choices
    if "--gpu-type" in facts.names:
        words = tuple(gpu.name for gpu in catalogue())
    elif "--optim" in facts.names:
        words = choices_of_key("training.optimizer")
    elif "--only" in facts.names:
        words = ONLY_WORDS
    word = facts.placeholder.strip("[]")
    if word == "SETTING":
        words = (*(name for name in TABLES if find_setting(name) is None), *(setting.name for setting in SETTINGS))
    return Flag(
        names=facts.names,
        meaning=facts.first_sentence,
        takes_value=facts.takes_value,
        value_optional=facts.placeholder.startswith("["),
        words=words,
        source=_WORDS_SOURCES.get(word, "") if not words else "",
        familiar=facts.is_familiar,
    )


# Completion for bash; it needs nothing of the package bash-completion.


_SOURCES: Mapping[Source, str] = {
    "models": 'COMPREPLY=($(compgen -W "$(vramtop __complete models 2>/dev/null)" -- "$cur"))',
    "jobs": 'COMPREPLY=($(compgen -W "$(vramtop __complete models 2>/dev/null)" -- "$cur") $(compgen -f -- "$cur"))',
    "pids": 'COMPREPLY=($(compgen -W "$(vramtop __complete pids 2>/dev/null | cut -f1)" -- "$cur"))',
    "files": 'COMPREPLY=($(compgen -f -- "$cur"))',
    "folders": 'COMPREPLY=($(compgen -d -- "$cur"))',
    "keys": 'compopt -o nospace; COMPREPLY=($(compgen -S= -W "{keys}" -- "$cur"))',
    "commands": 'COMPREPLY=($(compgen -c -- "$cur"))',
}


def bash_text(commands: Sequence[Command]) -> str:
    """Return the completion script for bash."""
    return "\n".join(_lines(commands)) + "\n"


def _lines(commands: Sequence[Command]) -> Iterator[str]:
    named = [command for command in commands if command.name]
    names = " ".join(command.name for command in named)
    yield "# Completion of vramtop for bash: vramtop completion bash"
    yield "# shellcheck shell=bash disable=SC2207"
    yield "_vramtop() {"
    yield "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command= flags all i"
    yield "    compopt +o default"
    yield "    for ((i = 1; i < COMP_CWORD; i++)); do"
    yield "        case ${COMP_WORDS[i]} in"
    yield "            -- | --exec) compopt -o default; COMPREPLY=(); return ;;"
    yield f"            {' | '.join(names.split())}) [[ $command ]] || command=${{COMP_WORDS[i]}} ;;"
    yield "        esac"
    yield "    done"
    yield "    if [[ $cur == = || $prev == = ]]; then  # --set KEY=VALUE is three words"
    yield "        local key=${COMP_WORDS[COMP_CWORD - 2]}"
    yield "        [[ $cur == = ]] && key=$prev cur="
    yield "        case $key in"
    for key, words in words_by_job_key().items():
        if words:
            yield f"            {key}) {_words(words)} ;;"
    yield "        esac"
    yield "        return"
    yield "    fi"
    yield "    case $prev in"
    yield from _values(commands)
    yield "    esac"
    yield "    case $command in"
    for command in commands:
        plain, familiar = _flag_names(command)
        yield f"        {command.name or _EMPTY})"
        yield f'            flags="{plain}"'
        yield f'            all="{familiar}"'
        yield "            ;;"
    yield "    esac"
    yield "    if [[ $cur == -* ]]; then"
    yield "        [[ $cur == - || $cur == -- ]] && all="
    yield '        COMPREPLY=($(compgen -W "$flags $all" -- "${cur//_/-}"))'
    yield "        return"
    yield "    fi"
    yield "    case $command in"
    yield f"        {_EMPTY})"
    yield f'            COMPREPLY=($(compgen -W "{names}" -- "$cur"))'
    yield f"            [[ $cur && ! ${{COMPREPLY[*]}} ]] && {_SOURCES['jobs']} ;;"
    for command in named:
        if command.operands:
            yield f"        {command.name}) {_value(command.operands[0])} ;;"
    yield "    esac"
    yield "}"
    yield "complete -F _vramtop -o default vramtop"


_EMPTY = '""'


def _values(commands: Sequence[Command]) -> Iterator[str]:
    """Yield what completes the value of each flag; a flag means the same in all commands."""
    done: set[str] = set()
    for command in commands:
        for flag in command.flags:
            names = [name for name in flag.names if name not in done]
            done.update(names)
            if names and flag.takes_value:
                stop = "[[ ${COMPREPLY[*]} ]] && return" if flag.value_optional else "return"
                value = _value(flag)
                yield f"        {' | '.join(names)}) {f'{value}; ' if value else ''}{stop} ;;"


def _value(flag: Flag) -> str:
    if flag.words:
        return _words(flag.words)
    return _SOURCES[flag.source].replace("{keys}", " ".join(words_by_job_key())) if flag.source else ""


def _words(words: Sequence[str]) -> str:
    return f'COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$cur"))'


def _flag_names(command: Command) -> tuple[str, str]:
    """Return the flags to offer at once, and those that are offered when their beginning is typed."""
    at_once = [flag.names[0] if flag.familiar else " ".join(flag.names[:2]) for flag in command.flags]
    further = [name for flag in command.flags for name in flag.names[1:]]
    return " ".join(at_once), " ".join(further)


# The environment variables that vramtop itself reads, in words: for the manual page and the documentation.


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


# Completion for fish.


_FISH_SOURCES: Mapping[Source, str] = {
    "models": "(vramtop __complete models 2>/dev/null)",
    "jobs": "(vramtop __complete models 2>/dev/null)",
    "pids": "(vramtop __complete pids 2>/dev/null)",
    "folders": "(__fish_complete_directories)",
    "keys": "(__vramtop_settings)",
    "commands": "(__fish_complete_subcommand)",
}


def fish_text(commands: Sequence[Command]) -> str:
    """Return the completion script for fish."""
    return "\n".join(_lines_fish(commands)) + "\n"


def _lines_fish(commands: Sequence[Command]) -> Iterator[str]:
    yield "# Completion of vramtop for fish: vramtop completion fish"
    yield "function __vramtop_settings"
    for key, words in words_by_job_key().items():
        yield f"    printf '%s\\n' {' '.join(_quoted(f'{key}={word}') for word in words or ('',))}"
    yield "end"
    yield "complete -c vramtop -f"
    for command in commands[1:]:
        text = _quoted(command.help)
        yield f"complete -c vramtop -n __fish_use_subcommand -a {command.name} -d {text}"
    yield f"complete -c vramtop -n __fish_use_subcommand -F -a {_quoted(_FISH_SOURCES['models'])}"
    flags: dict[str, list[str]] = {}
    for command in commands:
        for line in _flags(command):
            flags.setdefault(line, []).append(command.name)
        for operand in command.operands:
            files = " -F" if operand.source in ("jobs", "files") else ""
            text = " ".join(operand.words) or _FISH_SOURCES.get(operand.source, "")
            condition = f"__fish_seen_subcommand_from {command.name}"
            yield f"complete -c vramtop -n {_quoted(condition)}{files}" + (f" -a {_quoted(text)}" if text else "")
    for line, names in flags.items():
        named = [name for name in names if name]
        conditions = ["__fish_use_subcommand"] if "" in names else []
        conditions += [f"__fish_seen_subcommand_from {' '.join(named)}"] if named else []
        yield f"complete -c vramtop -n {_quoted('; or '.join(conditions))} {line}"


def _flags(command: Command) -> Iterator[str]:
    """Yield what completes each flag; a line that several commands share is written once."""
    for flag in command.flags:
        names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names]
        yield from (f"{name}{_value_fish(flag)} -d {_quoted(flag.meaning)}" for name in names)


def _value_fish(flag: Flag) -> str:
    if not flag.takes_value:
        return ""
    needed = "" if flag.value_optional else " -r"
    words = " ".join(flag.words) or _FISH_SOURCES.get(flag.source, "")
    files = " -F" if flag.source == "files" else " -f"
    return f"{needed}{files}" + (f" -a {_quoted(words)}" if words else "")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# The manual page ``vramtop.1``, in the macros of ``man``.


_OF_A_JOB = ("estimate", "fit", "wait", "preflight")
"""Commands whose flags describe a job."""
_DESCRIPTION = """\
vramtop shows the memory that NVIDIA GPUs hold, beside the memory that training jobs should hold. Without a command it \
opens the dashboard; ? there lists its keys. A word that is no command is a process to attach to, if it is a number, \
and otherwise a job for vramtop fit."""
_JOB = """\
JOB is a job file (TOML), the configuration of another tool (axolotl, LLaMA-Factory, ms-swift, torchtune, torchtitan, \
NeMo Automodel, LitGPT, Megatron-LM, TRL, TrainingArguments, accelerate, DeepSpeed), a script or notebook, a model \
(built-in name, hub id in the local cache, folder with a config.json, module:callable), or a launch line after --. \
Flags may be written with _ in place of -."""


def man_page(parser: Parser) -> str:
    """Return the page."""
    return "\n".join(_lines_man_page(parser)) + "\n"


def _lines_man_page(parser: Parser) -> Iterator[str]:
    commands = subcommands(parser)
    number = version_number()
    yield f'.TH VRAMTOP 1 "" "vramtop{f" {number}" if number else ""}" "User Commands"'
    yield ".nh"
    yield ".SH NAME"
    yield _text("vramtop - live GPU memory beside a predicted training budget")
    yield ".SH SYNOPSIS"
    for line in (parser.usage or "").splitlines():
        yield _text(line.strip())
        yield ".br"
    yield ".SH DESCRIPTION"
    yield _text(_DESCRIPTION)
    yield from _examples(parser.examples)
    yield ".SH COMMANDS"
    for name, text, _ in commands:
        yield from _entry(f"vramtop {name}", _sentence(text))
    yield ".SH FLAGS OF THE DASHBOARD"
    yield from _groups(flag_groups(parser), headings=True)
    yield from _job_commands({name: sub for name, _, sub in commands})
    for name, _, sub in commands:
        if name not in _OF_A_JOB:
            yield from _command(name, sub)
    yield ".SH EXIT STATUS"
    for code, text in OF_EVERY_COMMAND.items():
        yield from _entry(code, text)
    yield ".SH ENVIRONMENT"
    for names, text in ENVIRONMENT.items():
        yield from _entry(names, text)


def _job_commands(commands: dict[str, CommandParser]) -> Iterator[str]:
    """Yield the commands that take a job: their flags once, and those that only some of them have."""
    yield ".SH ESTIMATE, FIT, WAIT, PREFLIGHT"
    yield _text(_JOB)
    yield from _groups(flag_groups(commands["fit"]), headings=True)
    known = set(commands["fit"]._option_string_actions)
    for name in _OF_A_JOB:
        yield f".SS vramtop {name}"
        sub = commands[name]
        for group in flag_groups(sub):
            own = tuple(flag for flag in group.flags if known.isdisjoint(flag.names))
            yield from _groups([FlagGroup("", own)], headings=False)
        yield from _examples(sub.examples)
        yield from _closing(sub)


def _command(name: str, sub: CommandParser) -> Iterator[str]:
    yield f".SH VRAMTOP {name.upper()}"
    yield _text((sub.usage or f"vramtop {name} [FLAG ...]").splitlines()[0])
    yield ".PP"
    yield _text(sub.description or "")
    yield from _examples(sub.examples)
    own = [group for group in flag_groups(sub) if group.heading != EVERY_COMMAND]  # those are with the dashboard's
    yield from _groups(own, headings=False)
    yield from _closing(sub)


def _closing(sub: CommandParser) -> Iterator[str]:
    for text in (" ".join((sub.epilog or "").split()), exit_codes_sentence(sub.command)):
        if text:
            yield ".PP"
            yield _text(text)


def _groups(groups: Sequence[FlagGroup], *, headings: bool) -> Iterator[str]:
    for group in groups:
        if headings:
            yield f'.SS "{_escaped(group.heading)}"'
            if group.text:
                yield _text(group.text)
        for flag in group.flags:
            value = f" {flag.placeholder}" if flag.placeholder else ""
            yield from _entry(f"{', '.join(flag.names)}{value}", flag.text(all_choices=True))


def _entry(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f'.B "{_escaped(term)}"'
    yield _text(text)


def _examples(examples: str) -> Iterator[str]:
    if examples:
        yield ".PP"
        yield ".nf"
        yield from (_text(line) for line in examples.rstrip("\n").splitlines())
        yield ".fi"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _text(line: str) -> str:
    """Return a line that is no request: those begin with a dot or an apostrophe."""
    escaped = _escaped(line)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _escaped(text: str) -> str:
    return re.sub(r"-", r"\\-", text.replace("\\", "\\e").replace('"', "\\(dq"))


# Completion for zsh, by its function ``_arguments``.


_ZSH_SOURCES: Mapping[Source, str] = {
    "models": "_vramtop_models",
    "jobs": "_vramtop_jobs",
    "pids": "_vramtop_pids",
    "files": "_files",
    "folders": "_files -/",
    "keys": "_vramtop_settings",
    "commands": "_normal",
}
_HELPERS = """\
_vramtop_models() {
    local -a found
    found=(${(f)"$(vramtop __complete models 2>/dev/null)"})
    compadd -a found
}
_vramtop_jobs() {
    _alternative 'models:model:_vramtop_models' 'files:job file:_files'
}
_vramtop_pids() {
    local -a found
    found=(${${(f)"$(vramtop __complete pids 2>/dev/null)"}/$'\\t'/:})
    _describe process found
}"""


def zsh_text(commands: Sequence[Command]) -> str:
    """Return the script, for a file ``_vramtop`` in a folder of ``fpath``."""
    return "\n".join(_lines_zsh(commands)) + "\n"


def _lines_zsh(commands: Sequence[Command]) -> Iterator[str]:
    yield "#compdef vramtop"
    yield "# Completion of vramtop for zsh: vramtop completion zsh"
    yield _HELPERS
    yield "_vramtop_settings() {"
    yield "    if compset -P '*='; then"
    yield "        case ${IPREFIX%=} in"
    for key, words in words_by_job_key().items():
        if words:
            yield f"            *{key}) compadd {' '.join(words)} ;;"
    yield "        esac"
    yield "    else"
    yield f"        compadd -S= {' '.join(words_by_job_key())}"
    yield "    fi"
    yield "}"
    shared = _shared_specs(commands)
    yield "_vramtop_job_flags=("
    yield from (f"    {spec}" for spec in shared)
    yield ")"
    for command in commands:
        if command.name:
            yield from _function(command, shared)
    yield from _main(commands)
    yield '_vramtop "$@"'


def _main(commands: Sequence[Command]) -> Iterator[str]:
    itself = commands[0]
    yield "_vramtop() {"
    yield "    local curcontext=$curcontext state line"
    yield "    local -a commands"
    yield "    commands=("
    for command in commands[1:]:
        yield f"        {_quoted_zsh(f'{command.name}:{_plain(command.help)}')}"
    yield "    )"
    yield "    _arguments -C \\"
    yield from (f"        {spec} \\" for spec in _specs(itself))
    yield "        '1: :->command' '*:: :->rest'"
    yield "    case $state in"
    yield "        command) _describe -t commands command commands; _vramtop_jobs ;;"
    yield "        rest)"
    yield "            case $line[1] in"
    for command in commands[1:]:
        yield f"                {command.name}) _vramtop_{command.name} ;;"
    yield "                *) _vramtop_fit ;;"
    yield "            esac ;;"
    yield "    esac"
    yield "}"


def _shared_specs(commands: Sequence[Command]) -> list[str]:
    """Return the flags that all commands with a job have."""
    of_a_job = [list(_specs(command)) for command in commands if [each.source for each in command.operands] == ["jobs"]]
    return [spec for spec in of_a_job[0] if all(spec in others for others in of_a_job)]


def _function(command: Command, shared: Sequence[str]) -> Iterator[str]:
    specs = list(_specs(command))
    yield f"_vramtop_{command.name}() {{"
    yield "    _arguments \\"
    if set(shared) <= set(specs):
        yield '        "$_vramtop_job_flags[@]" \\'
        specs = [spec for spec in specs if spec not in shared]
    yield from (f"        {spec} \\" for spec in specs)
    for operand in command.operands:
        yield f"        {_quoted_zsh(f'1:{_plain(operand.meaning)}:{_action(operand)}')} \\"
    yield "        '*:: :_normal'"
    yield "}"


def _specs(command: Command) -> Iterator[str]:
    for flag in command.flags:
        for name in flag.names:
            needs_value = flag.takes_value and not flag.value_optional
            value = f":value:{_action(flag)}" if needs_value else ""
            equals = "=" if needs_value and name.startswith("--") else ""
            yield _quoted_zsh(f"{name}{equals}[{_plain(flag.meaning)}]{value}")


def _action(flag: Flag) -> str:
    if flag.words:
        return f"({' '.join(flag.words)})"
    return _ZSH_SOURCES.get(flag.source, " ") if flag.source else " "


def _plain(text: str) -> str:
    """Return a text without the characters that mean something to ``_arguments``."""
    return text.replace("[", "(").replace("]", ")").replace(":", ";").replace("\\", "")


def _quoted_zsh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
