"""Details of processes, read only while a screen shows them: figures at each reading, and all about one process.

Lives here: processor time, RAM and threads; environment, open files, parents, limits and control group; the tree.
Callers: the NVML source, the process screen, and the tree view.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .ancestry import Ancestor as Ancestor, AncestryReader as AncestryReader
    from .host_figures import HostFigures as HostFigures
    from .process_details import OpenFile as OpenFile, ProcessDetails as ProcessDetails, read_details as read_details
    from .process_limits import CgroupFacts as CgroupFacts, Limit as Limit
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "ancestry": "Ancestor AncestryReader",
            "host_figures": "HostFigures",
            "process_details": "OpenFile ProcessDetails read_details",
            "process_limits": "CgroupFacts Limit",
        },
    )
