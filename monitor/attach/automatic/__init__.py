"""Automatic attaching: every training process on a GPU is read by itself, and its run gets a budget.

Lives here: ``AutomaticAttach``, which decides what is read and when; the worker process that reads; budgets that are
traced while the machine is idle; the processes that the user wants left alone; and the
program that follows what ``vramtop run`` starts.
Callers: the dashboard, ``--once``, ``record`` and ``run``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .automatic_attach import AutomaticAttach as AutomaticAttach
    from .idle_tracing import IdleTracing as IdleTracing
    from .left_alone import LeftAlone as LeftAlone
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "automatic_attach": "AutomaticAttach",
            "idle_tracing": "IdleTracing",
            "left_alone": "LeftAlone",
        },
    )
