"""The command line of a script: the options that it declares, by whichever library, and their values.

Lives here: argparse, HfArgumentParser, click, typer, fire, tyro, absl.
Callers: ``library``, and ``readers.script``.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .class_defaults import class_defaults as class_defaults
    from .class_options import MEMORY_ARGUMENTS as MEMORY_ARGUMENTS, options_of_class as options_of_class
    from .executed_files import setting_of_name as setting_of_name
    from .functions import OPTION_FUNCTIONS as OPTION_FUNCTIONS, OPTION_PATHS as OPTION_PATHS
    from .options import Options as Options
    from .parsed import Parsed as Parsed
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "executed_files": "setting_of_name",
            "class_defaults": "class_defaults",
            "class_options": "MEMORY_ARGUMENTS options_of_class",
            "functions": "OPTION_FUNCTIONS OPTION_PATHS",
            "options": "Options",
            "parsed": "Parsed",
        },
    )
