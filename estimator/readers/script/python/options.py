"""The command line as a script declares it: argparse, dataclasses of HfArgumentParser, click, typer, fire, absl."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...source import Setting, as_bool
from .operators import as_number
from .values import UNKNOWN, Attribute, Call, External, Function, Instance, Method, ScriptClass, Thing, plain

_COUNTED_ACTIONS = ("store_true", "store_false", "BooleanOptionalAction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One option as the script declares it."""

    default: Any
    origin: str
    kind: str | None = None
    """The type that its text becomes: ``int``, ``float``, ``bool``, ``str``; None: that of the default."""
    is_list: bool = False


class Options:
    """The options of a script.

    Args:
        given: the flags on the command line by name.
        words: the words before the first flag.
    """

    def __init__(self, given: Mapping[str, Setting], words: list[str]) -> None:
        self.given, self._words = given, list(words)
        self.declared: dict[str, Declared] = {}

    def defaults(self) -> Iterator[tuple[str, Setting]]:
        """Yield the defaults that are known; values may be None."""
        for name, declared in self.declared.items():
            value = plain(declared.default)
            if value is not UNKNOWN:
                yield name, Setting(value=value, origin=declared.origin)

    def find(self, name: str) -> Setting | None:
        """Return an option of the command line or its default, as the script gets it; None: unknown."""
        declared, given = self.declared.get(name), self.given.get(name)
        if given is None:
            value = declared.default if declared is not None else UNKNOWN
            return None if declared is None or value is UNKNOWN else Setting(value=value, origin=declared.origin)
        if declared is None:
            return given
        return given.with_value(convert(given.value, declared))

    def add_argument(self, call: Call) -> None:
        """Declare ``parser.add_argument("--batch", type=int, default=4)``."""
        flags = [word for word in call.args if isinstance(word, str)]
        name = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
        dest = call.value(None, "dest")
        key = dest if isinstance(dest, str) else name.lstrip("-").replace("-", "_")
        if not key:
            return
        action = call.value(None, "action")
        action = action.name if isinstance(action, External) else action
        if "default" in call.kwargs:
            default = call.kwargs["default"]
        elif action in ("store_true", "store_false"):
            default = action == "store_false"
        else:
            default = UNKNOWN if call.value(None, "required") else None
        kind = call.value(None, "type")
        word = kind.name if isinstance(kind, External) else None
        if action in _COUNTED_ACTIONS or isinstance(kind, Function) or (word and "bool" in word and word != "bool"):
            word = "flag"
        if not name.startswith("-"):
            if "default" not in call.kwargs and call.value(None, "nargs") not in ("?", "*"):
                default = UNKNOWN
            if self._words:
                default = convert(self._words.pop(0), Declared(default=None, origin="", kind=word))
        origin = f"{call.where}: default of {name}"
        is_list = call.value(None, "nargs") in ("+", "*") or isinstance(call.value(None, "nargs"), int)
        self.declared[key] = Declared(default=default, origin=origin, kind=word, is_list=is_list)
        for flag in flags:  # a short name on the command line
            short = flag.lstrip("-").replace("-", "_")
            if short != key and short in self.given and key not in self.given:
                self.given = {**self.given, key: self.given[short]}

    def declare_class(self, kind: ScriptClass, run: Any) -> list[str]:
        """Declare the fields of a dataclass; return their names."""
        for name, node in kind.fields.items():
            value = kind.find(name)
            before, run.module = run.module, kind.module
            origin = f"{run.location(node)}: default of {name}"
            run.module = before
            annotation = ast.unparse(node.annotation)
            word = next((each for each in ("bool", "int", "float", "str") if each in annotation), None)
            is_list = "list" in annotation.lower()
            if node.value is None:
                value = UNKNOWN
            word = "flag" if word == "bool" else word
            self.declared[name] = Declared(default=value, origin=origin, kind=None if is_list else word, is_list=is_list)
        return list(kind.fields)

    def of_function(self, function: Function, run: Any) -> dict[str, Setting]:
        """Return the options of the command line that a function's parameters stand for (fire, typer, tyro)."""
        found: dict[str, Setting] = {}
        arguments = function.node.args
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            default = function.defaults.get(parameter.arg, UNKNOWN)
            annotation = ast.unparse(parameter.annotation) if parameter.annotation is not None else ""
            word = next((each for each in ("bool", "int", "float", "str") if each in annotation), None)
            declared = Declared(
                default=default,
                origin=f"{run.location(parameter)}: default of {parameter.arg}",
                kind="flag" if word == "bool" else word,
            )
            if parameter.arg in self.given:
                given = self.given[parameter.arg]
                found[parameter.arg] = given.with_value(convert(given.value, declared))
            elif default is not UNKNOWN:
                found[parameter.arg] = Setting(value=default, origin=declared.origin)
        return found

    def click_option(self, call: Call) -> None:
        """Declare ``@click.option("--batch", default=4)`` for the function below it."""
        function = call.args[0]
        parser = Call(call.run, call.node, "add_argument", None, call.args[1:], dict(call.kwargs))
        if call.value(None, "is_flag") and "default" not in call.kwargs:
            parser.kwargs["default"] = False
        flags = [str(word).partition("/")[0] for word in parser.args if isinstance(word, str)]
        parser.args = [flag for flag in flags if flag.startswith("-")] or flags
        named = next((flag for flag in flags if not flag.startswith("-")), None)
        if named is not None:
            parser.kwargs["dest"] = named
        self.add_argument(parser)
        key = next(reversed(self.declared), "")
        found = self.find(key)
        if isinstance(function, Function) and key:
            setting = found or Setting(value=UNKNOWN, origin="")
            function.options = {**(function.options or {}), key: setting}


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
        return member if name not in self._options.declared else UNKNOWN

    def set_attribute(self, name: str, value: Any, call: Call) -> None:  # noqa: ARG002
        """Take an assignment to an option."""
        self.values[name] = value

    def item(self, key: Any) -> Any:
        """Return an option by its name (``vars(args)["batch"]``)."""
        return self.attribute(key) if isinstance(key, str) else UNKNOWN

    def set_item(self, key: Any, value: Any, call: Call) -> None:  # noqa: ARG002
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
        return {**{name: self.attribute(name) for name in names}, **self.values}

    def is_instance(self, kind: Any) -> bool | None:
        """Return whether it is of a class."""
        return kind is self.kind if isinstance(kind, ScriptClass) and self.kind is not None else None


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
        if call.name == "parse_args" and not self.kinds:
            return Parsed(self._options)
        return tuple(parse_class(self._options, kind, call) for kind in self.kinds)


def parse_class(options: Options, kind: Any, call: Call) -> Any:
    """Return an object of a class with the options of its fields."""
    if isinstance(kind, ScriptClass):
        names = options.declare_class(kind, call.run)
        return call.run.library.parsed(Parsed(options, kind, names), kind, call)
    return call.run.library.parsed(Parsed(options), kind, call)


def convert(value: Any, declared: Declared) -> Any:
    """Return the text of an option as the type that the script gives it."""
    if isinstance(value, list):
        return [convert(item, Declared(default=None, origin="", kind=declared.kind)) for item in value]
    kind = declared.kind
    if kind is None and isinstance(declared.default, bool | int | float):
        kind = {bool: "flag", int: "int", float: "float"}[type(declared.default)]
    if kind == "flag":
        known = as_bool(Setting(value=value, origin=""))
        return value if known is None else known
    if kind == "bool":
        return value if isinstance(value, bool) else bool(value)
    converted: Any = value
    if isinstance(value, str) and kind == "int":
        converted = as_number(value)
    elif isinstance(value, str) and kind == "float":
        try:
            converted = float(value)
        except ValueError:
            converted = UNKNOWN
    return [converted] if declared.is_list else converted


def instance_of(kind: ScriptClass, options: Options, call: Call) -> Instance:
    """Return an object of a dataclass whose fields the command line sets (tyro, simple-parsing)."""
    found = Instance(kind)
    for name in options.declare_class(kind, call.run):
        setting = options.find(name)
        found.values[name] = setting.value if setting is not None else UNKNOWN
    return found
