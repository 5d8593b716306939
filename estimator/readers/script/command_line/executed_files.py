"""Files that a script opens and executes over its own names, as nanoGPT's configurator does, and its names as a table.

A file is parsed like the script itself; nothing is executed and nothing is unpickled.
"""

import pickletools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ....common import TooLargeError, read_file
from ...source import MODEL_STATES, Setting
from ..python import MAX_BYTES, PLAIN, UNKNOWN, Attribute, Call, Scope, ScriptModule, Thing, parse
from .options import Options

_MAX_DEPTH = 6
"""Files that execute files."""
_MAX_TABLE_BYTES = 4 << 20
_TABLE_SUFFIXES = (".pkl", ".pickle")
_PREPARED = ("train.bin", "train.npy", "train.pt")
"""Data that lies beside such a table once it is prepared."""


class OpenedFile(Thing):
    """``open("configurator.py")``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Return the contents, which can only be executed."""
        return FileContents(self.path) if call.name == "read" and not call.args else UNKNOWN


class FileContents(Thing):
    """The contents of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)


class PickledTable(Thing):
    """``pickle.load(file)``: numbers of a table are found in the file's instructions, which are not followed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)

    def method(self, call: Call) -> Any:
        """Return the result of ``get``."""
        return self.item(call.value(0)) if call.name == "get" else UNKNOWN

    def item(self, key: Any) -> Any:
        """Return the number that follows a key."""
        return _number_after(self._path, key) if isinstance(key, str) else UNKNOWN


class OwnNames(Thing):
    """``globals()``: the names of a module.

    Args:
        scope: the module's.
        options: the script's, for the flags that names are set by.
    """

    def __init__(self, scope: Scope, options: Options) -> None:
        self.scope, self._options = scope, options

    def attribute(self, name: str) -> Any:
        """Return a method."""
        return Attribute(self, name)

    def elements(self) -> list[Any]:
        """Return the names."""
        return list(self.scope.names)

    def has(self, name: Any) -> bool:
        """Return whether there is a name."""
        return isinstance(name, str) and name in self.scope.names

    def item(self, key: Any) -> Any:
        """Return the value of a name."""
        return self.scope.names.get(key, UNKNOWN) if isinstance(key, str) else UNKNOWN

    def set_item(self, key: Any, value: Any, call: Call) -> None:
        """Assign a name; the flag of that name on the command line is where its value comes from."""
        if isinstance(key, str):
            self.scope.assign(key, value)
            given = self._options.given.get(key)
            if given is not None and isinstance(value, PLAIN):
                self.scope.origins[key] = given.with_value(value)
            else:
                self.scope.places[key] = call.where

    def method(self, call: Call) -> Any:
        """Return the result of a table's method."""
        if call.name in ("items", "keys", "values"):
            pairs = list(self.scope.names.items())
            return pairs if call.name == "items" else [pair[call.name == "values"] for pair in pairs]
        if call.name == "get":
            found = self.item(call.value(0))
            return call.value(1, default=None) if found is UNKNOWN and not self.has(call.value(0)) else found
        if call.name == "update" and isinstance(call.value(0), dict):
            for key, value in call.args[0].items():
                self.set_item(key, value, call)
        return UNKNOWN


class Signature(Thing):
    """``inspect.signature(torch.optim.AdamW)``, whose parameters scripts look for: those of torch since version 2."""

    _PARAMETERS = ("params", "lr", "betas", "eps", "weight_decay", "fused", "foreach", "capturable", "maximize")

    def attribute(self, name: str) -> Any:
        """Return the parameters."""
        return self if name == "parameters" else Attribute(self, name)

    def has(self, name: Any) -> bool | None:
        """Return whether there is a parameter; None: unknown."""
        return True if name in self._PARAMETERS else None


def _open(options: Options, call: Call) -> Any:
    name, mode = call.value(0, "file"), call.value(1, "mode", default="r")
    path = call.run.find_file(name) if isinstance(name, str) and isinstance(mode, str) and "r" in mode else None
    return UNKNOWN if path is None else OpenedFile(path)


def _load_pickle(options: Options, call: Call) -> Any:
    file = call.value(0, "file")
    return PickledTable(file.path) if isinstance(file, OpenedFile) else UNKNOWN


def _exists(options: Options, call: Call) -> Any:
    """Look for a table that is prepared with the data; whether other files exist may have changed since."""
    name = call.value(0)
    if not isinstance(name, str) or not name.endswith(_TABLE_SUFFIXES):
        return UNKNOWN
    if call.run.find_file(name) is not None:
        return True
    beside = name.rpartition("/")[0]
    prepared = any(call.run.find_file(f"{beside}/{data}") is not None for data in _PREPARED)
    if not prepared:
        sentence = f"{call.where}: {name} is not there yet; the model is counted as without it."
        components = (*MODEL_STATES, "logits")
        call.run.library.notes.doubt(sentence, *components, direction="less")
    return False


def _own_names(options: Options, call: Call) -> Any:
    return OwnNames(call.scope.outermost(), options) if call.scope is not None else UNKNOWN


def _signature(options: Options, call: Call) -> Any:
    path = getattr(call.value(0), "path", "")
    return Signature() if isinstance(path, str) and path.startswith("torch.optim.") else UNKNOWN


def _execute(options: Options, call: Call) -> Any:
    """Follow ``exec(open("config.py").read())``; what else is executed is unknown."""
    contents, run = call.value(0), call.run
    if not isinstance(contents, FileContents) or call.scope is None or run.executing >= _MAX_DEPTH:
        return run.library.execute_unknown(call)
    try:
        tree = parse(read_file(contents.path, MAX_BYTES), contents.path)
    except (OSError, TooLargeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return run.library.execute_unknown(call)
    names = call.value(1, "globals")
    scope = names.scope if isinstance(names, OwnNames) else call.scope
    before = run.module
    run.module = ScriptModule(contents.path.name, before.path, scope)
    run.executing += 1
    try:
        run.block(tree.body, scope)
    finally:
        run.executing -= 1
        run.module = before
    return None


def setting_of_name(scope: Scope, name: str, script: str) -> Setting | None:
    """Return the value that a name of a module has at the end, and where it comes from; None: unknown, or no number."""
    value = scope.names.get(name, UNKNOWN)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    given = scope.origins.get(name)
    if given is not None and given.value == value:
        return given
    return Setting(value=value, origin=f"{scope.places.get(name, script)}: {name} = {value}")


def _number_after(path: Path, key: str) -> Any:
    """Return the number that a pickled table has for a key, from its instructions as they stand in the file."""
    found: Any = UNKNOWN
    at_key = False
    try:
        for instruction, argument, _ in pickletools.genops(read_file(path, _MAX_TABLE_BYTES)):
            if at_key and isinstance(argument, int) and "INT" in instruction.name:
                if found is not UNKNOWN and found != argument:
                    return UNKNOWN
                found, at_key = argument, False
            elif isinstance(argument, str) and argument == key:
                at_key = True
            elif instruction.name not in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
                at_key = False
    except Exception:  # noqa: BLE001 - a file of any bytes
        return UNKNOWN
    return found


_Handler = Callable[[Options, Call], Any]
FILE_FUNCTIONS: Mapping[str, _Handler] = {
    "open": _open,
    "exec": _execute,
    "globals": _own_names,
    **dict.fromkeys(("pickle.load", "cPickle.load"), _load_pickle),
    **dict.fromkeys(("os.path.exists", "os.path.isfile"), _exists),
    "inspect.signature": _signature,
}
"""By a function's dotted name."""
