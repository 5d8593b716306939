"""Functions that declare options, parse the command line, or run a function of the script with what it says."""

from collections.abc import Callable, Mapping
from typing import Any

from ...source import Setting
from ..python import UNKNOWN, Call, External, Function, Instance, ScriptClass, Thing
from .config_tables import TABLE_FUNCTIONS
from .executed_files import FILE_FUNCTIONS
from .options import Options
from .parsed import Parsed, Parser, instance_of, parse_class

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
_Handler = Callable[[Options, Call], Any]
_TRUE_ON_A_GPU = ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available")
"""Functions that return True on every GPU since 2020."""
_OTHER_DEVICES = ("torch_xla", "torch_npu", "torch_xpu", "torch_tpu", "torch_mlu", "torch_hpu", "torch_musa")
_OTHER_MODULES = ("backends.mps", "xpu", "mps", "npu", "hpu")


def _answer(*, yes: bool) -> _Handler:
    return lambda _, __: yes


OPTION_FUNCTIONS: Mapping[str, _Handler] = {
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
OPTION_PATHS: Mapping[str, _Handler] = {
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
