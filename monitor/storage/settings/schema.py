"""Every setting of vramtop, in the order in which they are shown.

To add one, write a row here, and read it where it takes effect; what has a flag, is filled in by
``tui/cli/option_settings.py``.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

Kind = Literal["switch", "seconds", "text", "choice", "list"]
"""``list``: of texts."""
Value = bool | float | str | tuple[str, ...]
_SWITCH_WORDS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}
"""Words for a switch in an environment variable or on the command line."""
_LEAST_SECONDS, _MOST_SECONDS = 0.1, 86_400
_MAX_TEXT = 4096
_MAX_ENTRIES = 1000
_NO_CONTROL_CHARACTERS = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]*"
_KIND_WORDS: dict[Kind, str] = {
    "switch": "true or false",
    "seconds": f"a number between {_LEAST_SECONDS} and {_MOST_SECONDS}",
    "text": 'text in quotes, such as "text"',
    "choice": "one of the choices",
    "list": 'a list of texts, such as ["a", "b"]',
}


class Setting(NamedTuple):
    """A setting of vramtop, as the settings file has it; no dataclass, which takes five times as long to define."""

    name: str
    """Dotted: its TOML table and its key, ``dashboard.interval``."""
    kind: Kind
    default: Value
    about: str
    """What it does, in one sentence without a full stop."""
    choices: tuple[str, ...] = ()
    """The words that it, or each entry of a list, may be."""
    pattern: str = ""
    """Regular expression that a text must match in full; an empty text is always allowed."""
    expects: str = ""
    """What is allowed, in words, where kind and choices do not say it: ``HH:MM-HH:MM, or off``."""
    flag: str = ""
    """The flag that takes precedence: ``--interval``; empty: none."""
    own_variable: str = ""
    """An environment variable of another name than ``variable`` makes."""
    also: str = ""
    """A variable of another program that is read where ``variable`` is not set."""
    is_program: bool = False
    """vramtop runs it: it is taken only from a file that nobody else may write."""

    @property
    def table(self) -> str:
        """The TOML table that it is in."""
        return self.name.rpartition(".")[0]

    @property
    def variable(self) -> str:
        """The variable that takes precedence over the file, ``VRAMTOP_DASHBOARD_INTERVAL``."""
        return self.own_variable or f"VRAMTOP_{self.name.replace('.', '_').upper()}"

    @property
    def allowed(self) -> str:
        """What its value may be, in words."""
        if self.expects or not self.choices:
            return self.expects or _KIND_WORDS[self.kind]
        words = ", ".join(f'"{word}"' for word in self.choices)
        return f"a list of: {words}" if self.kind == "list" else f"one of: {words}"

    def checked(self, value: object) -> Value:
        """Return a value as it is kept: a list as a tuple, a whole number as a number.

        Args:
            value: as TOML gives it; of a list also its words with commas.

        Raises:
            ValueError: it is not allowed; the message says what is.
        """
        import msgspec  # without any settings it is not needed

        if self.kind == "list":
            words = value.split(",") if isinstance(value, str) else value
            if isinstance(words, list | tuple):
                stripped = [word.strip() if isinstance(word, str) else word for word in words]
                value = [word for word in stripped if word != ""]
        try:
            found: Value = msgspec.convert(value, _type_of(self.name))
        except msgspec.ValidationError as error:
            at = re.search(r"`\$\[(\d+)\]`", str(error))
            word = value[int(at[1])] if at and isinstance(value, list) else None
            wrong = f'"{word}" is wrong; ' if isinstance(word, str) else ""
            raise ValueError(f"{wrong}give {self.allowed}") from None
        return found

    def parsed(self, text: str) -> Value:
        """Return the value that a text means, from the environment or the command line; a list has commas.

        Raises:
            ValueError: it means none.
        """
        value: object = text
        if self.kind == "switch":
            value = _SWITCH_WORDS.get(text.strip().lower(), text)
        elif self.kind == "seconds" and re.fullmatch(r"\s*[\d.]+\s*", text) and text.count(".") < 2:
            value = float(text)
        return self.checked(value)


@cache
def _type_of(name: str) -> Any:
    """Return the type of a setting's values for msgspec."""
    from msgspec import Meta

    setting = _BY_NAME[name]
    if setting.kind == "switch":
        return bool
    if setting.kind == "seconds":
        return Annotated[float, Meta(ge=_LEAST_SECONDS, le=_MOST_SECONDS)]
    pattern = f"({setting.pattern})?" if setting.pattern else _NO_CONTROL_CHARACTERS
    text = Annotated[str, Meta(pattern=rf"\A{pattern}\Z", max_length=_MAX_TEXT)]
    word: Any = Literal[setting.choices] if setting.choices else text
    return Annotated[tuple[word, ...], Meta(max_length=_MAX_ENTRIES)] if setting.kind == "list" else word


THEME, VIEW, COLUMNS, SORT, ASCII, INTERVAL = (
    f"dashboard.{key}" for key in ("theme", "view", "columns", "sort", "ascii", "interval")
)
"""Names of settings that are remembered, or read by name."""
TABLES = {
    "dashboard": "The dashboard",
    "attach": "Attaching to training processes",
    "estimates": "Estimates",
    "history": "Your measured runs",
    "hosts": "Several hosts, over ssh",
    "prometheus": "Many hosts, from a Prometheus",
}
"""The TOML tables in their order, each with its heading."""
PROCESS_VIEWS = ("runs", "tree", "processes")
PROCESS_SORTS = ("STATUS", "VRAM", "GPU", "DIFF", "PID", "UP", "USER", "SM", "BW", "CPU", "RAM", "THR")
PROCESS_COLUMNS = (
    *("PID", "USER", "GPU", "VRAM GiB", "MAX", "SPREAD", "BUDGET", "DIFF", "STATUS", "SM %", "BW %", "CPU %"),
    *("RAM GiB", "THR", "UP", "RUNS IN", "COMMAND"),
)
METHODS = ("auto", "formula", "exact", "traced")


SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="dashboard.interval", kind="seconds", default=1.0, flag="--interval",
        about="Seconds between readings; also for vramtop export",
    ),
    Setting(
        name=VIEW, kind="choice", default="runs", choices=PROCESS_VIEWS,
        about="View of the process table; the one that you switch to is remembered",
    ),
    Setting(
        name=COLUMNS, kind="list", default=(), choices=PROCESS_COLUMNS,
        about="Columns of the process table, the most important first; empty: as many as fit",
    ),
    Setting(
        name=SORT, kind="choice", default="STATUS", choices=PROCESS_SORTS,
        about="Column by which the process table is sorted at the start",
    ),
    Setting(
        name=THEME, kind="text", default="vramtop-dark", pattern=r"[\w-]{1,60}", also="TEXTUAL_THEME",
        expects="the name of a theme, such as vramtop-light or vramtop-high-contrast",
        about="Theme; the command palette (Ctrl+P) lists and remembers it",
    ),
    Setting(
        name="dashboard.mouse", kind="switch", default=True, flag="--mouse, --no-mouse",
        about="Use the mouse; false leaves it to the terminal, for selecting text",
    ),
    Setting(
        name="dashboard.ascii", kind="choice", default="auto", choices=("auto", "on", "off"),
        flag="--ascii, --no-ascii",
        about="Draw with ASCII characters only; auto: where the locale has no others",
    ),
    Setting(
        name="dashboard.read_only", kind="switch", default=False, flag="--read-only, --no-read-only",
        about="The dashboard cannot end processes",
    ),
    Setting(
        name="attach.automatic", kind="switch", default=True, flag="--attach, --no-attach",
        about="Attach to training processes automatically",
    ),
    Setting(
        name="estimates.method", kind="choice", default="auto", choices=METHODS, flag="--method",
        about="Method of the estimate where a command takes one",
    ),
    Setting(
        name="estimates.python", kind="text", default="", flag="--python", is_program=True,
        expects="the path of a Python interpreter",
        about="Python interpreter with torch and transformers, for exact counts and traces; empty: searched for",
    ),
    Setting(
        name="estimates.rehearse", kind="choice", default="ask", choices=("ask", "always", "never"), is_program=True,
        flag="--rehearse, --read-only",
        about="Rehearse a program where reading it does not suffice; without a terminal only --rehearse does",
    ),
    Setting(
        name="estimates.download", kind="switch", default=True,
        about="Fetch the config.json of a model that is nowhere here from the Hugging Face hub",
    ),
    Setting(
        name="history.enabled", kind="switch", default=True, flag="--history, --no-history",
        about="Keep measurements of your runs, and correct estimates by them",
    ),
    Setting(
        name="hosts.ssh", kind="text", default="ssh", own_variable="VRAMTOP_SSH", is_program=True,
        expects="a command in place of ssh",
        about="Command in place of ssh for --host",
    ),
    Setting(
        name="prometheus.url", kind="text", default="", flag="--prometheus", pattern=r"https?://[^\s@]+",
        expects="an address that begins with http:// or https://, without user and password",
        about="The Prometheus that --prometheus without an address reads",
    ),
    Setting(
        name="prometheus.token_file", kind="text", default="", flag="--prometheus-token-file",
        expects="the path of a file",
        about="File with a bearer token for that Prometheus",
    ),
    Setting(
        name="prometheus.ca_file", kind="text", default="", flag="--prometheus-ca",
        expects="the path of a file",
        about="CA certificates of that Prometheus, in place of the system's",
    ),
)  # fmt: skip
"""All settings. Tables stand together and in the order of ``TABLES``."""
_BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}


def find_setting(name: str) -> Setting | None:
    """Return the setting of a dotted name."""
    return _BY_NAME.get(name)


def nearest_name(name: str) -> str | None:
    """Return the name of a setting that is meant by a wrong one, or None."""
    import difflib  # not at start-up

    last = name.rpartition(".")[2].replace("-", "_")
    by_end = {each.rpartition(".")[2]: each for each in _BY_NAME}
    close = difflib.get_close_matches(last, by_end, n=1, cutoff=0.75)
    if close == [last]:
        return by_end[last]
    near = difflib.get_close_matches(name.replace("-", "_"), _BY_NAME, n=1, cutoff=0.6)
    return near[0] if near else by_end[close[0]] if close else None
