"""A job in the user interface: loaded from what the user typed, edited in a form, saved to a file.

Lives here: flags and loading (no Textual) for the command line; the form and its dialogs for the screens.
Callers: ``screens``, ``app`` and ``cli``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .budgets_by_card import (
        BudgetsByCard as BudgetsByCard,
        beyond_formula as beyond_formula,
        budgets_of as budgets_of,
        estimator_on_card as estimator_on_card,
    )
    from .changed_settings import changed_settings_text as changed_settings_text
    from .copy_dialog import CopiedTextScreen as CopiedTextScreen
    from .form_reading import FormReading as FormReading
    from .load_job import (
        LoadedJob as LoadedJob,
        job_from_options as job_from_options,
        load_again as load_again,
        load_changed as load_changed,
        load_from_options as load_from_options,
    )
    from .open_dialog import LaunchInput as LaunchInput, OpenedJob as OpenedJob, OpenJobScreen as OpenJobScreen
    from .run_edits import RunEdits as RunEdits
    from .save_dialog import open_save_dialog as open_save_dialog
    from .typed_job import TypedJob as TypedJob, load_typed as load_typed
    from .would_fit import (
        budget_of_what_ran as budget_of_what_ran,
        failed_gpu as failed_gpu,
        quick_suggestions as quick_suggestions,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "budgets_by_card": "beyond_formula budgets_of BudgetsByCard estimator_on_card",
            "changed_settings": "changed_settings_text",
            "copy_dialog": "CopiedTextScreen",
            "form_reading": "FormReading",
            "load_job": "job_from_options load_changed load_from_options LoadedJob load_again",
            "open_dialog": "LaunchInput OpenedJob OpenJobScreen",
            "run_edits": "RunEdits",
            "save_dialog": "open_save_dialog",
            "typed_job": "load_typed TypedJob",
            "would_fit": "budget_of_what_ran failed_gpu quick_suggestions",
        },
    )
