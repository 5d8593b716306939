"""The page of the settings file: every setting with its values, its default, its meaning and its flag."""

from vramtop.monitor.storage.settings.in_force import shown
from vramtop.monitor.storage.settings.schema import SETTINGS, TABLES, Setting

from .markdown import bullets, code, key_line, page, prose, sentence

_INTRODUCTION = """\
Every setting of `config.toml` ([how to change one](../how-to/settings.md)), with its flags in parentheses. Its
environment variable is its name: `VRAMTOP_DASHBOARD_INTERVAL` is `dashboard.interval` ([others](environment.md))."""


def settings_page() -> str:
    """Return the page."""
    parts = [part for name in TABLES for part in _table(name)]
    return page(
        "Settings",
        _INTRODUCTION,
        *parts,
    )


def _table(name: str) -> list[str]:
    lines = [
        key_line(
            _key(setting),
            _value(setting),
            _default(setting),
            " ".join(filter(None, (prose(sentence(setting.about)), _flags(setting)))),
        )
        for setting in SETTINGS
        if setting.table == name
    ]
    return [f"## `[{name}]`", bullets(lines)] if lines else []


def _value(setting: Setting) -> str:
    words = setting.allowed.removeprefix("one of: ").replace("a list of:", "list:")
    return "boolean" if words == "true or false" else prose(words)


def _key(setting: Setting) -> str:
    return "NAME" if setting.kind == "mapping" else setting.name.rpartition(".")[2]


def _default(setting: Setting) -> str:
    return "" if setting.default in ("", (), {}) else shown(setting.default)


def _flags(setting: Setting) -> str:
    return f"({code(setting.flag.partition(',')[0])})" if setting.flag else ""
