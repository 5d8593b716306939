"""The page of the command line: commands with their flags, and exit codes."""

from collections.abc import Iterator, Mapping, Sequence

from vramtop.tui.cli.main import build_parser
from vramtop.tui.cli.parsing.exit_codes import exit_codes_of
from vramtop.tui.cli.parsing.help_text import FlagFacts, FlagGroup, flag_groups, positionals
from vramtop.tui.cli.parsing.parser import CommandParser, subcommands
from vramtop.tui.cli.parsing.shared_arguments import EVERY_COMMAND, JOB_USAGE

from .markdown import bullets, code, codes, page, prose, sentence

_COMMON = "common settings"
_INTRODUCTION = """\
`vramtop` without a command opens the dashboard. A first word that is no command is a process to attach to, if it is a
number, and otherwise a job for `vramtop fit`. `vramtop COMMAND --help` prints examples, `--help-all` and `man vramtop`
all flags with all their names. Flags of the dashboard mean the same in commands that have them."""
_JOB = """\
`fit`, `estimate`, `program`, `wait`, `preflight` and `measure` take a
[job](../how-to/before-launch.md#ask-on-the-command-line): a model, a script, a file, or a launch line after `--`, which
may be left out before `python`, `torchrun` and other launchers. Flags set every key of a [job file](job-file.md); these
are the most usual."""

OF_EVERY_COMMAND: Mapping[str, str] = {
    "0": "The job fits; no check fails; done.",
    "1": "The job does not fit; a check fails; it ran out of memory.",
    "2": "Wrong input or usage.",
    "3": "Unknown: no driver, no GPU, or an unknown setting; or the output cannot be written.",
    "4": "Tight: the expected peak fits, the upper bound does not.",
    "70": "Internal error.",
    "128 + n": "Ended by signal n.",
    "141": "The reader closed the output.",
}
"""What the exit codes of all commands mean."""


def commands_page() -> str:
    """Return the page of the commands."""
    parser = build_parser()
    commands = {name: sub for name, _, sub in subcommands(parser)}
    shared = _shared_flags(commands)
    about = {name: prose(sentence(text)) for name, text, _ in subcommands(parser)}
    dashboard = [group for group in flag_groups(parser) if group.heading != EVERY_COMMAND]
    every = [flag for group in flag_groups(parser) if group.heading == EVERY_COMMAND for flag in group.flags]
    common = [flag for group in flag_groups(commands["fit"]) if group.heading == _COMMON for flag in group.flags]
    told = {_key(flag) for group in dashboard for flag in group.flags}
    rest: dict[str, list[str]] = {}
    for key, (flag, names) in shared.items():
        if key not in told:
            rest.setdefault(codes(names), []).append(_line(flag))
    return page(
        "Commands",
        _INTRODUCTION,
        "## The dashboard",
        *(part for group in dashboard for part in _group(group)),
        "## Flags of every command",
        _flags(every),
        "## Exit codes",
        "A sentence on standard error says what is wrong, with `--json` too. `run` and `wait --exec` end with the exit "
        "code of the command that they start.",
        bullets(f"{code(number)}: {text}" for number, text in OF_EVERY_COMMAND.items()),
        "## A job on the command line",
        _JOB,
        _flags(common),
        "## Flags of several commands",
        *(part for names, flags in rest.items() for part in (f"{names}:", bullets(flags))),
        *(part for name, sub in commands.items() for part in _command(name, about[name], sub, told | shared.keys())),
    )


def _own_codes(name: str) -> str:
    """Return what a command says by the codes of verdicts; the others mean the same everywhere."""
    alike = [text.rstrip(".").lower() for text in OF_EVERY_COMMAND.values()]
    told = {int(number): text for number, text in exit_codes_of(name).items() if number in (1, 3, 4)}
    told = {number: text for number, text in told.items() if not any(text.lower() in other for other in alike)}
    return "; ".join(f"{code(number)}: {prose(text)}" for number, text in told.items())


def _command(name: str, about: str, sub: CommandParser, told: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the section of a command: its arguments and its own flags."""
    yield from (f"## vramtop {name}", about)
    if sub.usage and sub.usage != JOB_USAGE.format(name):
        yield code(sub.usage)
    operands = [each for each in positionals(sub) if each.placeholder != "JOB"]
    own = [flag for group in flag_groups(sub) if group.heading != EVERY_COMMAND for flag in group.flags]
    own = [flag for flag in own if _key(flag) not in told and not _is_left_out(flag)]
    lines = [f"{code(each.placeholder)}: {prose(each.meaning)}" for each in operands] + [_line(flag) for flag in own]
    if codes_told := _own_codes(name):
        lines.append(f"Exit code {codes_told}.")
    if lines:
        yield bullets(lines)


def _shared_flags(commands: Mapping[str, CommandParser]) -> dict[tuple[str, str], tuple[FlagFacts, list[str]]]:
    """Return the flags that several commands have, with these commands; without those that set a key of a job."""
    found: dict[tuple[str, str], tuple[FlagFacts, list[str]]] = {}
    for name, parser in commands.items():
        for flag in (flag for group in flag_groups(parser) if group.heading != EVERY_COMMAND for flag in group.flags):
            if not _is_left_out(flag):
                found.setdefault(_key(flag), (flag, []))[1].append(name)
    return {key: shared for key, shared in found.items() if len(shared[1]) > 1}


def _is_left_out(flag: FlagFacts) -> bool:
    """Say whether a flag is on the job file's page, another tool's name of such a flag, or help itself."""
    of_job = (getattr(flag.action, name, None) is not None for name in ("key", "familiar"))
    return any(of_job) or "help" in flag.names[-1]


def _key(flag: FlagFacts) -> tuple[str, str]:
    return flag.names[-1], flag.text()


def _group(group: FlagGroup) -> Iterator[str]:
    yield f"### {sentence(group.heading).removesuffix('.')}"
    if group.text:
        yield prose(group.text)
    yield _flags([flag for flag in group.flags if not _is_left_out(flag)])


def _flags(flags: Sequence[FlagFacts]) -> str:
    return bullets(map(_line, flags))


def _line(flag: FlagFacts) -> str:
    value = f" {flag.placeholder}" if flag.placeholder else ""
    first, *others = flag.names
    # Other tools' names of a flag are in --help-all.
    shown = [first, *(name for name in others if name.startswith("--no-") or not first.startswith("--"))]
    *others, last = shown[:2]
    names = codes([*others, f"{last}{value}"])
    return f"{names}: {prose(flag.text(all_choices=True))}"
