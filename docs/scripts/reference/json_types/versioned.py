"""The field that the JSON of every command has: the version of its format."""

from typing import Literal, TypedDict


class Versioned(TypedDict):
    """A form of JSON with the version of its format."""

    schema: Literal[1]
    """Version of this format; a later one only if a field changes its meaning."""
