"""Settings of a script by what they come from, and those of them without which the estimate may be of another job."""

import msgspec

from ..arguments.table import library
from ..source.settings import UNKNOWN_TABLE, Setting
from .configs import LENGTH_ARGUMENTS
from .named_settings import SIZES
from .options import MEMORY_ARGUMENTS
from .training import SIZE_ARGUMENTS
from .values import UNKNOWN

DECISIVE = {
    *(*library("transformers").key, *MEMORY_ARGUMENTS, *LENGTH_ARGUMENTS),
    *(each for names in SIZES.values() for each in names),
}
"""Options and arguments without whose values the estimate may be about another job."""
_HAVE_DEFAULTS = {*library("transformers").key} - {*SIZE_ARGUMENTS, *LENGTH_ARGUMENTS}


class Layers(msgspec.Struct):
    """Settings of a script that grow while they are read; ``ScriptSettings`` says which they are."""

    written: dict[str, Setting]
    hints: dict[str, Setting]
    assigned: dict[str, Setting]

    def split(self, hints: dict[str, Setting]) -> dict[str, str]:
        """Take the settings out that only the running script knows; return a sentence for each that matters."""
        found: dict[str, str] = {}
        for layer in (hints, self.hints, self.assigned, self.written):  # an option's default is no more than a hint
            unknown = {name: setting.origin for name, setting in layer.items() if setting.value is UNKNOWN}
            for name in unknown:
                del layer[name]
            found |= {name: sentence for name, sentence in unknown.items() if name in (*DECISIVE, UNKNOWN_TABLE)}
        for name in sorted(found.keys() & _HAVE_DEFAULTS):
            found[name] = f"{found[name].removesuffix('.')}; its default is counted."
        return {name: sentence for name, sentence in found.items() if name not in self.written}
