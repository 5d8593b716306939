"""Lists of hosts: names as ssh takes them, and Slurm's lists such as ``node[01-16,20]``."""

import re
from collections.abc import Iterator
from itertools import product

from vramtop.estimator.common.errors import InputError

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
