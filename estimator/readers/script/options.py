"""The options that a script declares, and their values on the command line: argparse, dataclasses, click, functions."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from ..arguments.table import scripts
from ..source.old_calls import old_arguments
from ..source.settings import Setting, as_bool, as_float
from ..source.versions import transformers_defaults
from ..trl.defaults import argument_defaults, trl_defaults
from ..trl.methods import TRAINER_NAMES, method_of_class
from .operators import as_number
from .values import UNKNOWN, Attribute, Call, Class, Function, Name, Thing, plain

_SWITCHES = ("store_true", "store_false", "BooleanOptionalAction")
_WORDS = ("bool", "int", "float", "str")
TRAINING_CONFIG = re.compile(rf"[A-Za-z0-9]*TrainingArguments|(Async)?({TRAINER_NAMES})(v2)?Config|ModelConfig")
"""Classes of trainers' arguments."""
MEMORY_ARGUMENTS = scripts().names["memory_arguments"]
"""Options of the libraries' classes that decide the memory, which a command line may abbreviate."""


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """One option as the script declares it."""

    default: Any
    origin: str
    kind: str | None = None
    """The type that its text becomes: ``int``, ``float``, ``flag``, ``bool``, ``str``; None: that of the default."""
    is_list: bool = False


class Options:
    """The options of a script.

    Args:
        given: the flags on the command line by name.
    """

    def __init__(self, given: Mapping[str, Setting]) -> None:
        self.given = given
        self.declared: dict[str, Declared] = {}
        self.file: str | None = None
        """The file that its parser takes the options from, in place of the command line."""
        self.used: set[str] = set()
        """Options that the script was seen to use."""
        self.assigned: dict[str, Setting] = {}
        """Options that the script assigns after it has parsed its command line; the value may be UNKNOWN."""

    def defaults(self) -> Iterator[tuple[str, Setting]]:
        """Yield options with a known value: the command line's, or the default."""
        for name in self.declared:
            found = self.find(name, uses=False)
            value = plain(found.value) if found is not None else UNKNOWN
            if found is not None and value is not UNKNOWN and value is not None:
                yield name, found.with_value(value)

    def made_true(self) -> Iterator[tuple[str, Setting]]:
        """Yield options that the command line calls false and argparse's ``type=bool`` makes true: any text is."""
        for name, declared in self.declared.items():
            given = self.given.get(name)
            if given is not None and declared.kind == "bool" and as_bool(given) is False and given.value != "":
                yield name, Setting(value=True, origin=f"{given.origin} = {given.value}, which type=bool makes true")

    def find(self, name: str, *, uses: bool = True) -> Setting | None:
        """Return an option of the command line or its default, as the script gets it; None: unknown."""
        if uses:
            self.used.add(name)
        if name in self.assigned:
            return self.assigned[name] if self.assigned[name].value is not UNKNOWN else None
        declared, given = self.declared.get(name), self.given.get(name)
        if given is not None:
            word = {"true": True, "false": False}.get(str(given.value).lower(), given.value)
            return given.with_value(word if declared is None else _convert(given.value, declared))
        if declared is None or declared.default is UNKNOWN:
            return None
        return Setting(value=declared.default, origin=declared.origin)

    def is_unseen(self, option: Setting, value: Any) -> bool:
        """Return True for a flag that nothing was seen to read, while what has its name has another value."""
        name = next((name for name, each in self.given.items() if each.origin == option.origin), None)
        return name is not None and name not in {*self.used, *self.declared} and str(option.value) != str(value)

    def has_file(self, path: str) -> bool:
        """Return True if the settings of a file are among the given options."""
        return any(each.origin.startswith(f"{PurePath(path).name}: ") for each in self.given.values())

    def add_argument(self, call: Call) -> None:
        """Declare ``parser.add_argument("--batch", type=int, default=4)``."""
        flags = [word.partition("/")[0] for word in call.args if isinstance(word, str)]
        name = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
        named = [flag for flag in flags if not flag.startswith("-") and name.startswith("-")]  # click's
        dest = call.value(None, "dest", default=next(iter(named), None))
        key = dest if isinstance(dest, str) else name.lstrip("-").replace("-", "_")
        if not key:
            return
        action, kind = call.value(None, "action"), call.value(None, "type")
        action = action.name if isinstance(action, Name) else action
        number = call.value(None, "nargs")
        default: Any = UNKNOWN if call.value(None, "required") else None
        if "default" in call.kwargs:
            default = call.kwargs["default"]
        elif action in ("store_true", "store_false") or call.value(None, "is_flag"):
            default = action == "store_false"
        word = kind.name if isinstance(kind, Name) else None
        if action in _SWITCHES or isinstance(kind, Function) or (word and "bool" in word and word != "bool"):
            word = "flag"
        if not name.startswith("-"):
            default = UNKNOWN  # one of the words, whose order is not followed
        is_list = number in ("+", "*") or isinstance(number, int)
        origin = f"{call.where}: default of {name}"
        self.declared[key] = Declared(default=default, origin=origin, kind=word, is_list=is_list)
        for flag in flags:
            short = flag.lstrip("-").replace("-", "_")
            if short != key and short in self.given and key not in self.given:
                self.given = {**self.given, key: self.given[short]}

    def declare_fields(self, kind: Class, run: Any) -> None:
        """Declare the fields of a dataclass."""
        for name, node in kind.fields.items():
            value = kind.find(name) if node.value is not None else UNKNOWN
            self.declared[name] = _annotated(node.annotation, value, f"{run.location(node)}: default of {name}")

    def of_function(self, function: Function, run: Any) -> dict[str, Any]:
        """Return the values of the options that a function's parameters stand for (click, fire, typer, tyro)."""
        found: dict[str, Any] = {}
        arguments = function.node.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            default = function.defaults.get(each.arg, UNKNOWN)
            origin = f"{run.location(each)}: default of {each.arg}"
            if each.arg not in self.declared:
                self.declared[each.arg] = _annotated(each.annotation, default, origin)
            setting = self.find(each.arg)
            found[each.arg] = setting.value if setting is not None else UNKNOWN
        return found


def _annotated(annotation: ast.expr | None, default: Any, origin: str) -> Declared:
    """Return an option whose type an annotation names."""
    text = ast.unparse(annotation) if annotation is not None else ""
    word = next((each for each in _WORDS if each in text), None)
    is_list = "list" in text.lower()
    word = None if is_list else "flag" if word == "bool" else word
    return Declared(default=default, origin=origin, kind=word, is_list=is_list)


def _convert(value: Any, declared: Declared) -> Any:
    """Return the text of an option as the type that the script gives it."""
    if isinstance(value, list):
        return [_convert(item, Declared(default=None, origin="", kind=declared.kind)) for item in value]
    kind = declared.kind or {bool: "flag", int: "int", float: "float"}.get(type(declared.default))
    converted: Any = value
    if kind == "flag":
        known = as_bool(Setting(value=value, origin=""))
        converted = value if known is None else known
    elif kind == "bool":
        converted = value != ""  # argparse makes True of any text, "False" too
    elif kind == "int":
        converted = as_number(value)
    elif kind == "float" and isinstance(value, str):
        number = as_float(Setting(value=value, origin=""))
        converted = UNKNOWN if number is None else number
    words = _words(converted) if declared.is_list else None
    return words or ([converted] if declared.is_list else converted)


def _words(text: Any) -> list[Any] | None:
    """Return the items of ``["q_proj", "v_proj"]``, which fire and others take for a list; None: it is none."""
    if not isinstance(text, str) or not (text.startswith("[") and text.endswith("]")):
        return None
    return [word for each in text[1:-1].split(",") if (word := each.strip().strip("'\""))]


LIBRARIES = scripts().names["libraries"]
"""Libraries whose functions are known by name: those of a script that lies in a library's own repository too."""


class Parsed(Thing):
    """The parsed options: ``args``.

    Args:
        options: the script's options.
        kind: the class whose fields they are; None: all options.
        defaults: values of a library's class for options that the command line lacks.
    """

    def __init__(self, options: Options, kind: Class | None = None, defaults: Mapping[str, Any] | None = None) -> None:
        self._options, self._kind, self._defaults = options, kind, defaults or {}

    def attribute(self, name: str) -> Any:
        """Return an option's value."""
        found = self._options.find(name)
        if found is not None:
            return found.value
        if name in self._defaults:
            return UNKNOWN if name in self._options.assigned else self._defaults[name]
        return UNKNOWN if self.has(name) else Attribute(self, name)

    def set_attribute(self, name: str, value: Any, call: Call) -> None:
        """Take an assignment to an option."""
        self._options.assigned[name] = call.setting(0)

    def item(self, key: Any) -> Any:
        """Return an option by its name (``vars(args)["batch"]``)."""
        return self.attribute(key) if isinstance(key, str) and self.has(key) else UNKNOWN

    def method(self, call: Call) -> Any:
        """Return the result of a method of the script's own class, or all options for ``args.to_dict()``."""
        own = self._kind.find(call.name) if self._kind is not None else UNKNOWN
        if isinstance(own, Function):
            return call.run.call(own, call.after(self))
        return self.as_table() if call.name in ("to_dict", "_asdict") else UNKNOWN

    def has(self, name: Any) -> bool:
        """Return whether there is an option of a name."""
        options = self._options
        return any(name in each for each in (options.declared, options.given, options.assigned))

    def as_table(self) -> dict[str, Any]:
        """Return all options by name."""
        names = self._kind.fields if self._kind is not None else self._options.declared
        return {name: self.attribute(name) for name in (*self._defaults, *names)}


class Parser(Thing):
    """``ArgumentParser()``, or ``HfArgumentParser((ModelArguments, TrainingArguments))``.

    Args:
        call: the call that makes it.
    """

    def __init__(self, call: Call) -> None:
        self._options = call.notes.options
        kinds = call.value(0, "dataclass_types", default=[]) if call.name != "ArgumentParser" else []
        self._kinds: list[Any] = list(kinds) if isinstance(kinds, list | tuple) else [kinds]
        """The classes that it makes objects of; empty: one object with all options."""

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Declare an option, or return the parsed objects, one for each class."""
        if call.name == "add_argument":
            self._options.add_argument(call)
        elif call.name.startswith("add_"):  # a group, or parsers of subcommands
            return self
        elif call.name == "set_defaults":
            for name, value in call.kwargs.items():
                origin = f"{call.where}: set_defaults({name}=...)"
                self._options.declared[name] = Declared(default=value, origin=origin)
        return self._parse(call) if call.name.startswith("parse") else UNKNOWN

    def _parse(self, call: Call) -> Any:
        own_words = call.args and call.name.startswith("parse_args")  # words in place of the command line
        self._options.used |= {"config"} if call.name == "parse_args_and_config" else set()
        is_file = call.name in ("parse_json_file", "parse_yaml_file")
        path = call.value(0, "json_file", "yaml_file")
        is_given = isinstance(path, str) and self._options.has_file(path)
        if is_file and isinstance(path, str):
            self._options.file = path
        if own_words or (is_file and not is_given) or call.name == "parse_dict":
            call.doubt(f"vramtop does not follow where {call.name}(...) gets its options; flags are counted.")
        if not self._kinds:
            parsed = Parsed(self._options)
            return (parsed, UNKNOWN) if call.name == "parse_known_args" else parsed
        found = tuple(_parse_class(kind, call) for kind in self._kinds)
        if call.value(None, "return_remaining_strings") is True:
            return (*found, UNKNOWN)
        return found[0] if call.name == "parse" and len(found) == 1 else found


def _parse_class(kind: Any, call: Call) -> Any:
    """Return an object of a class with the options of its fields."""
    options = call.notes.options
    if isinstance(kind, Name):
        root, is_config = kind.path.partition(".")[0], TRAINING_CONFIG.fullmatch(kind.name) is not None
        is_known = root in LIBRARIES or (root == kind.name and is_config)
        if not is_known:
            sentence = f"the defaults of {kind.path} are in another file, which vramtop does not read."
            call.doubt(sentence)
            if is_config:
                batch = Setting(value=UNKNOWN, origin=f"{call.where}: {sentence}")
                call.notes.hints.setdefault("per_device_train_batch_size", batch)
        return _parse_library_class(kind.name, call)
    if not isinstance(kind, Class):
        return UNKNOWN
    options.declare_fields(kind, call.run)
    base = next(kind.library_bases(), None)
    made = Parsed(options, kind) if base is None else _parse_library_class(base.rpartition(".")[2], call)
    finish = kind.find("__post_init__")
    if isinstance(finish, Function):
        call.run.call(finish, Call(call.run, call.node, "__post_init__", None, [made]))
    return made


def _parse_library_class(name: str, call: Call) -> Parsed:
    """Return the object of a library's class with the options of the command line."""
    notes, options, method = call.notes, call.notes.options, method_of_class(name)
    if TRAINING_CONFIG.fullmatch(name) is None:
        return Parsed(options)
    notes.called.add(name)
    if name == "ModelConfig":
        return Parsed(options, None, {**scripts().defaults("model"), **argument_defaults(notes.versions)})
    given = [each for each in options.given if each not in options.declared]
    for pair in (("transformers", "TrainingArguments"), ("trl", name)):
        for row, option in old_arguments(*pair, given):
            notes.old_calls.setdefault(row, options.given[option].origin)
    library = transformers_defaults(notes.versions)
    sizes = ("per_device_train_batch_size", "gradient_accumulation_steps")
    defaults = scripts().defaults("training") | {each: library[each].value for each in sizes if each in library}
    if method is not None:
        own = trl_defaults(method.name, notes.versions)
        defaults |= {each: setting.value for each, setting in own.items()} | argument_defaults(notes.versions)
        defaults["bf16"] = defaults.get("bf16_unless_fp16", False)
    return Parsed(options, None, defaults)


def run_function(call: Call) -> Any:
    """Follow the function that ``fire.Fire``, ``typer.run``, ``mp.spawn`` and the like are given."""
    function, options = call.value(0, "fn", "target", "function", "component", "main", "f"), call.notes.options
    if isinstance(function, Class) and call.name == "cli":
        return _parse_class(function, call)
    if not isinstance(function, Function):
        return UNKNOWN
    if call.name in ("Fire", "cli", "run"):
        function.options = function.options or options.of_function(function, call.run)
    given = call.value(1, "args", default=())
    args = [0] * (call.name == "spawn") + (list(given) if isinstance(given, list | tuple) else [])
    return call.run.call(function, Call(call.run, call.node, function.name, None, args))


def field(call: Call) -> Any:
    """Return the default of a dataclass's field, or of an option of typer."""
    factory = call.value(None, "default_factory")
    if factory is None or "default" in call.kwargs:
        return call.value(0, "default", default=UNKNOWN)
    return call.run.call(factory, Call(call.run, call.node, "", None, scope=call.scope))
