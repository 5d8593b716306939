"""Tells from a finding's origin where the user wrote the setting: a flag on the command line, or a key of a file."""

import re

from .evidence import Finding

COMMAND_LINE = "command line"
"""Place of flags; files are places by their names."""
_FLAG = re.compile(r"^(?P<setting>--?[\w.-]+|[\w.-]+=) on the command line$")
"""Origin that ``parse_flags`` and the overrides of the tools give a flag."""
_KEY = re.compile(r"^(?P<place>[^:\s]+\.(?:ya?ml|json|toml)): (?P<setting>[\w.-]+)$")
"""Origin that ``layer_from_table`` gives a key of a file."""
_BOUND = ", the longest a batch can be"


def origin_of_bound(origin: str) -> str:
    """Return the origin of a length that batches may stay below."""
    return f"{origin}{_BOUND}"


def written_place(finding: Finding) -> tuple[str, str] | None:
    """Return the place and the name of the setting that the user wrote; None if its value is not written by itself."""
    if not finding.written:
        return None
    origin = finding.origin.removesuffix(_BOUND)
    if match := _FLAG.match(origin):
        return COMMAND_LINE, match["setting"]
    if match := _KEY.match(origin):
        return match["place"], match["setting"]
    return None
