"""Completion for zsh, by its function ``_arguments``."""

from collections.abc import Iterator, Mapping, Sequence

from .words import Command, Flag, Source, words_by_job_key

_SOURCES: Mapping[Source, str] = {
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
    return "\n".join(_lines(commands)) + "\n"


def _lines(commands: Sequence[Command]) -> Iterator[str]:
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
        yield f"        {_quoted(f'{command.name}:{_plain(command.help)}')}"
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
        yield f"        {_quoted(f'1:{_plain(operand.meaning)}:{_action(operand)}')} \\"
    yield "        '*:: :_normal'"
    yield "}"


def _specs(command: Command) -> Iterator[str]:
    for flag in command.flags:
        for name in flag.names:
            needs_value = flag.takes_value and not flag.value_optional
            value = f":value:{_action(flag)}" if needs_value else ""
            equals = "=" if needs_value and name.startswith("--") else ""
            yield _quoted(f"{name}{equals}[{_plain(flag.meaning)}]{value}")


def _action(flag: Flag) -> str:
    if flag.words:
        return f"({' '.join(flag.words)})"
    return _SOURCES.get(flag.source, " ") if flag.source else " "


def _plain(text: str) -> str:
    """Return a text without the characters that mean something to ``_arguments``."""
    return text.replace("[", "(").replace("]", ")").replace(":", ";").replace("\\", "")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
