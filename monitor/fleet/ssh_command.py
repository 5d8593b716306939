"""Command line of ssh that runs ``vramtop stream`` on a host, what its failures mean, and lists of hosts.

ssh reads the user's own configuration: names, keys, agent, jump hosts and shared connections (ssh_config(5)).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from itertools import product

import msgspec

from vramtop.estimator.common.errors import InputError
from vramtop.estimator.common.trust import find_program, why_not_found

from ..host.plain_text import sanitize_line

SSH_VARIABLE = "VRAMTOP_SSH"
"""Environment variable with another command instead of ``ssh``, as words of a shell: ``ssh -F FILE``."""
_OPTIONS = (
    *("-T", "-a", "-x"),  # no terminal, no forwarding of agent and display to where only figures come from
    *("-o", "BatchMode=yes"),  # never ask: a prompt would be written over the screen
    *("-o", "ClearAllForwardings=yes", "-o", "LogLevel=ERROR"),
    *("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
_PATHS = "PATH=$PATH:$HOME/.local/bin:$HOME/.cargo/bin; export PATH"
"""A shell that is no login shell has not read where pip, pipx and uv install programs."""
_NOT_FOUND = 127
_SSH_FAILED = 255


class SshCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How to run ``vramtop stream`` on hosts.

    Args:
        interval: seconds between readings.
        attaches: attach to training processes there.
        program: command in place of ssh; None: that of the environment.
    """

    interval: float
    attaches: bool = True
    program: str | None = None

    def arguments(self, host: str) -> list[str]:
        """Return the command line for a host.

        Raises:
            InputError: the environment's command for ssh cannot be understood, or there is no ssh that may be started.
        """
        attach = [] if self.attaches else ["--no-attach"]
        script = f"{_PATHS}; exec {shlex.join(['vramtop', 'stream', '--interval', f'{self.interval:g}', *attach])}"
        return [*_ssh_words(self.program), *_OPTIONS, "--", host, shlex.join(["sh", "-c", script])]

    def failure(self, code: int, errors: str) -> str:
        """Return in one sentence why the command ended.

        Args:
            code: its exit code; negative: the signal that ended it.
            errors: the end of what it wrote to standard error.
        """
        lines = [line for each in errors.splitlines() if (line := sanitize_line(each))]
        last = lines[-1] if lines else ""
        if "Permission denied" in last:
            return f"{last}: vramtop asks for no password; use a key, an agent or a shared connection of ssh"
        if "Host key verification failed" in errors:
            return "its host key is unknown or has changed: run ssh once by hand to check"
        if code == _NOT_FOUND:
            return "vramtop is not installed there, or not in PATH, ~/.local/bin and ~/.cargo/bin"
        if "vramtop" in errors and ("stream" in errors and ("invalid choice" in errors or "no such" in errors)):
            return "vramtop there is too old to have the command stream; update it there"
        if code == _SSH_FAILED:
            return last or "ssh could not connect and gave no reason"
        if code == 0:
            return "the connection was closed"
        return f"vramtop there ended with exit code {code}{f': {last}' if last else ''}"


def _ssh_words(program: str | None) -> list[str]:
    try:
        words = shlex.split(os.environ.get(SSH_VARIABLE, "ssh") if program is None else program)
    except ValueError as error:
        raise InputError(f"{SSH_VARIABLE}, or hosts.ssh of your settings, is not a command line: {error}") from None
    name, *options = words or ["ssh"]
    found = find_program(name, os.environ.get("PATH"))
    if found is None:
        raise InputError(
            f"{why_not_found(name, os.environ.get('PATH'))}; install OpenSSH, or name the program in {SSH_VARIABLE}"
        )
    return [str(found), *options]


MAX_HOSTS = 256
"""Each is an ssh process; of more, Prometheus is asked."""
_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")


def parse_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, each once, in order.

    Args:
        text: ``user@a,node[01-16,20]``.

    Raises:
        InputError: one of them is no host name, or there are too many.
    """
    hosts: dict[str, None] = {}
    for part in _COMMA_OUTSIDE_BRACKETS.split(text):
        for host in _expanded(part.strip()):
            hosts[host] = None
            if len(hosts) > MAX_HOSTS:
                raise InputError(f"{text[:80]}: more than {MAX_HOSTS} hosts; use vramtop --prometheus URL for as many")
    return tuple(hosts)


_HOST = re.compile(r"(?:[A-Za-z0-9_.][\w.+-]*@)?[A-Za-z0-9_.:][\w.:%-]*", re.ASCII)
"""User and host. Neither begins with ``-``: ssh would take it for an option."""
_BRACKETS = re.compile(r"\[([^\]]*)\]")


def _expanded(part: str) -> Iterator[str]:
    """Yield the hosts of ``rack[1-2]node[01-04]``."""
    pieces = _BRACKETS.split(part)  # text, brackets, text, brackets, text
    choices = [[piece] if at % 2 == 0 else _numbers(piece, part) for at, piece in enumerate(pieces)]
    for names in product(*choices):
        host = "".join(names)
        if not _HOST.fullmatch(host):
            example = "names such as node01, ann@node01 or node[01-16,20]"
            raise InputError(f"{part[:80]!r} is not a host: give {example}")
        yield host


_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def _numbers(text: str, part: str) -> list[str]:
    """Return the numbers of ``01-16,20``, with the leading zeros of the first of each range."""
    numbers: list[str] = []
    for each in text.split(","):
        found = _RANGE.fullmatch(each.strip())
        if found is None:
            raise InputError(
                f"{part[:80]!r} is not a list of hosts: {each[:20]!r} is not a number or range, as in node[01-04,07]"
            )
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or int(last) - int(first) >= MAX_HOSTS:
            raise InputError(f"{part[:80]!r}: {each} is not a range of at most {MAX_HOSTS} hosts; write it like 01-16")
        width = len(first)
        numbers += [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
    return numbers
