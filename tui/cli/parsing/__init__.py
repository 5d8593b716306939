"""The arguments of all commands: their parsers, help, and what a first word means that is no command.

Lives here: the arguments of each command, the facts about them that help, completion and manual page show, and what
people type in place of a command. Nothing here imports what a command needs to run.
Callers: ``main``, ``shell``.
"""

from typing import TYPE_CHECKING

from vramtop.estimator.common.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .alert_arguments import add_alert_arguments as add_alert_arguments
    from .exit_codes import (
        OF_EVERY_COMMAND as OF_EVERY_COMMAND,
        exit_codes_sentence as exit_codes_sentence,
    )
    from .first_word import with_command as with_command
    from .host_arguments import add_host_arguments as add_host_arguments
    from .parser import CommandParser as CommandParser, Parser as Parser
    from .parser_facts import (
        FlagFacts as FlagFacts,
        FlagGroup as FlagGroup,
        flag_groups as flag_groups,
        positionals as positionals,
    )
    from .shared_flags import (
        EVERY_COMMAND as EVERY_COMMAND,
        add_output_arguments as add_output_arguments,
        positive_seconds as positive_seconds,
        process_id as process_id,
    )
else:
    __getattr__, __all__ = lazy_exports(
        __name__,
        {
            "alert_arguments": "add_alert_arguments",
            "exit_codes": "exit_codes_sentence OF_EVERY_COMMAND",
            "first_word": "with_command",
            "host_arguments": "add_host_arguments",
            "parser": "CommandParser Parser",
            "parser_facts": "FlagFacts FlagGroup flag_groups positionals",
            "shared_flags": "add_output_arguments EVERY_COMMAND positive_seconds process_id",
        },
    )
