"""Widgets that several screens share.

Lives here: small Textual widgets that know budgets and text, but no screen.
Callers: ``job``, ``screens`` and ``app``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .action_label import ActionLabel as ActionLabel
    from .budget_view import (
        METHOD_LABELS as METHOD_LABELS,
        budget_bar as budget_bar,
        gpu_legend as gpu_legend,
        gpu_lines as gpu_lines,
        is_better_estimate as is_better_estimate,
        model_lines as model_lines,
        peak_line as peak_line,
        phase_table as phase_table,
        remark_lines as remark_lines,
        short_gpu_name as short_gpu_name,
        verdict_line as verdict_line,
    )
    from .cell_rows import CellRows as CellRows, with_axes as with_axes
    from .choice import Choice as Choice, ChoiceMenu as ChoiceMenu
    from .content_lines import ContentLines as ContentLines
    from .keys_line import KeysLine as KeysLine
    from .legend import Legend as Legend, legend_line as legend_line
    from .match_list import MatchList as MatchList, best_matches as best_matches
    from .row_table import (
        FOLD_SIGNS as FOLD_SIGNS,
        ROW_BINDINGS as ROW_BINDINGS,
        RowTable as RowTable,
        column_gap as column_gap,
        scroll_to_row as scroll_to_row,
    )
    from .search_choice import SearchChoice as SearchChoice
    from .static_lines import StaticLines as StaticLines
    from .table_cell import TableCell as TableCell
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "action_label": "ActionLabel",
            "budget_view": (
                "budget_bar gpu_legend gpu_lines is_better_estimate METHOD_LABELS model_lines peak_line "
                "phase_table remark_lines short_gpu_name verdict_line"
            ),
            "cell_rows": "CellRows with_axes",
            "choice": "Choice ChoiceMenu",
            "content_lines": "ContentLines",
            "keys_line": "KeysLine",
            "legend": "Legend legend_line",
            "match_list": "best_matches MatchList",
            "row_table": "column_gap FOLD_SIGNS ROW_BINDINGS RowTable scroll_to_row",
            "search_choice": "SearchChoice",
            "static_lines": "StaticLines",
            "table_cell": "TableCell",
        },
    )
