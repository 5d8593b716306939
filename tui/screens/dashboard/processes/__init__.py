"""The dashboard's process table, and ending processes.

Lives here: the table's rows as plain data, the table, and the question before a signal is sent.
Callers: the dashboard.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .columns import columns_named as columns_named
    from .keys import PROCESS_KEYS as PROCESS_KEYS
    from .process_screen import ProcessScreen as ProcessScreen
    from .process_table import ProcessTable as ProcessTable
    from .table_views import view_named as view_named
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "columns": "columns_named",
            "keys": "PROCESS_KEYS",
            "process_screen": "ProcessScreen",
            "process_table": "ProcessTable",
            "table_views": "view_named",
        },
    )
