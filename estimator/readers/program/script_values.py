"""Values of expressions in a script that is read but never run: literals, constants, options with their defaults."""

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..source.settings import Setting, parse_digits

_MISSING = object()
_MOST_STEPS = 100_000
"""Of following names: a few lists of lists that name each other are endless."""
_ON_A_GPU = ("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available")
"""Questions that every card since 2020 answers with yes."""
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


class ScriptEvaluator:
    """What the names of a script stand for.

    Args:
        tree: the script.
        script: its name, for people.
        options: the command line's flags; they win over the defaults of ``add_argument`` and of parameters.
        environ: for ``os.environ.get``.
    """

    def __init__(
        self, tree: ast.Module, *, script: str, options: Mapping[str, Setting], environ: Mapping[str, str]
    ) -> None:
        self._script, self._options, self._environ = script, options, environ
        self._names: dict[str, ast.expr | None] = {}
        self._steps = 0
        self._parsed: set[str] = set()
        self._defaults: dict[str, Setting] = {}
        for node in ast.walk(tree):
            self._learn(node)

    @property
    def defaults(self) -> Mapping[str, Setting]:
        """Options with the default that the script gives them: ``add_argument``, dataclass fields. May be None."""
        return self._defaults

    def constants(self, *names: str) -> dict[str, Setting]:
        """Numbers that the script gives to these names, in whatever case: ``MAX_LENGTH = 2048``."""
        found = {}
        for name, node in self._names.items():
            if node is None or name.lower() not in names:
                continue
            value = self._value(node, depth=0)
            if isinstance(value, int) and not isinstance(value, bool):
                found[name.lower()] = Setting(value=value, origin=f"{self.location(node)}: {name}")
        return found

    def location(self, node: ast.AST) -> str:
        """Where a node stands: ``train.py line 12``."""
        return f"{self._script} line {getattr(node, 'lineno', '?')}"

    def setting(self, node: ast.expr, what: str) -> Setting | None:
        """An expression's value with its place; None where it cannot be told without running the script."""
        option = self._option(node)
        if option is not None:
            return Setting(value=option.value, origin=f"{option.origin} ({self.location(node)}: {what})")
        value = self._value(node, depth=0)
        if value is _MISSING:
            return None
        return Setting(value=value, origin=f"{self.location(node)}: {what}")

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            self._assign(node.targets[0].id, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            self._assign(node.target.id, node.value)
        elif isinstance(node, ast.Call) and _called(node) == "add_argument":
            self._argument(node)
        elif isinstance(node, ast.ClassDef) and any("dataclass" in ast.dump(each) for each in node.decorator_list):
            self._dataclass(node)
        elif isinstance(node, ast.FunctionDef):
            self._parameters(node)

    def _assign(self, name: str, value: ast.expr) -> None:
        if isinstance(value, ast.Call) and _called(value) in ("parse_args", "parse_args_into_dataclasses"):
            self._parsed.add(name)
        elif name in self._names and ast.dump(self._names[name] or value) != ast.dump(value):
            self._names[name] = None  # assigned twice: which one counts cannot be told
        else:
            self._names[name] = value

    def _argument(self, node: ast.Call) -> None:
        flags = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        name = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        dest = keywords.get("dest")
        key = str(dest.value) if isinstance(dest, ast.Constant) else name.lstrip("-").replace("-", "_")
        default = self._value(keywords["default"], depth=0) if "default" in keywords else _usual_default(keywords)
        if key and name.startswith("-") and default is not _MISSING:
            self._defaults[key] = Setting(value=default, origin=f"{self.location(node)}: default of {name}")

    def _dataclass(self, node: ast.ClassDef) -> None:
        for field in node.body:
            if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.value):
                continue
            value: ast.expr | None = field.value
            if isinstance(value, ast.Call):
                value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
            default = self._value(value, depth=0) if value is not None else _MISSING
            if default is not _MISSING:
                origin = f"{self.location(field)}: default of {field.target.id}"
                self._defaults[field.target.id] = Setting(value=default, origin=origin)

    def _parameters(self, node: ast.FunctionDef) -> None:
        named = node.args.args[len(node.args.args) - len(node.args.defaults) :]
        pairs = [
            *zip(named, node.args.defaults, strict=True),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        for parameter, default in pairs:
            if isinstance(default, ast.Constant) and default.value is not None:
                self._names.setdefault(parameter.arg, default)

    def _option(self, node: ast.expr) -> Setting | None:
        """``args.batch``: the flag, else its default."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            known = node.value.id in self._parsed or node.attr in self._defaults
            if known and node.attr in self._options:
                return self._options[node.attr]
            return self._defaults.get(node.attr)
        if isinstance(node, ast.Name) and node.id in self._options and node.id in self._names:
            return self._options[node.id]
        return None

    def _value(self, node: ast.expr, *, depth: int) -> Any:
        self._steps += 1
        if depth > 8 or self._steps > _MOST_STEPS:  # a constant that names itself, or many times one that does so
            return _MISSING
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            target = self._names.get(node.id)
            return self._value(target, depth=depth + 1) if target is not None else _MISSING
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            items = [self._value(item, depth=depth + 1) for item in node.elts]
            return _MISSING if _MISSING in items else items
        match node:
            case ast.Dict():
                return self._table(node, depth)
            case ast.Attribute():
                return self._attribute(node, depth)
            case ast.Subscript():
                return self._subscript(node, depth)
            case ast.Call():
                return self._call(node, depth)
            case ast.IfExp() | ast.UnaryOp() | ast.BoolOp() | ast.Compare() | ast.BinOp():
                return self._operation(node, depth)
        return _MISSING

    def _operation(self, node: ast.expr, depth: int) -> Any:
        match node:
            case ast.IfExp():
                test = self._value(node.test, depth=depth + 1)
                return (
                    _MISSING if test is _MISSING else self._value(node.body if test else node.orelse, depth=depth + 1)
                )
            case ast.UnaryOp(op=ast.Not()):
                operand = self._value(node.operand, depth=depth + 1)
                return _MISSING if operand is _MISSING else not operand
            case ast.BoolOp():
                return self._either(node, depth)
            case ast.Compare():
                return self._comparison(node, depth)
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                left, right = (_number(self._value(side, depth=depth + 1)) for side in (node.left, node.right))
                if isinstance(left, int) and isinstance(right, int) and right:
                    return _ARITHMETIC[type(node.op)](left, right)
        return _MISSING

    def _either(self, node: ast.BoolOp, depth: int) -> Any:
        """``a or b``: the first that is true; ``a and b``: the first that is not; else the last."""
        value: Any = _MISSING
        for part in node.values:
            value = self._value(part, depth=depth + 1)
            if value is _MISSING or bool(value) is isinstance(node.op, ast.Or):
                return value
        return value

    def _comparison(self, node: ast.Compare, depth: int) -> Any:
        compare = _COMPARISONS.get(type(node.ops[0])) if len(node.ops) == 1 else None
        sides = [self._value(side, depth=depth + 1) for side in (node.left, *node.comparators)]
        if compare is None or _MISSING in sides:
            return _MISSING
        try:
            return compare(*sides)
        except TypeError:
            return _MISSING

    def _table(self, node: ast.Dict, depth: int) -> Any:
        keys = [key.value if isinstance(key, ast.Constant) else _MISSING for key in node.keys]
        values = [self._value(value, depth=depth + 1) for value in node.values]
        return {str(key): value for key, value in zip(keys, values, strict=True) if _MISSING not in (key, value)}

    def _attribute(self, node: ast.Attribute, depth: int) -> Any:
        option = self._option(node)
        if option is not None:
            return option.value
        if isinstance(node.value, ast.Name) and node.value.id == "torch":
            return node.attr
        if isinstance(node.value, ast.Name) and node.value.id == "OptimizerNames":
            return node.attr.lower()
        return self._value(ast.Name(id=node.attr), depth=depth + 1) if _is_name(node.value, "self") else _MISSING

    def _subscript(self, node: ast.Subscript, depth: int) -> Any:
        key = self._value(node.slice, depth=depth + 1)
        if _is_environ(node.value):
            return self._environ.get(str(key), _MISSING)
        table = self._value(node.value, depth=depth + 1)
        return table.get(str(key), _MISSING) if isinstance(table, dict) else _MISSING

    def _call(self, node: ast.Call, depth: int) -> Any:
        name = _called(node)
        if (name in _ON_A_GPU or ast.unparse(node.func) == "torch.cuda.is_available") and not node.args:
            return True
        arguments = [self._value(argument, depth=depth + 1) for argument in node.args]
        if name in ("int", "str", "float", "bool", "Path") and len(arguments) == 1:
            return arguments[0]
        if name == "dict" and not node.args:
            values = {k.arg: self._value(k.value, depth=depth + 1) for k in node.keywords}
            return _MISSING if None in values else {key: v for key, v in values.items() if v is not _MISSING}
        if name == "getattr" and len(node.args) > 1 and _is_name(node.args[0], "torch"):
            return arguments[1]
        from_environment = name == "getenv" or (
            name == "get" and isinstance(node.func, ast.Attribute) and _is_environ(node.func.value)
        )
        if from_environment and arguments:
            return self._environ.get(str(arguments[0]), arguments[1] if len(arguments) > 1 else _MISSING)
        return _MISSING


def _usual_default(keywords: Mapping[str | None, ast.expr]) -> Any:
    """Argparse's, where ``default`` is not given."""
    action = keywords.get("action")
    kind = action.value if isinstance(action, ast.Constant) else None
    if kind in ("store_true", "store_false"):
        return kind == "store_false"
    return _MISSING if "required" in keywords else None


def _number(value: Any) -> Any:
    """Options are strings on the command line."""
    known = parse_digits(value) if isinstance(value, str) else None
    return value if known is None else known


def calls_in_order(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the last part of its name, in the order of the script."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for node in sorted(found, key=lambda call: (call.lineno, call.col_offset)):
        yield _called(node), node


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_environ(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"
