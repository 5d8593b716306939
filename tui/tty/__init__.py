"""The terminal device: its driver, input, colours, and sending only the cells that changed.

Lives here: everything that depends on Textual's internals or on the terminal's behaviour.
Callers: ``app`` and the ``doctor`` command.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .is_served import SERVED_DRIVER as SERVED_DRIVER
    from .terminal_app import TEXT_CONTRAST_VARIABLE as TEXT_CONTRAST_VARIABLE, TerminalApp as TerminalApp
    from .terminal_facts import TerminalFacts as TerminalFacts, terminal_issues as terminal_issues
    from .textual_private import write_to_terminal as write_to_terminal
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "is_served": "SERVED_DRIVER",
            "terminal_app": "TerminalApp TEXT_CONTRAST_VARIABLE",
            "terminal_facts": "terminal_issues TerminalFacts",
            "textual_private": "write_to_terminal",
        },
    )
