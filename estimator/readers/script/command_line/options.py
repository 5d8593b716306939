"""The options that a script declares, and their values on the command line: argparse, dataclasses, click, functions."""

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...source import Setting, as_bool
from ..python import UNKNOWN, Call, External, Function, ScriptClass, as_number, plain
from .class_options import options_of_class

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
        arguments: the words of the command line.
    """

    def __init__(self, given: Mapping[str, Setting], arguments: Sequence[str]) -> None:
        self.given, self.arguments = given, arguments
        self._words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
        self.declared: dict[str, Declared] = {}
        self.names: set[str] = set()
        """Names that the command line may have, and may abbreviate as argparse allows; empty: none are abbreviated."""
        self.has_unknown_names = False
        """It has options besides, or argparse is told to allow no abbreviations."""
        self.looked_up: list[str] = []
        """Options that the script looked at in the condition that is being followed."""
        self.assigned: dict[str, Setting] = {}
        """Options that the script assigns after it has parsed its command line, and not from an unknown value."""
        self.decisive: set[str] = set()
        """Options that decided a condition."""

    def defaults(self) -> Iterator[tuple[str, Setting]]:
        """Yield options as the script leaves them, with a known default, or as the command line has them.

        Their values may be None.
        """
        yield from self.assigned.items()
        for name, declared in self.declared.items():
            if name in self.assigned:
                continue
            if name in self.given and (given := self.find(name)) is not None:
                yield name, given
                continue
            value = plain(declared.default)
            if value is not UNKNOWN:
                yield name, Setting(value=value, origin=declared.origin)

    def find(self, name: str) -> Setting | None:
        """Return an option of the command line or its default, as the script gets it; None: unknown."""
        declared, given = self.declared.get(name), self.given.get(name)
        self.looked_up.append(name)
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
        self.names.update(flag.lstrip("-").replace("-", "_") for flag in flags if flag.startswith("--"))
        for flag in flags:  # a short name on the command line
            short = flag.lstrip("-").replace("-", "_")
            if short != key and short in self.given and key not in self.given:
                self.given = {**self.given, key: self.given[short]}

    def take_class(self, name: str) -> None:
        """Take the names of the options that a parser makes of a library's class."""
        names = options_of_class(name)
        self.names |= names
        self.has_unknown_names |= not names

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
            self.names.add(name)
            self.declared[name] = Declared(
                default=value, origin=origin, kind=None if is_list else word, is_list=is_list
            )
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
                is_list="list" in annotation.lower(),
            )
            if parameter.arg in self.given:
                self.decisive.add(parameter.arg)
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
        self.decisive.add(key)
        if isinstance(function, Function) and key:
            setting = found or Setting(value=UNKNOWN, origin="")
            function.options = {**(function.options or {}), key: setting}


def convert(value: Any, declared: Declared) -> Any:
    """Return the text of an option as the type that the script gives it."""
    if isinstance(value, list):
        return [convert(item, Declared(default=None, origin="", kind=declared.kind)) for item in value]
    if declared.is_list and isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        return [word.strip().strip("'\"") for word in value[1:-1].split(",") if word.strip()]  # as fire reads it
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
