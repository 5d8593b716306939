"""The page of the settings file: every setting with its values, its default, and what takes precedence over it."""

from vramtop.monitor.storage.settings.in_force import shown
from vramtop.monitor.storage.settings.schema import SETTINGS, TABLES, Setting

from .markdown import code, codes, page, prose, sentence, table

_INTRODUCTION = """\
vramtop reads its settings from `config.toml` in `$XDG_CONFIG_HOME/vramtop` (usually `~/.config/vramtop`). There need be
no such file: every setting has a default.

- **Precedence**: a flag counts more than an environment variable, that more than the file, the file more than the
  default.
- **`vramtop config`** prints the settings in force and where each is from. It also changes one; comments and order of
  the file stay.
- **A mistake** in the file is one sentence with its line; the default of that setting is used until it is corrected.
- **`VRAMTOP_CONFIG=FILE`** or `--config FILE` names another file; `--config ''` none.
- **Its variable** is a setting's name: `VRAMTOP_DASHBOARD_INTERVAL` is `dashboard.interval`
  ([others](environment.md)). **Its flag** is in the last column.

`vramtop config --template` prints the whole file, every setting with its meaning and commented out."""


def settings_page() -> str:
    """Return the page."""
    parts = [part for name, heading in TABLES.items() for part in _table(name, heading)]
    return page(
        "Settings",
        _INTRODUCTION,
        *parts,
    )


def _table(name: str, heading: str) -> list[str]:
    rows = [
        (
            code(_key(setting)),
            prose(setting.allowed),
            _default(setting),
            prose(sentence(setting.about)),
            _flags(setting),
        )
        for setting in SETTINGS
        if setting.table == name
    ]
    head = ("key", "value", "default", "meaning", "flag")
    if not rows:
        return []
    return [f"## `[{name}]`", prose(sentence(heading)), table(head, rows)]


def _key(setting: Setting) -> str:
    return "NAME" if setting.kind == "mapping" else setting.name.rpartition(".")[2]


def _default(setting: Setting) -> str:
    return "empty" if setting.default in ("", (), {}) else code(shown(setting.default))


def _flags(setting: Setting) -> str:
    return codes(setting.flag.split(", ")) if setting.flag else ""
