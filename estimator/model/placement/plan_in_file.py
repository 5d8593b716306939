"""Reads a tensor-parallel plan from the Python file that defines it, without running the file.

A plan is a dict of styles by module name, or a function without branches that returns one. Anything else is not read.
"""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...common import read_file
from .plan_styles import STYLES, style_of_class

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 20
"""Names that stand for other names, one after the other."""
_Names = Mapping[str, ast.AST]


class _UnreadableError(Exception):
    """The plan depends on what only the running program knows."""


def read_plan_file(path: str, folder: Path) -> dict[str, str] | None:
    """Return the styles by module of a plan; None: it cannot be read as data.

    Args:
        path: ``module:attribute``, or ``module.attribute``.
        folder: where modules are imported from.
    """
    module, attribute = path.split(":", 1) if ":" in path else path.rpartition(".")[::2]
    place = folder.joinpath(*module.split("."))
    for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
        try:
            tree = ast.parse(read_file(file, _MAX_BYTES))
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        names = _names_in(tree.body)
        try:
            return _plan(names[attribute], names, 0) if attribute in names else None
        except _UnreadableError:
            return None
    return None


def _names_in(body: list[ast.stmt]) -> dict[str, ast.AST]:
    """Return what each name of a file stands for that is assigned or defined once."""
    found: dict[str, ast.AST] = {}
    twice: set[str] = set()
    for name, node in _definitions(body):
        if name in found:
            twice.add(name)
        found[name] = node
    return {name: node for name, node in found.items() if name not in twice}


def _definitions(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.FunctionDef):
            yield node.name, node


def _plan(node: ast.AST, names: _Names, depth: int) -> dict[str, str]:
    """Return the plan that an expression or a function gives.

    Raises:
        _UnreadableError: it is no plan that can be read.
    """
    if depth > _MAX_DEPTH:
        raise _UnreadableError
    if isinstance(node, ast.Name) and node.id in names:
        return _plan(names[node.id], names, depth + 1)
    if isinstance(node, ast.FunctionDef):
        return _returned(node, names, depth + 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return {**_plan(node.left, names, depth + 1), **_plan(node.right, names, depth + 1)}
    if not isinstance(node, ast.Dict):
        raise _UnreadableError
    plan: dict[str, str] = {}
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:  # ``**other``
            plan |= _plan(value, names, depth + 1)
        else:
            plan[_text(key)] = _style(value, names, depth + 1)
    return plan


def _returned(function: ast.FunctionDef, names: _Names, depth: int) -> dict[str, str]:
    """Return the plan of a function that assigns, updates and returns without a branch."""
    local: dict[str, ast.AST] = dict(names)
    plans: dict[str, dict[str, str]] = {}
    for node in function.body:
        if isinstance(node, ast.Return) and node.value is not None:
            known = isinstance(node.value, ast.Name) and node.value.id in plans
            return plans[node.value.id] if known else _plan(node.value, local, depth)  # type: ignore[attr-defined]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # its docstring
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if not _assigns(node, local, plans, depth):
            raise _UnreadableError
    raise _UnreadableError


def _assigns(node: ast.stmt, local: dict[str, ast.AST], plans: dict[str, dict[str, str]], depth: int) -> bool:
    """Follow a statement that assigns a name, an item of a plan, or updates a plan; False: it does something else."""
    for name, value in _definitions([node]):
        local[name] = value
        if isinstance(value, ast.Dict):
            plans[name] = _plan(value, local, depth)
        return True
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
        changed = _known(target.value, plans)
        if changed is not None:
            changed[_text(target.slice)] = _style(node.value, local, depth)
        return changed is not None
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(method := call.func, ast.Attribute) and method.attr == "update":
        changed = _known(method.value, plans)
        if changed is not None and len(call.args) == 1 and not call.keywords:
            changed |= _plan(call.args[0], local, depth)
            return True
    return False


def _known(node: ast.AST, plans: dict[str, dict[str, str]]) -> dict[str, str] | None:
    return plans.get(node.id) if isinstance(node, ast.Name) else None


def _style(node: ast.AST, names: _Names, depth: int) -> str:
    if depth > _MAX_DEPTH:
        raise _UnreadableError
    if isinstance(node, ast.Name) and node.id in names:
        return _style(names[node.id], names, depth + 1)
    style: str | None = None
    if isinstance(node, ast.Constant) and node.value in STYLES:
        style = str(node.value)
    elif isinstance(node, ast.Call):
        layouts = {word.arg: _last_name(word.value) for word in node.keywords}
        style = style_of_class(
            _last_name(node.func),
            whole_input=layouts.get("input_layouts") == "Replicate",
            whole_output=layouts.get("output_layouts") == "Replicate",
        )
    if style is None:
        raise _UnreadableError
    return style


def _last_name(node: ast.AST) -> str:
    """Return the last name of ``a.b.Class``, ``Class`` or a call of it; empty if it is something else."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise _UnreadableError
