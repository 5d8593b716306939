"""Follows a Python script without running it: values, expressions, statements, decisions, modules beside it.

Lives here: Python itself; nothing about torch, transformers or memory.
Callers: ``library``, which says what libraries' functions do, and ``readers.script``, which reads the outcome.
"""

from typing import TYPE_CHECKING

from ....common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .decisions import Decisions as Decisions, Undecided as Undecided
    from .expressions import BudgetSpentError as BudgetSpentError
    from .imports import MAX_BYTES as MAX_BYTES, Imports as Imports, parse as parse
    from .interpreter import Interpreter as Interpreter, ScriptEndsError as ScriptEndsError
    from .options import (
        Options as Options,
        Parsed as Parsed,
        Parser as Parser,
        instance_of as instance_of,
        parse_class as parse_class,
    )
    from .operators import as_number as as_number, truth as truth
    from .python_functions import BUILTINS as BUILTINS, STANDARD_LIBRARY as STANDARD_LIBRARY
    from .values import (
        PLAIN as PLAIN,
        UNKNOWN as UNKNOWN,
        Attribute as Attribute,
        Call as Call,
        External as External,
        Function as Function,
        Instance as Instance,
        Method as Method,
        Scope as Scope,
        ScriptClass as ScriptClass,
        ScriptModule as ScriptModule,
        Thing as Thing,
        plain as plain,
        short_text as short_text,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "decisions": "Decisions Undecided",
            "expressions": "BudgetSpentError",
            "imports": "Imports MAX_BYTES parse",
            "interpreter": "Interpreter ScriptEndsError",
            "operators": "as_number truth",
            "options": "instance_of Options parse_class Parsed Parser",
            "python_functions": "BUILTINS STANDARD_LIBRARY",
            "values": (
                "Attribute Call External Function Instance Method PLAIN plain Scope ScriptClass ScriptModule short_text "
                "Thing UNKNOWN"
            ),
        },
    )
