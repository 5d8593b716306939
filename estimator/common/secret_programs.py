"""Arguments that are secrets because of the program they are given to: ``mysql -pSECRET``, ``redis-cli -a SECRET``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .secret_names import MASK, compiled

_How = Literal["attached", "next", "either"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Secret:
    """A secret among a program's arguments."""

    programs: str
    """A pattern of the programs' names."""
    option: str
    how: _How
    """The option's value is attached to it (``-pX``), the next argument (``-p X``), or may be either."""
    after: str = ""
    """A word that must stand before it: ``docker login``."""
    leading: bool = False
    """It stands before the first word that is no option: another program's command line follows."""
    after_colon: bool = False
    """Only what follows the first colon is secret: ``user:password``."""


_SECRETS = (
    _Secret(
        programs=r"(?:mysql|mariadb)[\w\-]*", option="-p", how="attached"
    ),  # the word after a lone -p is no password
    _Secret(programs=r"redis-(?:cli|benchmark)|valkey-(?:cli|benchmark)", option="-a", how="next"),
    _Secret(programs=r"(?:redis|valkey)-server", option="--requirepass", how="next"),
    _Secret(programs=r"(?:redis|valkey)-server", option="--masterauth", how="next"),
    _Secret(programs="curl", option="-u", how="either", after_colon=True),
    _Secret(programs="curl", option="-U", how="either", after_colon=True),
    _Secret(programs="sshpass", option="-p", how="either", leading=True),
    _Secret(programs=r"mongo(?:sh|dump|restore|export|import|stat|top)?", option="-p", how="either"),
    _Secret(programs=r"docker|podman|nerdctl|helm|oras|skopeo", option="-p", how="either", after="login"),
    _Secret(programs=r"ldap(?:search|modify|add|delete|passwd|whoami)", option="-w", how="either"),
    _Secret(programs="sqlcmd|bcp", option="-P", how="either"),
)
PROGRAM_HINTS = (
    *("mysql", "mariadb", "redis-", "valkey-", "curl", "sshpass", "mongo", " login", "ldap", "sqlcmd", "bcp"),
    "aws configure set",
)
"""Every line to which this applies holds one of these, in lower case."""
_WORD = r"(?:\"[^\"]*\"|'[^']*'|\S)+"
_AWS_NAME = r"(?:[\w\-.]+\.)?aws_(?:secret_access_key|session_token|access_key_id)"
_ENDS_A_COMMAND = ("|", "||", "&", "&&", ";", "then", "do")
_QUOTES = "\"'`()"


def mask_of_programs(words: Sequence[str]) -> list[str]:
    """Return words of a command line, with the secrets masked that their programs make secrets."""
    masked: list[str] = []
    active: list[_Secret] = []
    before: list[str] = []
    seen: set[str] = set()
    only_options = True
    awaited: _Secret | None = None
    for word in words:
        plain = word.strip(_QUOTES)
        if awaited is not None and not (plain.startswith("-") and len(plain) > 1 and awaited.how == "either"):
            masked.append(_masked(word, awaited))
            awaited = None
            continue
        awaited = None
        found = word
        if before[-3:-1] == ["configure", "set"] and compiled(_AWS_NAME).fullmatch(before[-1]):
            found = word.replace(plain, MASK) if plain else word
        elif any(character.isspace() for character in word):
            found = mask_programs_in_line(word)
        elif plain in _ENDS_A_COMMAND:
            active = []
        elif named := [each for each in _SECRETS if compiled(each.programs).fullmatch(plain.rpartition("/")[2])]:
            active, seen, only_options = named, set(), True
            masked.append(word)
            continue
        for each in active:
            if (each.after and each.after not in seen) or (each.leading and not only_options):
                continue
            if word == each.option and each.how != "attached":
                awaited = each
            elif len(word) > len(each.option) and word.startswith(each.option) and each.how != "next":
                found = each.option + _masked(word[len(each.option) :], each)
        before = [*before[-2:], plain]
        seen.add(plain)
        only_options &= word.startswith("-")
        masked.append(found)
        if word.endswith(";"):
            active = []
    return masked


def mask_programs_in_line(line: str) -> str:
    """Return a line with the secrets masked that their programs make secrets."""
    inner = line[1:-1] if len(line) > 1 and line[0] == line[-1] and line[0] in "\"'" else line
    found = list(compiled(_WORD).finditer(inner))
    words = [each[0] for each in found]
    if len(words) < 2:
        return line
    parts: list[str] = []
    at = 0
    for match, masked in zip(found, mask_of_programs(words), strict=True):
        parts += [inner[at : match.start()], masked]
        at = match.end()
    text = "".join([*parts, inner[at:]])
    return line if text == inner else line[0] + text + line[-1] if inner is not line else text


def _masked(value: str, secret: _Secret) -> str:
    """Return a value masked, within its quotes."""
    found = re.fullmatch(r"(?s)([\"']?)(.*?)([\"'`);]*)", value)
    opening, inner, closing = found.groups() if found else ("", value, "")
    if secret.after_colon:
        user, colon, password = inner.partition(":")
        return f"{opening}{user}:{MASK}{closing}" if colon and password else value
    return f"{opening}{MASK}{closing}" if inner and not inner.startswith("$") else value
