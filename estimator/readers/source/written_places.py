"""Finds where the user wrote a setting, by its origin: a flag, a key of a file, or an argument in a script."""

import re

from .evidence import Finding

COMMAND_LINE = "command line"
"""Place of flags; files are places by their names."""
_FLAG = re.compile(r"^(?P<setting>--?[\w.-]+|[\w.-]+=) on the command line(?: \(\S+ line \d+: .*)?$")
"""Origin that ``parse_flags`` and the overrides of the tools give a flag; a script says where it uses it."""
_DEFAULT = re.compile(r"^\S+ line \d+: default of (?P<setting>--[\w-]+)\b")
"""Origin of a script's option that is not on the command line."""
_ARGUMENT = re.compile(r"^(?P<place>\S+ line \d+): [\w.]+\((?P<setting>\w+=)")
"""Origin of an argument of a call in a script."""
_KEY = re.compile(r"^(?P<place>[^:\s]+\.(?:ya?ml|json|toml)): (?P<setting>[\w.-]+)$")
"""Origin that ``layer_from_table`` gives a key of a file."""
_MAKES_ARGUMENTS = re.compile(
    r"(?:^|\()(?P<place>\S+ line \d+): [\w.]*(?:TrainingArguments|(?!Lora|Peft|BitsAnd|Model)[A-Z]\w*Config)\("
)
"""Origin of a training argument: of one in the call that makes them, or of an option that sets one."""
_BOUND = ", the longest a batch can be"


def origin_of_bound(origin: str) -> str:
    """Return the origin of a length that batches may stay below."""
    return f"{origin}{_BOUND}"


def written_place(finding: Finding) -> tuple[str, str] | None:
    """Return the place and the name of the setting that the user wrote; None if its value is not written by itself."""
    if not finding.written:
        return None
    origin = finding.origin.removesuffix(_BOUND)
    if match := _FLAG.match(origin) or _DEFAULT.match(origin):
        return COMMAND_LINE, match["setting"]
    match = _KEY.match(origin) or _ARGUMENT.match(origin)
    return None if match is None else (match["place"], match["setting"])


def place_of_arguments(finding: Finding) -> str | None:
    """Return the line of a script's call that makes a trainer's arguments, where the setting is one of them."""
    match = _MAKES_ARGUMENTS.search(finding.origin) if finding.written else None
    return match and match["place"]


def is_in_script(place: str | None) -> bool:
    """Return True if a place is a line of a script: settings are arguments of a call there."""
    return place is not None and " line " in place
