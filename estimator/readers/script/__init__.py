"""A training script's source: followed without being run, and read for what decides its memory.

Lives here: what is trained and held, the settings that the script states, and what it leaves open.
Callers: the entry point for launch lines.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .command_line import MEMORY_ARGUMENTS as MEMORY_ARGUMENTS, options_of_class as options_of_class
    from .models import SIZE_ARGUMENTS as SIZE_ARGUMENTS
    from .script_settings import ScriptSettings as ScriptSettings, read_script as read_script
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "command_line": "MEMORY_ARGUMENTS options_of_class",
            "models": "SIZE_ARGUMENTS",
            "script_settings": "read_script ScriptSettings",
        },
    )
