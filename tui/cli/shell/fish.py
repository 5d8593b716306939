"""Completion for fish."""

from collections.abc import Iterator, Mapping, Sequence

from .words import Command, Flag, Source, words_by_job_key

_SOURCES: Mapping[Source, str] = {
    "models": "(vramtop __complete models 2>/dev/null)",
    "jobs": "(vramtop __complete models 2>/dev/null)",
    "pids": "(vramtop __complete pids 2>/dev/null)",
    "folders": "(__fish_complete_directories)",
    "keys": "(__vramtop_settings)",
    "commands": "(__fish_complete_subcommand)",
}


def fish_text(commands: Sequence[Command]) -> str:
    """Return the completion script for fish."""
    return "\n".join(_lines(commands)) + "\n"


def _lines(commands: Sequence[Command]) -> Iterator[str]:
    yield "# Completion of vramtop for fish: vramtop completion fish"
    yield "function __vramtop_settings"
    for key, words in words_by_job_key().items():
        yield f"    printf '%s\\n' {' '.join(_quoted(f'{key}={word}') for word in words or ('',))}"
    yield "end"
    yield "complete -c vramtop -f"
    for command in commands[1:]:
        text = _quoted(command.help)
        yield f"complete -c vramtop -n __fish_use_subcommand -a {command.name} -d {text}"
    yield f"complete -c vramtop -n __fish_use_subcommand -F -a {_quoted(_SOURCES['models'])}"
    flags: dict[str, list[str]] = {}
    for command in commands:
        for line in _flags(command):
            flags.setdefault(line, []).append(command.name)
        for operand in command.operands:
            files = " -F" if operand.source in ("jobs", "files") else ""
            text = " ".join(operand.words) or _SOURCES.get(operand.source, "")
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
        yield from (f"{name}{_value(flag)} -d {_quoted(flag.meaning)}" for name in names)


def _value(flag: Flag) -> str:
    if not flag.takes_value:
        return ""
    needed = "" if flag.value_optional else " -r"
    words = " ".join(flag.words) or _SOURCES.get(flag.source, "")
    files = " -F" if flag.source == "files" else " -f"
    return f"{needed}{files}" + (f" -a {_quoted(words)}" if words else "")


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
