"""Values of expressions in a script that is parsed but never run: literals, constants, options with their defaults."""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..source import Setting, parse_digits

_UNKNOWN = object()
"""The value of an expression that only the running script could evaluate."""
_MAX_DEPTH = 8
_MAX_STEPS = 100_000
"""Expressions evaluated per script: a few lists of lists that name each other would never end."""
_TRUE_ON_A_GPU = ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available")
"""Functions that return True on every GPU since 2020."""
_CONVERSIONS = ("int", "str", "float", "bool", "Path")
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


@dataclass(frozen=True, slots=True)
class Call:
    """A call in a script."""

    node: ast.Call

    @property
    def name(self) -> str:
        """The last part of the callee's name: ``from_pretrained``."""
        function = self.node.func
        if isinstance(function, ast.Attribute):
            return function.attr
        return function.id if isinstance(function, ast.Name) else ""

    @property
    def owner(self) -> str:
        """The last part of what the method is called on: ``AutoModelForCausalLM``; empty for a plain function."""
        function = self.node.func
        return ast.unparse(function.value).rpartition(".")[2] if isinstance(function, ast.Attribute) else ""

    def keyword(self, *names: str) -> ast.expr | None:
        """Return the first keyword argument with one of these names."""
        return next((keyword.value for keyword in self.node.keywords if keyword.arg in names), None)


def calls_in_order(tree: ast.Module) -> Iterator[Call]:
    """Yield every call, in the order of the script."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return map(Call, sorted(found, key=lambda node: (node.lineno, node.col_offset)))


class ScriptEvaluator:
    """Evaluates a script's expressions from its assignments, its options and their defaults.

    Args:
        tree: the script.
        script: its name, for people.
        options: the command line's flags; they win over the defaults of ``add_argument`` and of parameters.
        environ: the environment, for ``os.environ.get``.
    """

    def __init__(
        self, tree: ast.Module, *, script: str, options: Mapping[str, Setting], environ: Mapping[str, str]
    ) -> None:
        self._script, self._options, self._environ = script, options, environ
        self._names: dict[str, ast.expr | None] = {}
        """The expression assigned to each name; None where several are."""
        self._steps = 0
        self._parsed: set[str] = set()
        """Names of parsed arguments: ``args = parser.parse_args()``."""
        self._defaults: dict[str, Setting] = {}
        for node in ast.walk(tree):
            self._read_definition(node)

    @property
    def defaults(self) -> Mapping[str, Setting]:
        """Defaults that the script gives its options (``add_argument``, dataclass fields); values may be None."""
        return self._defaults

    def constants(self, *names: str) -> dict[str, Setting]:
        """Return numbers that the script assigns to these names, in any case: ``MAX_LENGTH = 2048``."""
        found = {}
        for name, node in self._names.items():
            if node is None or name.lower() not in names:
                continue
            value = self._evaluate(node, depth=0)
            if isinstance(value, int) and not isinstance(value, bool):
                found[name.lower()] = Setting(value=value, origin=f"{self.location(node)}: {name}")
        return found

    def location(self, node: ast.AST) -> str:
        """Return the script and line of a node: ``train.py line 12``."""
        return f"{self._script} line {getattr(node, 'lineno', '?')}"

    def setting(self, node: ast.expr, text: str) -> Setting | None:
        """Return an expression's value with its location; None if only the running script could evaluate it."""
        option = self._option(node)
        if option is not None:
            return Setting(value=option.value, origin=f"{option.origin} ({self.location(node)}: {text})")
        value = self._evaluate(node, depth=0)
        if value is _UNKNOWN:
            return None
        return Setting(value=value, origin=f"{self.location(node)}: {text}")

    def _read_definition(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._assign(node.targets[0].id, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            self._assign(node.target.id, node.value)
        elif isinstance(node, ast.Call) and Call(node).name == "add_argument":
            self._read_argument(node)
        elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.dump(each) for each in node.decorator_list):
            self._read_dataclass(node)
        elif isinstance(node, ast.FunctionDef):
            self._read_parameters(node)

    def _assign(self, name: str, value: ast.expr) -> None:
        if isinstance(value, ast.Call) and Call(value).name in ("parse_args", "parse_args_into_dataclasses"):
            self._parsed.add(name)
        elif name in self._names and ast.dump(self._names[name] or value) != ast.dump(value):
            self._names[name] = None  # assigned twice: it is unknown which one counts
        else:
            self._names[name] = value

    def _read_argument(self, node: ast.Call) -> None:
        """Read the default of ``parser.add_argument("--batch", default=4)``."""
        flags = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        name = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        dest = keywords.get("dest")
        key = str(dest.value) if isinstance(dest, ast.Constant) else name.lstrip("-").replace("-", "_")
        explicit = keywords.get("default")
        default = self._evaluate(explicit, depth=0) if explicit is not None else _implicit_default(keywords)
        if key and name.startswith("-") and default is not _UNKNOWN:
            self._defaults[key] = Setting(value=default, origin=f"{self.location(node)}: default of {name}")

    def _read_dataclass(self, node: ast.ClassDef) -> None:
        """Read the defaults of a dataclass's fields, as HfArgumentParser makes options of them."""
        for field in node.body:
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value):
                continue
            value: ast.expr | None = field.value
            if isinstance(value, ast.Call):
                value = Call(value).keyword("default")
            default = self._evaluate(value, depth=0) if value is not None else _UNKNOWN
            if default is not _UNKNOWN:
                origin = f"{self.location(field)}: default of {field.target.id}"
                self._defaults[field.target.id] = Setting(value=default, origin=origin)

    def _read_parameters(self, node: ast.FunctionDef) -> None:
        """Read the constant defaults of a function's parameters."""
        named = node.args.args[len(node.args.args) - len(node.args.defaults) :]
        pairs = [
            *zip(named, node.args.defaults, strict=True),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        for parameter, default in pairs:
            if isinstance(default, ast.Constant) and default.value is not None:
                self._names.setdefault(parameter.arg, default)

    def _option(self, node: ast.expr) -> Setting | None:
        """Return the flag or the default that ``args.batch`` stands for."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            known = node.value.id in self._parsed or node.attr in self._defaults
            if known and node.attr in self._options:
                return self._options[node.attr]
            return self._defaults.get(node.attr)
        if isinstance(node, ast.Name) and node.id in self._options and node.id in self._names:
            return self._options[node.id]
        return None

    def _evaluate(self, node: ast.expr, *, depth: int) -> Any:
        self._steps += 1
        if depth > _MAX_DEPTH or self._steps > _MAX_STEPS:  # a constant that names itself, or many that do
            return _UNKNOWN
        depth += 1
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                target = self._names.get(node.id)
                return self._evaluate(target, depth=depth) if target is not None else _UNKNOWN
            case ast.List() | ast.Tuple() | ast.Set():
                items = [self._evaluate(item, depth=depth) for item in node.elts]
                return _UNKNOWN if _UNKNOWN in items else items
            case ast.Dict():
                return self._dict(node, depth)
            case ast.Attribute():
                return self._attribute(node, depth)
            case ast.Subscript():
                return self._subscript(node, depth)
            case ast.Call():
                return self._call(node, depth)
        return self._operation(node, depth)

    def _operation(self, node: ast.expr, depth: int) -> Any:
        match node:
            case ast.IfExp():
                test = self._evaluate(node.test, depth=depth)
                return _UNKNOWN if test is _UNKNOWN else self._evaluate(node.body if test else node.orelse, depth=depth)
            case ast.UnaryOp(op=ast.Not()):
                operand = self._evaluate(node.operand, depth=depth)
                return _UNKNOWN if operand is _UNKNOWN else not operand
            case ast.BoolOp():
                return self._either(node, depth)
            case ast.Compare():
                return self._comparison(node, depth)
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                left, right = (_as_number(self._evaluate(side, depth=depth)) for side in (node.left, node.right))
                if isinstance(left, int) and isinstance(right, int) and right:
                    return _ARITHMETIC[type(node.op)](left, right)
        return _UNKNOWN

    def _either(self, node: ast.BoolOp, depth: int) -> Any:
        """Evaluate ``a or b`` to the first true value, ``a and b`` to the first false one, else to the last."""
        value: Any = _UNKNOWN
        for part in node.values:
            value = self._evaluate(part, depth=depth)
            if value is _UNKNOWN or bool(value) is isinstance(node.op, ast.Or):
                return value
        return value

    def _comparison(self, node: ast.Compare, depth: int) -> Any:
        compare = _COMPARISONS.get(type(node.ops[0])) if len(node.ops) == 1 else None
        sides = [self._evaluate(side, depth=depth) for side in (node.left, *node.comparators)]
        if compare is None or _UNKNOWN in sides:
            return _UNKNOWN
        try:
            return compare(*sides)
        except TypeError:
            return _UNKNOWN

    def _dict(self, node: ast.Dict, depth: int) -> Any:
        keys = [key.value if isinstance(key, ast.Constant) else _UNKNOWN for key in node.keys]
        values = [self._evaluate(value, depth=depth) for value in node.values]
        return {str(key): value for key, value in zip(keys, values, strict=True) if _UNKNOWN not in (key, value)}

    def _attribute(self, node: ast.Attribute, depth: int) -> Any:
        option = self._option(node)
        if option is not None:
            return option.value
        if _is_name(node.value, "torch"):
            return node.attr
        if _is_name(node.value, "OptimizerNames"):
            return node.attr.lower()
        return self._evaluate(ast.Name(id=node.attr), depth=depth) if _is_name(node.value, "self") else _UNKNOWN

    def _subscript(self, node: ast.Subscript, depth: int) -> Any:
        key = self._evaluate(node.slice, depth=depth)
        if _is_environ(node.value):
            return self._environ.get(str(key), _UNKNOWN)
        table = self._evaluate(node.value, depth=depth)
        return table.get(str(key), _UNKNOWN) if isinstance(table, dict) else _UNKNOWN

    def _call(self, node: ast.Call, depth: int) -> Any:
        name = Call(node).name
        if (name in _TRUE_ON_A_GPU or ast.unparse(node.func) == "torch.cuda.is_available") and not node.args:
            return True
        arguments = [self._evaluate(argument, depth=depth) for argument in node.args]
        if name in _CONVERSIONS and len(arguments) == 1:
            return arguments[0]
        if name == "dict" and not node.args:
            values = {keyword.arg: self._evaluate(keyword.value, depth=depth) for keyword in node.keywords}
            known = {key: value for key, value in values.items() if value is not _UNKNOWN}
            return _UNKNOWN if None in values else known
        if name == "getattr" and len(node.args) > 1 and _is_name(node.args[0], "torch"):
            return arguments[1]
        is_environ_get = name == "get" and isinstance(node.func, ast.Attribute) and _is_environ(node.func.value)
        if (name == "getenv" or is_environ_get) and arguments:
            return self._environ.get(str(arguments[0]), arguments[1] if len(arguments) > 1 else _UNKNOWN)
        return _UNKNOWN


def _implicit_default(keywords: Mapping[str | None, ast.expr]) -> Any:
    """Return argparse's default where ``default`` is not given."""
    action = keywords.get("action")
    kind = action.value if isinstance(action, ast.Constant) else None
    if kind in ("store_true", "store_false"):
        return kind == "store_false"
    return _UNKNOWN if "required" in keywords else None


def _as_number(value: Any) -> Any:
    """Return a number for a string of digits, as options are strings on the command line."""
    known = parse_digits(value) if isinstance(value, str) else None
    return value if known is None else known


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_environ(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"
