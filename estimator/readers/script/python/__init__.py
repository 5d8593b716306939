"""Follows a Python script without running it: values, expressions, statements, decisions, modules beside it.

Lives here: Python itself; nothing about torch, transformers or memory.
Callers: ``library``, which says what libraries' functions do, and ``readers.script``, which reads the outcome.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .call import Call as Call
    from .decisions import Decisions as Decisions, Undecided as Undecided
    from .evaluation import BudgetSpentError as BudgetSpentError, KnownFailureError as KnownFailureError
    from .imports import MAX_BYTES as MAX_BYTES, Imports as Imports, parse as parse
    from .interpreter import Interpreter as Interpreter, ScriptEndsError as ScriptEndsError
    from .operators import as_number as as_number, truth as truth
    from .plain_values import plain as plain, short_text as short_text
    from .python_functions import BUILTINS as BUILTINS, STANDARD_LIBRARY as STANDARD_LIBRARY
    from .values import (
        PLAIN as PLAIN,
        UNKNOWN as UNKNOWN,
        Attribute as Attribute,
        External as External,
        Function as Function,
        Instance as Instance,
        Method as Method,
        Scope as Scope,
        ScriptClass as ScriptClass,
        ScriptModule as ScriptModule,
        Thing as Thing,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "decisions": "Decisions Undecided",
            "call": "Call",
            "evaluation": "BudgetSpentError KnownFailureError",
            "imports": "Imports MAX_BYTES parse",
            "interpreter": "Interpreter ScriptEndsError",
            "operators": "as_number truth",
            "python_functions": "BUILTINS STANDARD_LIBRARY",
            "plain_values": "plain short_text",
            "values": (
                "Attribute External Function Instance Method PLAIN Scope ScriptClass ScriptModule Thing UNKNOWN"
            ),
        },
    )
