"""Settings file with every setting commented out: its meaning, what it may be, and its default."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from .schema import SETTINGS, TABLES, Setting
from .settings_file import shown

if TYPE_CHECKING:
    from collections.abc import Iterator


_WIDTH = 78


def settings_template() -> str:
    """Return the text, which is valid TOML and sets nothing."""
    lines = [
        "# Settings of vramtop. What is commented out has the default that stands there.",
        "# A flag takes precedence over the environment, that over this file.",
        "# vramtop config prints what is in force, and from where.",
    ]
    for table, heading in TABLES.items():
        lines += ["", f"[{table}]", *_comment(f"{heading}.")]
        for setting in SETTINGS:
            if setting.table == table:
                lines += ["", *_setting(setting)]
    return "\n".join(lines) + "\n"


def _setting(setting: Setting) -> Iterator[str]:
    before = [*setting.flag.split(", "), setting.variable, setting.also]  # what takes precedence over it
    instead = " or ".join(filter(None, before))
    yield from _comment(f"{setting.about}.")
    yield from _comment(f"{setting.allowed[0].upper()}{setting.allowed[1:]}. Instead: {instead}.")
    key = setting.name.rpartition(".")[2]
    if setting.example is not None:
        yield f"#   for example: {key} = {shown(setting.example)}"
    yield f"# {key} = {shown(setting.default)}"


def _comment(text: str) -> list[str]:
    return wrap(
        text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False, break_long_words=False
    )
