"""Reads the table's files, and applies their lines to settings."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from ...job.rules.strategies import DTYPE_NAMES
from ...job.settings import UncertaintyDirection
from ..source.evidence import MODEL_STATES, Component, FindingCollector
from ..source.settings import LayeredSettings, Setting, SettingsLayer, as_bool, as_int, as_word, default_layer, words_of
from ..source.versions import is_at_least, version_tuple

Kind = TypeVar("Kind")
Default = Any
"""A value, or values by the version since which each holds; ``none``: there is none."""
_OFF = ("none", "root", "auto", "[]", "{}", "0", "0.0", "-1")
"""Values that switch a setting off, beside those that mean false."""
_DIRECTIONS: tuple[UncertaintyDirection, ...] = ("more", "less", "either")
Part = Component | Literal["states"]
_ACCELERATE = "accelerate."
_MICRO_BATCH = "training.micro_batch"


class Effect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Components that may need more or less memory than is counted; ``states`` are the model states."""

    more: tuple[Part, ...] = ()
    less: tuple[Part, ...] = ()
    either: tuple[Part, ...] = ()
    unless: str | None = None
    """The job key that removes the doubt."""

    def doubt(self, sentence: str, findings: FindingCollector, *, unless: str | None = None) -> None:
        """Warn with a sentence, and mark the components."""
        key = unless or self.unless
        findings.warn(sentence, unless=key)
        for direction in _DIRECTIONS:
            for part in getattr(self, direction):
                findings.add_uncertainty(direction, *(MODEL_STATES if part == "states" else (part,)), unless=key)


class Doubt(Effect, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"with_": "with"}):
    """An argument that is not counted where it is on."""

    why: str
    """A sentence after the argument's origin; ``{value}`` is its value."""
    words: tuple[str, ...] = ()
    """Only for these values."""
    off: tuple[str, ...] = ()
    """Not for these values, beside those that switch anything off."""
    where: Literal["on", "off"] = "on"
    """``off``: where the argument is false instead."""
    also: tuple[str, ...] = ()
    """Further arguments of which the same is true."""
    with_: tuple[str, ...] = ()
    """Only where one of these arguments is on too, and more than 1 if it is a number."""


class Renamed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"as_": "as"}):
    """An argument that is one of transformers', or of accelerate's flags (``accelerate.NAME``)."""

    as_: str
    on: Any = None
    """The value to pass on where the argument is true, or one of ``when``; otherwise it is left out."""
    when: tuple[str, ...] = ()
    words: Mapping[str, Any] = {}
    """The value to pass on for each value of the argument; one that is not listed is passed on as it is."""


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"names": "from"}):
    """How one argument sets a job key."""

    names: tuple[str, ...]
    """The argument and its other names; earlier ones win."""
    kind: Literal["count", "bool", "dtype"] = "bool"
    on: Any = None
    """The key's value where the argument is true; otherwise the key stays open."""
    words: Mapping[str, Any] = {}
    """The key's values by those of the argument; another one is doubted."""
    default: Any = None
    """The tool's default; None: the key stays open without the argument."""


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool's argument that stands for one job key and nothing else, for writing changes down."""

    name: str
    values: Mapping[str, Any] | None = None
    """The tool's value for each value of the job, as text; None: they are equal."""
    also: Mapping[str, Any] = {}
    """Other arguments of the tool without which it has no effect, with their values."""


class Library(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the arguments of a library or tool mean: its file."""

    title: str
    """Its name for people."""
    argument: Mapping[str, Renamed | tuple[Renamed, ...]] = {}
    ignored: frozenset[str] = frozenset()
    """Arguments that are read elsewhere or have no effect on memory."""
    aliases: Mapping[str, tuple[str, ...]] = {}
    """Names of arguments by what they are for; earlier ones win."""
    record: Mapping[str, Mapping[str, Recorded | tuple[Recorded, ...]]] = {}
    """Job keys by group."""
    default: Mapping[str, Mapping[str, Default]] = {}
    """Defaults by group and argument."""
    tell: Mapping[str, str] = {}
    """How a job key is changed that no argument sets, by key; ``{value}`` is the new value."""
    doubt: Mapping[str, Mapping[str, Doubt]] = {}
    """By group and argument."""
    key: Mapping[str, str] = {}
    """The job key that depends on an argument, whatever else it does."""
    pattern: Mapping[str, Mapping[str, Effect]] = {}
    """What arguments that nobody reads may change, by group and a part of their names."""
    write: Mapping[str, Written] = {}
    """By job key."""
    derived: Mapping[str, str] = {}
    """Job keys that the tool computes from another argument, which stays as it is."""
    words: Mapping[str, Mapping[str, str]] = {}
    """What its names for things stand for, by subject: models, optimizers, attention."""
    always_flags: bool = False
    """Its files write arguments with dashes in front, as a command line does."""

    @property
    def names(self) -> list[str]:
        """Arguments that stand for one job key each."""
        return [*(key.name for key in self.write.values()), *self.derived.values()]

    def defaults(self, *groups: str) -> dict[str, Setting]:
        """Return the defaults of groups, later ones over earlier ones."""
        values = {name: value for group in groups for name, value in self.default[group].items()}
        return default_layer(values, f"{self.title}'s default")


class Scripts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What training scripts are read by: its own file."""

    names: Mapping[str, frozenset[str]]
    """Libraries, methods and arguments by what is known of them."""
    aliases: Mapping[str, Mapping[str, tuple[str, ...]]]
    """Alternative names of one argument, by subject; the first one that is present counts."""
    default: Mapping[str, Mapping[str, Default]]
    """Defaults of classes by their fields; ``none``: None."""
    config: Mapping[str, Mapping[str, Any]]
    """Defaults of transformers' configs by what the name of a class begins with: ``Llama`` of ``LlamaConfig``."""

    def defaults(self, subject: str) -> dict[str, Any]:
        """Return the defaults of a class."""
        return {name: None if value == "none" else value for name, value in self.default[subject].items()}


def read_file(name: str, kind: type[Kind]) -> Kind:
    """Return a file of the table, by its name without ``.toml``."""
    return msgspec.toml.decode(Path(__file__).with_name(f"{name}.toml").read_bytes(), type=kind)


@cache
def library(name: str) -> Library:
    """Return the arguments of a library or tool, by the name of its file."""
    return read_file(name, Library)


@cache
def scripts() -> Scripts:
    """Return what training scripts are read by."""
    return read_file("scripts", Scripts)


def known_defaults(name: str, table: Mapping[str, Default], versions: Mapping[str, str]) -> dict[str, Any]:
    """Return the defaults that hold in a library's version, without those that are none."""
    values = {argument: _of_version(name, default, versions) for argument, default in table.items()}
    return {argument: value for argument, value in values.items() if value is not None}


def _of_version(name: str, default: Default, versions: Mapping[str, str]) -> Any:
    found = default if not isinstance(default, Mapping) else None
    for version, value in default.items() if isinstance(default, Mapping) else ():
        major, minor = version_tuple(version) or (0, 0)
        found = value if is_at_least(name, (major, minor), versions) else found
    return None if found == "none" else found


def translate(layer: SettingsLayer, table: Library) -> tuple[dict[str, Setting], dict[str, Setting]]:
    """Return a tool's settings by transformers' names and by accelerate's, each with its origin.

    What the table does not name keeps its name: most tools pass transformers' arguments through.
    """
    taken = {*table.argument, *table.ignored}
    accelerate: dict[str, Setting] = {}
    trainer = {name: setting for name, setting in layer.items() if name not in taken}
    for name, rows in table.argument.items():
        setting = layer.get(name)
        for row in rows if isinstance(rows, tuple) else (rows,):
            word = _word(setting, row.words)
            if setting is None or (row.on is not None and not (word in row.when if row.when else as_bool(setting))):
                continue
            value = row.words.get(word, setting.value) if row.on is None else row.on
            side = accelerate if row.as_.startswith(_ACCELERATE) else trainer
            side.setdefault(row.as_.removeprefix(_ACCELERATE), setting.with_value(value))
    return trainer, accelerate


def record_arguments(table: Library, group: str, settings: LayeredSettings, findings: FindingCollector) -> None:
    """Record the job keys of a group that the settings decide."""
    for key, rows in table.record[group].items():
        for row in rows if isinstance(rows, tuple) else (rows,):
            setting = settings.find(*row.names)
            unset = settings.find_unset(*row.names) if key == _MICRO_BATCH else None
            if unset is not None and unset.written:
                findings.refuse(key, unset)  # no tool starts with a null batch
            if setting is None and row.default is not None:
                setting = Setting.default(row.default, f"{table.title}'s default {row.names[0]}")
            if setting is not None:
                _record(key, row, setting, findings)


def _record(key: str, row: Recorded, setting: Setting, findings: FindingCollector) -> None:
    if words := DTYPE_NAMES if row.kind == "dtype" else row.words:
        record_word(findings, key, setting, words)
    elif row.kind == "count":
        findings.record_count(key, setting)
    elif row.on is None and as_bool(setting) is not None:
        findings.record_from(setting, key, as_bool(setting))
    elif row.on is not None and as_bool(setting):
        findings.record_from(setting, key, row.on)


def record_word(findings: FindingCollector, key: str, setting: Setting, words: Mapping[str, Any]) -> None:
    """Record the job's value for a word; doubt an unknown word."""
    word = _word(setting, words)
    if word in words:
        findings.record_from(setting, key, words[word])
    else:
        findings.mark_uncertain(key, f"{setting.origin}: {setting.value!r} is not supported and is not counted.")


def _word(setting: Setting | None, words: Mapping[str, Any]) -> str:
    """Return an argument's value as one of ``words``; other spellings of true and false become those two."""
    word, means = as_word(setting) or "", as_bool(setting)
    return word if word in words or means is None else str(means).lower()


def doubt_arguments(table: Library, group: str, settings: LayeredSettings, findings: FindingCollector) -> None:
    """Warn of every argument of a group that is on and not counted, and mark the components that it concerns."""
    settings.find(*table.ignored)
    for first, doubt in table.doubt[group].items():
        for name in (first, *doubt.also):
            setting = settings.find(name) or settings.find(*settings.names(f"{name}."))
            if setting is not None and _holds(doubt, setting, settings):
                doubt.doubt(f"{setting.origin}: {doubt.why.format(value=setting.value)}", findings)


def _holds(doubt: Doubt, setting: Setting, settings: LayeredSettings) -> bool:
    word = as_word(setting) or ""
    if doubt.where == "off":
        holds = as_bool(setting) is False
    else:
        is_meant = not doubt.words or not {word, *words_of(setting)}.isdisjoint(doubt.words)
        holds = not _is_off(setting) and word not in doubt.off and is_meant
    if not holds or not doubt.with_:
        return holds
    beside = settings.find(*doubt.with_)
    return not _is_off(beside) and as_int(beside) != 1


def _is_off(setting: Setting | None) -> bool:
    return setting is None or as_bool(setting) is False or str(setting.value).strip().lower() in _OFF
