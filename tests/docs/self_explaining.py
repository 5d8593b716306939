"""Messages that need no entry below docs/troubleshooting: each rule says why, and a reader would agree."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.docs.user_messages import Message

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
        if self.places != ("*",) and not self.hows and (message.how == "notify" or message.how.endswith("Error")):
            return False  # what a place is for excuses no error there
        return (
            any(fnmatchcase(message.place, each) for each in self.places)
            and (not self.hows or message.how in self.hows)
            and re.search(self.text, message.sentence) is not None
        )


_INPUT = ("InputError", "ValueError", "ArgumentTypeError", "TypeError", "_mistake", "error")
_SCREENS = ("tui/screens/*", "tui/app/*")

RULES = (
    Rule(
        "It says what to do: after a comma, semicolon, colon or full stop there is a request.",
        rf"(?i)(^|[;:,.(] |\bor |\band |, then )(please |instead )?({_VERBS})\b",
    ),
    Rule(
        "It gives an example of what is right, or the nearest one.",
        r"such as |did you mean|similar: |as in |, like |the nearest is",
    ),
    Rule(
        "It names the flag, command or variable that helps, or whose value is wrong.",
        r"--[a-z]|vramtop [a-z]+|[A-Z]{3,}_[A-Z]+",
    ),
    Rule(
        "It names the value, the flag or the file that is wrong, and what is wrong with it.",
        r"\b(is|are) (not|neither|larger|more|no|for|empty|none)\b|\bmust be\b|\bno such\b|cannot be combined|"
        r"unrecognized|takes no launch line|has the pattern|no option|runs in one process|not closed|end at another|"
        r"the quiet hours|there is no (flag|command)|has an option|than any model has|patterns; a few",
        hows=_INPUT,
    ),
    Rule(
        "It adds a place to another message, which has an entry or needs none.",
        r"^(\{\}|\W|line |keys\.|its default stays|it is left out)+$",
    ),
    Rule("It is caught where it arises, and what was read is left out.", r"^not a count$", hows=("ValueError",)),
    Rule("Nobody waits for the answer any more, so nobody reads it.", hows=("CancelledError",)),
    Rule(
        "An error in a program that uses vramtop's code, for its programmer.",
        r"has no attribute|allocated twice",
        hows=("AttributeError", "message"),
    ),
    Rule("It says what a change of the job costs; nothing is wrong.", places=("estimator/advice/*",)),
    Rule(
        "It asks for what the screen shows, or says what a key just did.",
        places=_SCREENS,
        hows=("hint", "_HINT", "_LOG_HINT"),
    ),
    Rule(
        "A notice about the key that was just pressed: it names what is not there, or what is being done.",
        r"^(These |There is no|No |The |This |Process |What you|A pid|reading what|\{\} is no longer|it is being|\* )",
        places=(*_SCREENS, "monitor/host/terminate.py"),
        hows=(
            *("notify", "sentence", "_show_problem", "show_problem", "show_failure", "why_not", "refusal_reason"),
            *("termination_refusal", "_NO_TRACE", "_NO_FAILURE"),
        ),
    ),
    Rule(
        "A status, verdict or cause in words, with figures: docs/explanation/what-the-monitor-shows.md explains it.",
        places=(
            *(
                "estimator/causes/*",
                "estimator/job/effective_batch.py",
                "monitor/board/*",
                "monitor/host/available_ram.py",
            ),
            *("tui/reports/*", "tui/html_report/*", "tui/screens/fit/verdict_pane.py", "tui/screens/what_if.py"),
            *(
                "tui/screens/dashboard/*",
                "tui/screens/attach/*",
                "tui/screens/fit/*",
                "tui/cli/placing.py",
                "tui/draw/*",
            ),
        ),
    ),
    Rule(
        "An event of a recording, with its time; the message of the GPU that it quotes has an entry.",
        places=("monitor/sources/recorded.py",),
    ),
    Rule(
        "An alert, with its condition: docs/reference/alerts.md explains it.",
        places=("monitor/alerts/*conditions.py", "monitor/alerts/fleet_watch.py"),
    ),
    Rule(
        "What is known of a failure that vramtop explain explains; the findings beside it say what to do.",
        places=("estimator/crash/explanation.py", "tui/cli/commands/explain.py"),
    ),
    Rule(
        "It explains why the clocks of a GPU are low; a state, and no failure.",
        places=("monitor/snapshot/clock_reasons.py",),
    ),
    Rule(
        "The name of a figure, which stands in the sentence about its n/a.",
        r"^(its|the|at|what|whether|nothing is known|MPS server)\b",
        places=("monitor/sources/nvml/*", "monitor/doctor/driver_facts.py"),
    ),
    Rule(
        "A reason that stands within another sentence, which says what to do or has an entry.",
        r"^(it is |they are |no |it holds |its |there is |you have|the program|has (been|used)|a CUDA|unless|if it|"
        r"NCCL|'kill|\{\}, or|MPS|\{\} \(under|belongs to|is an engine|this process has|it has|built in|; method|the "
        r"partition|a MIG|the nodes'|the job (has|asks|requires)|whether the job|it (ended|was ended)|is not counted:|"
        r"data loader|closed form|the .* before|nothing was|: |\{\} GiB|not |who|metrics go|rollout)",
        hows=(
            *("reason", "_reason", "_REASONS", "why", "hint", "advice", "_HELPER_ADVICE", "_FORMULA_HINT", "table"),
            *("sentence", "_sentence", "_server_error", "_MESSAGES", "_UNREAD", "CannotTellError", "VramtopError"),
        ),
    ),
    Rule("It says that what was asked for is done.", r"Ctrl-C stops|is attached to again|processes of this run are"),
    Rule("The help of a metric, which Prometheus shows.", places=("monitor/export/metrics.py",)),
)
