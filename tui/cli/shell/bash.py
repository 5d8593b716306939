"""Completion for bash; it needs nothing of the package bash-completion."""

from collections.abc import Iterator, Mapping, Sequence

from .words import Command, Flag, Source, words_by_job_key

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
