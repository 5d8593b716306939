"""Results of a script's parsers: an object with the options, or one object for each class."""

from typing import Any

from ....common import InputError
from ...source import MODEL_STATES, Setting, layer_from_table, read_table
from ..python import UNKNOWN, Attribute, Call, Function, Instance, Method, ScriptClass, Thing, plain, short_text
from .options import Options


class Parsed(Thing):
    """The parsed options: ``args``.

    Args:
        options: the script's options.
        kind: the class whose fields they are; None: all options.
    """

    def __init__(self, options: Options, kind: ScriptClass | None = None, names: list[str] | None = None) -> None:
        self._options, self.kind, self._names = options, kind, names
        self.values: dict[str, Any] = {}

    def option(self, name: str) -> Setting | None:
        """Return an option or its default; None: unknown, or assigned by the script."""
        return self._options.find(name) if name not in self.values else None

    def attribute(self, name: str) -> Any:
        """Return an option's value."""
        if name in self.values:
            return self.values[name]
        found = self._options.find(name)
        if found is not None:
            return found.value
        member = self.kind.find(name) if self.kind is not None else UNKNOWN
        if isinstance(member, Function):
            return Method(member, (self,))
        if name in ("items", "keys", "get", "pop", "update", "to_dict", "copy", "_get_kwargs"):
            return Attribute(self, name)
        if member is UNKNOWN and any(each.startswith(f"{name}.") for each in self._options.declared):
            return _Group(self, name)
        return member if name not in self._options.declared else UNKNOWN

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to an option."""
        self.values[name] = value
        known = plain(value)
        if known is not UNKNOWN:
            text = f"{short_text(call.node)} = {known!r}"
            self._options.assigned[name] = Setting(value=known, origin=f"{call.where}: {text}")
        else:
            self._options.assigned.pop(name, None)

    def item(self, key: Any) -> Any:
        """Return an option by its name (``vars(args)["batch"]``)."""
        return self.attribute(key) if isinstance(key, str) else UNKNOWN

    def set_item(self, key: Any, value: Any, call: Call) -> None:
        """Take an assignment to an option."""
        if isinstance(key, str):
            self.values[key] = value

    def method(self, call: Call) -> Any:
        """Return the result of a table's method."""
        name = call.value(0)
        if call.name in ("get", "pop") and isinstance(name, str):
            found = self.attribute(name)
            return call.value(1, default=None) if found is UNKNOWN and not self.has(name) else found
        if call.name == "items":
            return list(self.as_table().items())
        if call.name == "to_dict":
            return self.as_table()
        if call.name == "update":
            self.values.update({**(name if isinstance(name, dict) else {}), **call.kwargs})
        return self if call.name == "copy" else UNKNOWN

    def has(self, name: str) -> bool:
        """Return whether there is an option of a name."""
        return name in self.values or name in self._options.declared or name in self._options.given

    def as_table(self) -> dict[str, Any]:
        """Return all options by name."""
        names = self._names if self._names is not None else list(self._options.declared)
        self._options.decisive.update(name for name in names if "." in name)  # they go on as tables in tables
        return {**{name: self.attribute(name) for name in names}, **self.values}

    def is_instance(self, kind: Any) -> bool | None:
        """Return whether it is of a class."""
        return kind is self.kind if isinstance(kind, ScriptClass) and self.kind is not None else None


class _Group(Thing):
    """Options whose names begin alike: ``args.model`` of ``--model.name``."""

    def __init__(self, parsed: Parsed, name: str) -> None:
        self._parsed, self._name = parsed, name

    def attribute(self, name: str) -> Any:
        """Return an option's value."""
        return self._parsed.attribute(f"{self._name}.{name}")

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to an option."""
        self._parsed.set_attribute(f"{self._name}.{name}", value, call)


_PARSES = ("parse", "parse_args", "parse_known_args", "parse_args_into_dataclasses", "parse_args_and_config")
"""Methods of parsers that take the command line, or its ``--config``."""


class Parser(Thing):
    """``HfArgumentParser((ModelArguments, TrainingArguments))``, which makes objects of classes.

    Args:
        options: the script's options.
        kinds: the classes.
    """

    def __init__(self, options: Options, kinds: list[Any]) -> None:
        self._options, self.kinds = options, kinds

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Return the parsed objects, one for each class."""
        if call.name == "add_argument":
            self._options.add_argument(call)
            return UNKNOWN
        if not call.name.startswith("parse"):
            return UNKNOWN
        if call.name in ("parse_json_file", "parse_yaml_file"):
            self._take_file(call)
        elif call.name not in _PARSES:
            sentence = f"{call.where}: what {call.name}(...) takes the options from is not followed; flags are counted."
            call.run.library.notes.assume(sentence, *MODEL_STATES, "activations", "logits")
        if not self.kinds:
            parsed = Parsed(self._options)
            return (parsed, UNKNOWN) if call.name.startswith("parse_known") else parsed
        found = tuple(parse_class(self._options, kind, call) for kind in self.kinds)
        return found[0] if call.name == "parse" and len(found) == 1 else found  # as parsers derived from it do

    def _take_file(self, call: Call) -> None:
        """Take the settings of a file that the script parses in place of a command line."""
        name = call.value(0, "json_file", "yaml_file")
        path = call.run.find_file(name) if isinstance(name, str) else None
        try:
            table = read_table(path) if path is not None else None
        except InputError:
            table = None
        if path is None or table is None:
            sentence = (
                f"{call.where}: the file that {call.name}() reads is not known, and its settings are not counted."
            )
            call.run.library.notes.doubt(sentence, *MODEL_STATES, "activations", "logits")
            return
        settings = layer_from_table(table, source=path.name)
        self._options.given = {**settings, **self._options.given}
        for key, setting in settings.items():
            call.run.library.notes.written.setdefault(key, setting)


def parse_class(options: Options, kind: Any, call: Call) -> Any:
    """Return an object of a class with the options of its fields."""
    if isinstance(kind, ScriptClass):
        names = options.declare_class(kind, call.run)
        made = call.run.library.parsed(Parsed(options, kind, names), kind, call)
        call.run.finish_dataclass(kind, made)
        return made
    return call.run.library.parsed(Parsed(options), kind, call)


def instance_of(kind: ScriptClass, options: Options, call: Call) -> Instance:
    """Return an object of a dataclass whose fields the command line sets (tyro, simple-parsing)."""
    found = Instance(kind)
    for name in options.declare_class(kind, call.run):
        setting = options.find(name)
        found.values[name] = setting.value if setting is not None else UNKNOWN
    return found
