"""The page of the settings: every key with its values, its default, its meaning and its flag; other variables."""

from collections.abc import Mapping

from vramtop.monitor.storage.settings.schema import SETTINGS, TABLES, Setting
from vramtop.monitor.storage.settings.settings_file import shown

from .markdown import bullets, code, codes, key_line, page, prose, sentence

ENVIRONMENT: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER": "GPUs that fit considers, and their order.",
    "VIRTUAL_ENV, CONDA_PREFIX": "Where a Python with torch and transformers is looked for.",
    "HF_HUB_CACHE, HF_HOME": "Where downloaded models are.",
    "VRAMTOP_CONFIG": "Another settings file; /dev/null for none.",
    "VRAMTOP_TABLE_KEY": "The setting table.key; vramtop config lists all.",
    "VRAMTOP_SSH": "The setting hosts.ssh.",
    "VRAMTOP_PROMETHEUS_USER, VRAMTOP_PROMETHEUS_PASSWORD": "User and password of the Prometheus that is read.",
    "NO_COLOR, FORCE_COLOR, CLICOLOR, CLICOLOR_FORCE": "Whether the output has colours.",
    "TEXTUAL_THEME": "The theme.",
    "TERM, COLORTERM": "Colours and desktop notifications of the terminal.",
    "LC_ALL, LC_CTYPE, LANG": "Without UTF-8 everything is drawn in ASCII.",
    "XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_CACHE_HOME": "Where settings, answers and estimates are stored.",
}
"""Meaning by the names of the variables."""
_INTRODUCTION = """\
Every setting of `config.toml` ([how to change one](../how-to/settings.md)), with its default, its other values and its
flag. Its environment variable is its name: `VRAMTOP_DASHBOARD_INTERVAL` is `dashboard.interval`, with commas in lists
([others](#other-variables))."""


def settings_page() -> str:
    """Return the page."""
    parts = [part for name in TABLES for part in _table(name)]
    return page(
        "Settings",
        _INTRODUCTION,
        *parts,
        "## Other variables",
        bullets(f"{codes(names.split(', '))}: {prose(text)}" for names, text in ENVIRONMENT.items()),
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
    words = (
        setting.allowed.removeprefix("one of: ").removeprefix(f"{_default(setting)}, ").replace("a list of:", "list:")
    )
    return "boolean" if words == "true or false" else prose(words)


def _key(setting: Setting) -> str:
    return "NAME" if setting.kind == "mapping" else setting.name.rpartition(".")[2]


def _default(setting: Setting) -> str:
    return "" if setting.default in ("", (), {}) else shown(setting.default)


def _flags(setting: Setting) -> str:
    return f"({code(setting.flag.partition(',')[0])})" if setting.flag else ""
