"""The page of the settings file: every setting with its values, its default, and what takes precedence over it."""

from vramtop.monitor.storage.settings.in_force import shown
from vramtop.monitor.storage.settings.schema import SETTINGS, TABLES, Setting
from vramtop.tui.draw.palette import CHANGEABLE, DEFAULT_COLOURS, colour_meaning

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


_ABOUT_COLOURS = """\
A colour is `#e5534b`, or a name of CSS such as `orange`. One whose contrast with the ground of the theme is below 3 is
a warning.
Terminals with 16 or 256 colours get the nearest one, those with `NO_COLOR` none; the signs of statuses and the letters
of components stay in each case. Reports in HTML have colours of their own."""


def settings_page() -> str:
    """Return the page."""
    parts = [part for name, heading in TABLES.items() for part in _table(name, heading)]
    return page(
        "Settings",
        _INTRODUCTION,
        *parts,
        *_colours(),
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


def _colours() -> list[str]:
    """Return the names of the colours."""
    rows = [(code(name), code(DEFAULT_COLOURS[name]), prose(colour_meaning(name))) for name in CHANGEABLE]
    return ["## Names of colours", _ABOUT_COLOURS, table(("name", "default", "colour of"), rows)]


def _key(setting: Setting) -> str:
    return "NAME" if setting.kind == "mapping" else setting.name.rpartition(".")[2]


def _default(setting: Setting) -> str:
    return "empty" if setting.default in ("", (), {}) else code(shown(setting.default))


def _flags(setting: Setting) -> str:
    return codes(setting.flag.split(", ")) if setting.flag else ""
