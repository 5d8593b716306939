"""Messages that need no entry below docs/troubleshooting: each rule says why, and a reader of the message would agree."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from user_messages import Message, without_placeholders

_VERBS = (
    "add|ask|call|change|choose|close|compare|copy|correct|decompress|delete|describe|download|end|enter|estimate|fill|find|"
    "give|install|leave|load|look|lower|make|move|name|open|press|put|quantize|quit|raise|record|reinstall|remove|report|reset|"
    "restart|run|see|set|shard|spread|start|trace|try|turn|type|unset|update|use|wait|write"
)


@dataclass(frozen=True)
class Rule:
    """A reason for which messages need no entry.

    Args:
        why: the reason.
        text: expression that is searched for in the message, with ``{}`` for what the program puts in.
        places: files, as patterns.
        hows: ways in which the message is given, see ``Message.how``; none: any.
    """

    why: str
    text: str = ""
    places: tuple[str, ...] = ("*",)
    hows: tuple[str, ...] = ()

    def applies(self, message: Message) -> bool:
        """Return True for a message that needs no entry for this reason."""
        return (
            any(fnmatchcase(message.place, each) for each in self.places)
            and (not self.hows or message.how in self.hows)
            and re.search(self.text, without_placeholders(message.text)) is not None
        )


RULES = (
    Rule(
        "It says what to do: after a comma, semicolon, colon or full stop there is a request.",
        rf"(?i)(^|[;:,.(] |\bor |\band |, then )(please |instead )?({_VERBS})\b",
    ),
    Rule("It gives an example of what is right, or the nearest one.", r"such as |did you mean|similar: |as in |, like "),
    Rule("It names the flag, variable or command that helps, or whose value it is about.", r"--[a-z]|vramtop [a-z]+|[A-Z]{3,}_[A-Z]+"),
)
