"""Configuration files that a script loads as tables: YAML, JSON and TOML, OmegaConf, hydra with its overrides."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ....common import InputError
from ...source import read_table
from ..python import UNKNOWN, Attribute, Call, Function, Thing
from .executed_files import FileContents, OpenedFile
from .options import Options

_MAX_GROUPS = 20
_MAX_REFERENCES = 8
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_SUFFIXES = (".yaml", ".yml", ".json", ".toml")


class ConfigTable(Thing):
    """A table whose entries are attributes as well: ``cfg.model.name``."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = dict(values)

    def attribute(self, name: str) -> Any:
        """Return an entry, or a method."""
        return self.item(name) if name in self.values else Attribute(self, name)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Set an entry."""
        self.values[name] = value

    def item(self, key: Any) -> Any:
        """Return an entry."""
        value = self.values.get(key, UNKNOWN) if isinstance(key, str) else UNKNOWN
        if isinstance(value, str) and "${" in value:
            return UNKNOWN
        return ConfigTable(value) if isinstance(value, dict) else value

    def set_item(self, key: Any, value: Any, call: Call) -> None:
        """Set an entry."""
        self.values[str(key)] = value

    def method(self, call: Call) -> Any:
        """Return the result of a table's method."""
        name = call.value(0)
        if call.name in ("get", "pop", "setdefault") and isinstance(name, str):
            return self.item(name) if name in self.values else call.value(1, default=None)
        if call.name in ("items", "keys", "values"):
            pairs = [(key, self.item(key)) for key in self.values]
            return pairs if call.name == "items" else [pair[call.name == "values"] for pair in pairs]
        if call.name == "update" and isinstance(name, dict | ConfigTable):
            self.values.update(name if isinstance(name, dict) else name.values)
            return None
        return self if call.name == "copy" else UNKNOWN

    def has(self, name: Any) -> bool:
        """Return whether there is an entry."""
        return name in self.values

    def elements(self) -> list[Any]:
        """Return the names of its entries."""
        return list(self.values)

    def as_table(self) -> dict[str, Any]:
        """Return all entries by name."""
        return {key: self.item(key) for key in self.values}

    def parts(self) -> Iterator[Any]:
        """Yield its entries."""
        yield from self.values.values()


def _load(options: Options, call: Call) -> Any:
    """Follow ``yaml.safe_load(file)`` and ``OmegaConf.load("x.yaml")``."""
    given = call.value(0)
    path = given.path if isinstance(given, OpenedFile | FileContents) else None
    if isinstance(given, str) and given.endswith(_SUFFIXES):
        path = call.run.find_file(given)
    return _table(path)


def _table(path: Path | None) -> Any:
    if path is None or path.suffix not in _SUFFIXES:
        return UNKNOWN
    try:
        return ConfigTable(read_table(path))
    except InputError:
        return UNKNOWN


def _create(options: Options, call: Call) -> Any:
    given = call.value(0)
    if isinstance(given, dict):
        return ConfigTable(given)
    return given if isinstance(given, Thing) else UNKNOWN


def _merge(options: Options, call: Call) -> Any:
    """Follow ``OmegaConf.merge(a, b)``."""
    merged: dict[str, Any] = {}
    for each in call.args:
        table = each.as_table() if hasattr(each, "as_table") else each
        if not isinstance(table, dict):
            return UNKNOWN
        _update(merged, {key: _plain(value) for key, value in table.items()})
    return ConfigTable(_resolved(merged, merged))


def _plain(value: Any) -> Any:
    return {key: _plain(each) for key, each in value.values.items()} if isinstance(value, ConfigTable) else value


def _update(table: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            table[key] = dict(table[key])
            _update(table[key], value)
        else:
            table[key] = value


def _resolved(value: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Return a table with the values that ``${model.name}`` stands for; what is not in it stays as it is written."""
    if isinstance(value, dict):
        return {key: _resolved(each, root, depth) for key, each in value.items()}
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None or depth > _MAX_REFERENCES:
        return value
    found: Any = root
    for name in match[1].split("."):
        if not isinstance(found, Mapping) or name not in found:
            return value
        found = found[name]
    return _resolved(found, root, depth + 1)


def _overrides(options: Options, call: Call) -> Any:
    """Follow ``OmegaConf.from_cli()``: the words ``name.other=value`` of the command line."""
    return ConfigTable(_given(options))


def _given(options: Options) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in options.arguments:
        path, equals, text = word.lstrip("+~").partition("=")
        names = path.split(".")
        if not equals or not all(name.isidentifier() for name in names) or len(names) > 8:
            continue
        value: Any = _value(text)
        for name in reversed(names):
            value = {name: value}
        _update(found, value)
    return found


def _choices(options: Options) -> dict[str, str]:
    """Return the words ``group=choice`` of the command line, beside which ``group.name=value`` may stand."""
    parts = (word.lstrip("+~").partition("=") for word in options.arguments)
    return {name: text for name, equals, text in parts if equals and name.isidentifier()}


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text) if len(text) < 30 else text
        except ValueError:
            continue
    return text


def _hydra(options: Options, call: Call) -> Any:
    """Follow ``@hydra.main(config_path="conf", config_name="config")``: the function gets the configuration."""
    function = call.value(0)
    if not isinstance(function, Function):
        return UNKNOWN
    folder = call.value(1, "config_path", default=".")
    name = next((word for word in _after(options, "--config-name")), call.value(2, "config_name", default="config"))
    table: dict[str, Any] = {}
    if isinstance(folder, str) and isinstance(name, str):
        path = call.run.module.path
        start = f"{path.parent}/{folder}" if path is not None and not folder.startswith("/") else folder
        _compose(call, f"{start}/{name.removesuffix('.yaml')}", table, given=_choices(options), left=[_MAX_GROUPS])
    first = next(iter(function.node.args.args), None)
    if table and first is not None:
        chosen = {
            key for key, value in _given(options).items() if isinstance(value, str) and isinstance(table.get(key), dict)
        }
        _update(table, {key: value for key, value in _given(options).items() if key not in chosen})
        function.defaults = {**function.defaults, first.arg: ConfigTable(_resolved(table, table))}
    return UNKNOWN


def _after(options: Options, flag: str) -> Iterator[str]:
    words = list(options.arguments)
    for at, word in enumerate(words):
        if word.startswith(f"{flag}="):
            yield word.partition("=")[2]
        elif word == flag and at + 1 < len(words):
            yield words[at + 1]


def _compose(call: Call, path: str, into: dict[str, Any], *, given: Mapping[str, Any], left: list[int]) -> None:
    """Add the tables of a configuration and of the groups in its defaults."""
    left[0] -= 1
    found = _table(call.run.find_file(f"{path}.yaml")) if left[0] >= 0 else UNKNOWN
    if not isinstance(found, ConfigTable):
        return
    folder = path.rpartition("/")[0]
    values = dict(found.values)
    groups = values.pop("defaults", [])
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, str) and group != "_self_":
            _compose(call, f"{folder}/{group}", into, given=given, left=left)
        for key, choice in group.items() if isinstance(group, dict) else ():
            chosen = given.get(key, choice)
            if isinstance(chosen, str) and isinstance(key, str) and key.isidentifier():
                inner: dict[str, Any] = {}
                _compose(call, f"{folder}/{key}/{chosen}", inner, given={}, left=left)
                _update(into, {key: inner})
    _update(into, values)


def _container(options: Options, call: Call) -> Any:
    value = call.value(0)
    return _plain(value) if isinstance(value, ConfigTable) else UNKNOWN


_Handler = Callable[[Options, Call], Any]
TABLE_FUNCTIONS: Mapping[str, _Handler] = {
    **dict.fromkeys(("yaml.safe_load", "yaml.load", "yaml.full_load", "json.load", "json.loads"), _load),
    **dict.fromkeys(("tomllib.load", "toml.load", "tomli.load"), _load),
    **dict.fromkeys(("omegaconf.OmegaConf.load", "OmegaConf.load"), _load),
    **dict.fromkeys(("omegaconf.OmegaConf.create", "OmegaConf.create"), _create),
    **dict.fromkeys(("omegaconf.OmegaConf.merge", "OmegaConf.merge"), _merge),
    **dict.fromkeys(("omegaconf.OmegaConf.from_cli", "OmegaConf.from_cli"), _overrides),
    **dict.fromkeys(("omegaconf.OmegaConf.to_container", "OmegaConf.to_container"), _container),
    "@main": _hydra,
}
"""By a function's dotted name; the decorator with ``@``."""
