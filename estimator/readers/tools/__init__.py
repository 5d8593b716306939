"""Tools: one module per training tool, each turning that tool's flags and files into a Job.

Lives here: each module exports a ``TOOL``, which ``tool_registry`` finds by itself; a new tool is one new module here.
Callers: the two entry points of ``readers``, ``advice`` for the tools' own key names, ``monitor`` for launch lines.
"""

from typing import TYPE_CHECKING

from ...common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .tool_registry import (
        all_tools as all_tools,
        find_program_index as find_program_index,
        find_tool_by_config as find_tool_by_config,
        find_tool_by_launch as find_tool_by_launch,
        keys_of_tool as keys_of_tool,
        parse_launch as parse_launch,
        split_launch_line as split_launch_line,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "tool_registry": (
                "all_tools find_program_index find_tool_by_config find_tool_by_launch keys_of_tool parse_launch "
                "split_launch_line"
            ),
        },
    )
