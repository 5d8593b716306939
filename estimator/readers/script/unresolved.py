"""Settings of a script that only the running script knows, without which the estimate may be of another job."""

from collections.abc import Mapping

from ..arguments.table import library
from ..source.settings import UNKNOWN_TABLE, Setting
from .configs import LENGTH_ARGUMENTS
from .named_settings import SIZES
from .notes import Notes
from .options import MEMORY_ARGUMENTS
from .training import SIZE_ARGUMENTS
from .values import UNKNOWN

_DECISIVE = {
    *(*library("transformers").key, *MEMORY_ARGUMENTS, *LENGTH_ARGUMENTS, UNKNOWN_TABLE),
    *(each for names in SIZES.values() for each in names),
}
"""Options and arguments without whose values the estimate may be about another job."""
_HAVE_DEFAULTS = {*library("transformers").key} - {*SIZE_ARGUMENTS, *LENGTH_ARGUMENTS}


def take_unresolved(notes: Notes, calls: Mapping[str, Setting]) -> dict[str, str]:
    """Take the settings out of the notes that are not known; return a sentence for each that matters.

    Args:
        notes: the findings, with the defaults of the script's options among the hints.
        calls: the hints without these: an option's default is no more than a hint.
    """
    found: dict[str, str] = {}
    for layer in (calls, notes.hints, notes.assigned, notes.written):
        unknown = {name: setting.origin for name, setting in layer.items() if setting.value is UNKNOWN}
        found |= {name: sentence for name, sentence in unknown.items() if name in _DECISIVE}
    notes.hints, notes.assigned, notes.written = map(_known, (notes.hints, notes.assigned, notes.written))
    for name in sorted(found.keys() & _HAVE_DEFAULTS):
        found[name] = f"{found[name].removesuffix('.')}; its default is counted."
    return {name: sentence for name, sentence in found.items() if name not in notes.written}


def _known(layer: Mapping[str, Setting]) -> dict[str, Setting]:
    return {name: setting for name, setting in layer.items() if setting.value is not UNKNOWN}
