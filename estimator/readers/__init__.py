"""Readers: turn launch lines, training scripts and tools' configuration files into a Job with evidence.

Lives here: reading only; nothing that is read is imported or run.
Callers: ``monitor.attach``, preflight, ``advice``, and the command line (``config_file``, ``launch_line``).
"""

from typing import TYPE_CHECKING

from ..common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .config_file import read_config_file as read_config_file, tool_of_file as tool_of_file
    from .launch_line import read_launch as read_launch, tool_of_line as tool_of_line
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "config_file": "read_config_file tool_of_file",
            "launch_line": "read_launch tool_of_line",
        },
    )
