"""The optimizers: states per parameter, memory of the step, and names in libraries, one record per optimizer.

Lives here: the record, its kinds of states, the table in modules of rows, and the choice of a row by a library's name.
Callers: ``rules``, which exports the names below.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .by_name import (
        NOT_KNOWN as NOT_KNOWN,
        OptimizerChoice as OptimizerChoice,
        optimizer_arguments as optimizer_arguments,
        optimizer_by_class as optimizer_by_class,
        optimizer_by_trainer_name as optimizer_by_trainer_name,
        optimizer_class_names as optimizer_class_names,
    )
    from .libraries import LISTED_LIBRARIES as LISTED_LIBRARIES
    from .optimizer import Optimizer as Optimizer
    from .options import check_options as check_options
    from .states import PerShape as PerShape
    from .table import OPTIMIZERS as OPTIMIZERS, UNKNOWN as UNKNOWN
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "by_name": (
                "NOT_KNOWN optimizer_arguments optimizer_by_class optimizer_by_trainer_name "
                "optimizer_class_names OptimizerChoice"
            ),
            "libraries": "LISTED_LIBRARIES",
            "optimizer": "Optimizer",
            "options": "check_options",
            "states": "PerShape",
            "table": "OPTIMIZERS UNKNOWN",
        },
    )
