"""The process table, and what screens with it do with processes.

Lives here: the table's rows as plain data, the table, and the base class of screens that show it.
Callers: the dashboard, and the GPU screen.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .columns import columns_named as columns_named
    from .keys import PROCESS_KEYS as PROCESS_KEYS
    from .process_table import ProcessTable as ProcessTable
    from .process_table_screen import ProcessTableScreen as ProcessTableScreen
    from .table_views import view_named as view_named
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "columns": "columns_named",
            "keys": "PROCESS_KEYS",
            "process_table_screen": "ProcessTableScreen",
            "process_table": "ProcessTable",
            "table_views": "view_named",
        },
    )
