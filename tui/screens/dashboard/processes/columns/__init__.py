"""Columns of the process table: what each shows of a process and of a group, and the user's choice of them.

Lives here: columns as plain data, the texts of their cells, and the dialog in which they are chosen.
Callers: the process table.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .cell_texts import (
        group_count as group_count,
        group_gpus as group_gpus,
        group_user as group_user,
        process_command as process_command,
        process_user as process_user,
        short_gpu_list as short_gpu_list,
        user_text as user_text,
        without_folder as without_folder,
    )
    from .column import Column as Column, ColumnName as ColumnName
    from .column_choice import (
        columns_named as columns_named,
    )
    from .column_dialog import ColumnDialog as ColumnDialog
    from .figure_columns import (
        figure_demand as figure_demand,
        figure_order as figure_order,
        is_figure as is_figure,
    )
    from .table_columns import (
        COLUMNS as COLUMNS,
        PROCESS_COLUMNS as PROCESS_COLUMNS,
        columns_for as columns_for,
        default_columns as default_columns,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "cell_texts": (
                "group_count group_gpus group_user process_command process_user short_gpu_list user_text without_folder"
            ),
            "column": "Column ColumnName",
            "column_choice": "columns_named",
            "column_dialog": "ColumnDialog",
            "figure_columns": "figure_demand figure_order is_figure",
            "table_columns": "COLUMNS columns_for default_columns PROCESS_COLUMNS",
        },
    )
