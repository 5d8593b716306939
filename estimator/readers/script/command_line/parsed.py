"""Results of a script's parsers: an object with the options, or one object for each class."""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ....common.errors import InputError
from ...source.data_files import layer_from_table, read_table
from ...source.evidence import MODEL_STATES, Setting
from ..python.values import (
    UNKNOWN,
    Attribute,
    Call,
    External,
    Function,
    Instance,
    Method,
    ScriptClass,
    Thing,
    plain,
    short_text,
)
from .options import FILE_FUNCTIONS, FileContents, OpenedFile, Options


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
        self._options.is_open |= call.name not in _PARSES
        if call.name in ("parse_json_file", "parse_yaml_file"):
            self._take_file(call)
        elif call.name not in _PARSES:
            sentence = (
                f"{call.where}: vramtop does not follow where {call.name}(...) gets its options; flags are counted."
            )
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
            sentence = f"{call.where}: the file that {call.name}() reads is not known; its settings are not counted."
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


# Configuration files that a script loads as tables: YAML, JSON and TOML, OmegaConf, hydra with its overrides.


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


# Functions that declare options, parse the command line, or run a function of the script with what it says.


_RUNS_A_FUNCTION = ("Fire", "notebook_launcher", "spawn", "Process", "Thread", "start_processes", "debug_launcher")


_STARTS_PROCESSES = ("notebook_launcher", "spawn", "start_processes")


def _note_processes(call: Call) -> None:
    """Note how many processes the script starts by itself; by no number where it is only known when it runs."""
    number = call.value(2, "nprocs", "num_processes", default=1)
    value = number if isinstance(number, int) else "all GPUs"
    origin = f"{call.where}: {call.name}(...) starts the processes"
    call.run.library.notes.written["script_processes"] = Setting(value=value, origin=origin)


def _run_function(options: Options, call: Call) -> Any:
    """Follow the function that ``fire.Fire`` and the like are given."""
    if call.name in _STARTS_PROCESSES:
        _note_processes(call)
    function = call.value(0, "fn", "target", "function", "component")
    if isinstance(function, Function):
        given = call.value(1, "args", default=())
        args = list(given) if isinstance(given, list | tuple) else []
        args = [0, *args] if call.name == "spawn" else args
        if call.name == "Fire":
            function.options = options.of_function(function, call.run)
        return call.run.call_function(function, args, dict(call.kwargs.get("kwargs") or {}))
    return UNKNOWN


def _run_app(options: Options, call: Call) -> Any:
    """Follow ``app.run(main)`` and ``typer.run(main)``."""
    function = call.value(0)
    if isinstance(function, Function):
        function.options = function.options or options.of_function(function, call.run)
        return call.run.call_function(function, [UNKNOWN] if "app" in call.path else [], {})
    return call.run.library.unknown(call)


def _from_class(options: Options, call: Call) -> Any:
    """Follow ``tyro.cli(Config)`` and simple-parsing's ``parse(Config)``."""
    kind = call.value(0, "config_class")
    if isinstance(kind, ScriptClass):
        return instance_of(kind, options, call)
    if isinstance(kind, Function) and call.name == "cli":
        return _run_app(options, call)
    return parse_class(options, kind, call) if isinstance(kind, External) else call.run.library.unknown(call)


def _parser(options: Options, call: Call) -> Any:
    options.has_unknown_names |= call.value(None, "allow_abbrev", default=True) is not True
    kinds = call.value(0, "dataclass_types", default=[])
    if isinstance(kinds, str):  # the program's name, argparse's first argument
        kinds = []
    return Parser(options, list(kinds) if isinstance(kinds, list | tuple) else [kinds])


def _add_argument(options: Options, call: Call) -> Any:
    options.add_argument(call)
    return UNKNOWN


def _parse_args(options: Options, call: Call) -> Any:
    parsed = Parsed(options)
    return (parsed, UNKNOWN) if call.name == "parse_known_args" else parsed


def _define_flag(options: Options, call: Call) -> Any:
    name = call.value(0, "name")
    if isinstance(name, str):
        call.args = [f"--{name}"]
        kind = call.name.removeprefix("DEFINE_")
        word = {"integer": "int", "bool": "flag", "boolean": "flag"}.get(kind, kind)
        default = call.nodes.get(1)
        value = call.run.evaluate(default, call.scope) if default is not None else call.kwargs.get("default")
        call.kwargs = {"default": value, "type": External(word)}
        options.add_argument(call)
    return UNKNOWN


def _field(options: Options, call: Call) -> Any:
    """Return the default of a dataclass's field."""
    if "default" in call.kwargs:
        return call.kwargs["default"]
    factory = call.kwargs.get("default_factory")
    if isinstance(factory, External) and factory.path in ("list", "dict"):
        return [] if factory.path == "list" else {}
    if factory is None:
        return call.value(0, default=UNKNOWN)
    return call.run.call(factory, Call(call.run, call.node, "", None, scope=call.scope))


def _first(options: Options, call: Call) -> Any:
    return call.value(0, "default", default=UNKNOWN)


def _variables(options: Options, call: Call) -> Any:
    value = call.value(0)
    if isinstance(value, Instance):
        return value.values
    return value if isinstance(value, Thing | dict) else UNKNOWN


def _namespace(options: Options, call: Call) -> Any:
    found = Instance(ScriptClass("SimpleNamespace", _NO_CLASS, (), call.run.module))
    found.values = {**(call.value(0) if isinstance(call.value(0), dict) else {}), **call.kwargs}
    return found


def _decorator(options: Options, call: Call) -> Any:
    """Follow a decorator: options of click and typer become a function's parameters."""
    name, target = call.path[1:], call.value(0)
    if name in ("option", "argument") and isinstance(target, Function):
        options.click_option(call)
    elif name == "command" and isinstance(target, Function):
        target.options = target.options or options.of_function(target, call.run)
    return UNKNOWN


_NO_CLASS: Any = None
_FunctionsHandler = Callable[[Options, Call], Any]
_TRUE_ON_A_GPU = ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available")
"""Functions that return True on every GPU since 2020."""
_OTHER_DEVICES = ("torch_xla", "torch_npu", "torch_xpu", "torch_tpu", "torch_mlu", "torch_hpu", "torch_musa")
_OTHER_MODULES = ("backends.mps", "xpu", "mps", "npu", "hpu")


def _answer(*, yes: bool) -> _FunctionsHandler:
    return lambda _, __: yes


OPTION_FUNCTIONS: Mapping[str, _FunctionsHandler] = {
    **dict.fromkeys(_RUNS_A_FUNCTION, _run_function),
    **dict.fromkeys(("HfArgumentParser", "TrlParser", "ArgumentParser", "H4ArgumentParser"), _parser),
    **dict.fromkeys(("parse_args", "parse_known_args", "parse_args_into_dataclasses"), _parse_args),
    **dict.fromkeys(("DEFINE_integer", "DEFINE_float", "DEFINE_string", "DEFINE_bool"), _define_flag),
    **dict.fromkeys(("DEFINE_boolean", "DEFINE_enum"), _define_flag),
    **dict.fromkeys(("SimpleNamespace", "Namespace", "EasyDict", "AttrDict", "DotMap"), _namespace),
    **dict.fromkeys(("cli", "parse"), _from_class),
    **dict.fromkeys(_TRUE_ON_A_GPU, _answer(yes=True)),
    **{f"is_{name}_available": _answer(yes=False) for name in _OTHER_DEVICES},
    "add_argument": _add_argument,
    "field": _field,
    "Field": _first,
}
"""By the last part of a function's name."""
OPTION_PATHS: Mapping[str, _FunctionsHandler] = {
    "torch.cuda.is_available": _answer(yes=True),
    **{f"torch.{name}.is_available": _answer(yes=False) for name in _OTHER_MODULES},
    **dict.fromkeys(("vars", "asdict", "dataclasses.asdict"), _variables),
    **dict.fromkeys(("typer.run", "app.run", "absl.app.run"), _run_app),
    **dict.fromkeys(("typer.Option", "typer.Argument", "Option", "Argument"), _first),
    **FILE_FUNCTIONS,
    **TABLE_FUNCTIONS,
    **dict.fromkeys(("@option", "@argument", "@command"), _decorator),
}
"""By a function's dotted name; decorators with ``@``."""
