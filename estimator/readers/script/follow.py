"""Follows a script from its top: statements that run for certain, and functions that they call. Nothing is executed.

What stands under a condition that no literal or option decides, or in a function that nothing calls from the top, is
not followed: memory may depend on it, and names that it assigns are unknown from there on.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..source.settings import Setting
from .libraries import (
    assigned,
    call_library,
    class_method,
    decorate,
    imported,
    make_instance,
    not_followed,
    own_method,
    starts_training,
    version,
)
from .models import Model, Part
from .notes import Notes
from .operators import as_number, binary, compare, truth
from .options import Parsed
from .python_functions import BUILTINS
from .values import (
    MAX_LENGTH,
    PLAIN,
    UNKNOWN,
    Attribute,
    Call,
    Class,
    Function,
    Instance,
    Module,
    Name,
    Scope,
    Thing,
    short_text,
)

_MAX_STEPS = 100_000
"""Statements and expressions that are followed."""
_MAX_DEPTH = 12
"""Functions that call functions."""
_MAX_NESTING = 40
"""Expressions inside expressions."""
_NAMES_LAYERS = ("named_modules()", "isinstance(", "'lm_head'")
"""In a function that returns the names of all linear layers but the output layer, for ``target_modules``."""
_OF_LAYERS = re.compile("name|linear|module|target|layer")
"""In the name of such a function."""
_FILLING = ("append", "add", "extend", "update", "insert", "setdefault", "pop", "remove", "discard")
_EXITS = ("sys.exit", "exit", "quit", "os._exit")
_TEXT_METHODS = ("lower", "upper", "strip", "split", "startswith", "endswith", "replace")
_OF_PATHS = ("resolve", "absolute", "expanduser", "as_posix", "open", "read", "read_text")
"""Methods of a path, or of the file that a text stands for, whose result stands for the same file."""
OTHER_LENGTHS = re.compile(r"(?i)eval|test|gener|infer|predict|sample|chat|prompt|plot|print|valid")
"""Names of functions that evaluate, generate or print; a length in them is not that of the training."""
_ENDS = {ast.Raise: "exit", ast.Break: "break", ast.Continue: "continue"}


class BudgetSpentError(Exception):
    """The script takes more steps than are followed."""


class _End:
    """Why the statements after it do not run: a return with its value, an exit, or the next turn of a loop."""

    def __init__(self, kind: str, value: Any = None) -> None:
        self.kind, self.value = kind, value


class Reader:
    """Follows one script.

    Args:
        name: its file's name, for people.
        notes: where it is noted what libraries do, as far as memory depends on it.
        environ: its environment.
        argv: the words of its command line, its own path first.
        find_module: returns where a module beside the script lies, by its name, its level and the importing file.
        open_file: returns the syntax tree of a file; None: it cannot be read.
        read_table: returns the settings in a file that the script opens.
    """

    def __init__(
        self,
        name: str,
        notes: Notes,
        *,
        environ: Mapping[str, Any],
        argv: Sequence[str],
        find_module: Callable[[str, int, str], Path | None] = lambda *_: None,
        open_file: Callable[[Path], ast.Module | None] = lambda _: None,
        read_table: Callable[[Any], Any] = lambda _: UNKNOWN,
    ) -> None:
        self.name, self.notes, self.environ = name, notes, dict(environ)
        self.argv, self.read_table = list(argv), read_table
        self._find_module, self._open_file = find_module, open_file
        self.tree = ast.Module([], [])
        """The script, and what of the modules beside it is mentioned in what it follows."""
        self._modules: dict[Path, tuple[Module, ast.Module] | None] = {}
        self._files: dict[int, str] = {}
        """The files of the nodes of modules beside the script."""
        self.loops: tuple[ast.AST, ...] = ()
        """Loops around what is followed, outermost first."""
        self.statement: ast.AST | None = None
        """The call that is a statement of its own, whose result nothing takes."""
        self.module = Scope()
        self.followed: set[int] = set()
        """Functions that were entered."""
        self._entered: set[int] = set()
        """Statements of the branches that known conditions take."""
        self._passed_by: set[int] = set()
        """Statements of the branches that are not taken: a function that is called only there never runs."""
        self._active: list[int] = []
        self._may_return = [False]
        """By function: whether it may have returned, so that what it assigns from there on is not known."""
        self._steps = _MAX_STEPS
        self._nesting = 0

    def read(self, tree: ast.Module) -> None:
        """Follow a script from its top to its end.

        Raises:
            BudgetSpentError: it takes too many steps.
        """
        self.tree = tree
        self.module.names.update(__name__="__main__", __file__=self.argv[0])
        self.block(tree.body, self.module)
        main = self.module.names.get("main")
        trains = self.notes.trainers or self.notes.optimizers or self.notes.given
        if isinstance(main, Function) and id(main.node) not in self.followed and not trains:
            self.call(main, Call(self, main.node, "main"))  # as the entry point of a package
        self.tree = ast.Module([*tree.body, *self._mentioned(tree)], [])
        mentioned = {
            each for node in _walk_without(self.tree, self._passed_by - self._entered) for each in names_in(node)
        }
        plain = {each.name for each in self.tree.body if isinstance(each, ast.ClassDef) and not each.bases}
        for node, path in _functions(self.tree.body, ""):
            by_library = "." in path and path.partition(".")[0] not in plain
            is_reached = by_library or node.name in mentioned or bool(node.decorator_list)
            if id(node) not in self.followed and is_reached:
                self._not_followed(node.body, f", as {path}() is not called from the top of the script", node)

    def _mentioned(self, script: ast.Module) -> list[ast.stmt]:
        """Return what runs of the modules beside the script: their statements, and what those and the script name."""
        body = [each for found in self._modules.values() if found is not None for each in found[1].body]
        named = {each: each.name for each in body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
        found: list[ast.stmt] = [each for each in body if each not in named]
        pending: list[ast.AST] = [script, *found]
        while pending:
            names = {name for node in ast.walk(pending.pop()) for name in names_in(node)}
            more = [each for each, name in named.items() if name in names]
            found += more
            pending += more
            for each in more:
                del named[each]
        return found

    def location(self, node: ast.AST) -> str:
        """Return the place of a syntax node in words: ``train.py line 12``."""
        return f"{self._files.get(id(node), self.name)} line {getattr(node, 'lineno', '?')}"

    library = staticmethod(call_library)
    """Return the result of a library's function."""
    class_method = staticmethod(class_method)
    """Return what a class method of the script returns."""
    own_method = staticmethod(own_method)
    """Return what a method of one of the script's objects returns."""

    def _not_followed(self, nodes: Sequence[ast.AST], why: str, at: ast.AST) -> None:
        not_followed(nodes, why, self.location(at), self.notes)

    def option(self, node: ast.expr) -> Setting | None:
        """Return the first option of the command line that an expression names; None: it names none."""
        names = (getattr(each, "attr", getattr(each, "id", "")) for each in ast.walk(node))
        found = (self.notes.options.find(name, uses=False) for name in names)
        return next((setting for setting in found if setting is not None), None)

    # Statements

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> _End | None:
        """Follow statements; return why those after them do not run."""
        for statement in body:
            self._step()
            if type(statement) in _ENDS:
                return _End(_ENDS[type(statement)])
            handler = getattr(self, f"_{type(statement).__name__.lower()}", None)  # its method, as of a NodeVisitor
            if handler is None:
                self._skip([statement], short_text(statement), scope, statement)
            end: _End | None = handler(statement, scope) if handler is not None else None
            if end is not None:
                return end
        return None

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise BudgetSpentError

    def _expr(self, node: ast.Expr, scope: Scope) -> _End | None:
        self.statement = node.value
        self.evaluate(node.value, scope)
        ends_program = isinstance(node.value, ast.Call) and _dotted(node.value.func) in _EXITS
        return _End("exit") if ends_program else None

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.evaluate(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope, node.value)

    def _annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, scope), scope, node.value)

    def _augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        left = self.evaluate(node.target, scope)
        value = binary(type(node.op), left, self.evaluate(node.value, scope)) if not self.loops else UNKNOWN
        self.assign(node.target, value, scope)

    def assign(self, target: ast.expr, value: Any, scope: Scope, source: ast.expr | None = None) -> None:
        """Assign a value to a name, an attribute, an item, or several of them."""
        if isinstance(target, ast.Name):
            scope.assign(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            items, names = self.iterate(value), target.elts
            known = items if items is not None and len(items) == len(names) else [UNKNOWN] * len(names)
            for each, item in zip(names, known, strict=True):
                self.assign(each.value if isinstance(each, ast.Starred) else each, item, scope)
        elif isinstance(target, ast.Attribute | ast.Subscript):
            self._assign_inside(target, UNKNOWN if self._may_return[-1] else value, scope, source)

    def _assign_inside(
        self, target: ast.Attribute | ast.Subscript, value: Any, scope: Scope, source: ast.expr | None
    ) -> None:
        owner = self.evaluate(target.value, scope)
        key = target.attr if isinstance(target, ast.Attribute) else self.evaluate(target.slice, scope)
        call = Call(self, target, str(key), owner, [value], nodes={0: source or target}, scope=scope)
        if isinstance(owner, dict) and isinstance(key, PLAIN) and not self.loops:
            owner[key] = value
        elif isinstance(owner, dict | list):
            _spoil(owner)
        elif isinstance(owner, Thing) and isinstance(key, str):
            owner.set_attribute(key, value, call)
        elif isinstance(owner, Name) and isinstance(target, ast.Attribute):
            assigned(Name(f"{owner.path}.{target.attr}"), value, call)
        elif isinstance(owner, Name):
            self.library(Call(self, target, f"{owner.path}.__setitem__", None, [key, value], scope=scope))
        elif owner is UNKNOWN:
            self._not_followed([target], "", target)

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        for each in node.targets:
            scope.names.pop(getattr(each, "id", ""), None)
            owner = self.evaluate(each.value, scope) if isinstance(each, ast.Attribute | ast.Subscript) else None
            if isinstance(owner, Part):
                self.notes.doubt(
                    f"{self.location(node)}: {short_text(node)} removes part of the model that is counted."
                )

    def _if(self, node: ast.If, scope: Scope) -> _End | None:
        known = truth(self.evaluate(node.test, scope))
        if known is not None:
            body, other = (node.body, node.orelse) if known else (node.orelse, node.body)
            self._entered.update(map(id, body))
            self._passed_by.update(map(id, other))
            return self.block(body, scope)
        self._skip([*node.body, *node.orelse], f"if {short_text(node.test)}", scope, node)
        return None

    def _skip(self, body: Sequence[ast.AST], why: str, scope: Scope, at: ast.AST) -> None:
        """Leave statements out that may run: what they assign is unknown."""
        self._not_followed(body, f", as whether it runs is known only at run time ({why})", at)
        for each in (node for statement in body for node in ast.walk(statement)):
            if starts_training(each):
                self.notes.trains = True
                for trainer in self.notes.trainers:
                    trainer.ran = True
            if isinstance(each, ast.Return):
                self._may_return[-1] = True
            elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                scope.assign(each.name, UNKNOWN)
            elif isinstance(each, ast.Call) and getattr(each.func, "attr", "") in _FILLING:
                self._forget(getattr(each.func, "value", each), scope)
            elif isinstance(getattr(each, "ctx", None), ast.Store):
                self._forget(each, scope)

    def _forget(self, target: ast.AST, scope: Scope) -> None:
        """Forget the value of a name, attribute or list that an assignment or a call changes."""
        if isinstance(target, ast.Subscript):
            self._forget(target.value, scope)
        elif isinstance(target, ast.Name):
            owner = scope.find(target.id)
            known = owner.names[target.id] if owner is not None else None
            _spoil(known)
            if not isinstance(known, Thing):
                scope.assign(target.id, UNKNOWN)
            elif isinstance(target.ctx, ast.Store) and isinstance(known, Model) and self.notes.loads_unfollowed:
                sentence = f"{self.location(target)}: whether another model is loaded is not known."
                self.notes.doubt(sentence, key="model.id", asks=True)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name | ast.Attribute):
            held = self.evaluate(target.value, scope)
            if isinstance(held, Thing):
                held.set_attribute(target.attr, UNKNOWN, Call(self, target, target.attr, held, [UNKNOWN], scope=scope))

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> _End | None:
        """Follow the body once: what differs from turn to turn is unknown."""
        items = self.iterate(self.evaluate(node.iter, scope))
        self.assign(node.target, items[0] if items is not None and len(items) == 1 else UNKNOWN, scope)
        return self._turn(node, scope) or self.block(node.orelse, scope)

    def _while(self, node: ast.While, scope: Scope) -> _End | None:
        known = truth(self.evaluate(node.test, scope))
        return self.block(node.orelse, scope) if known is False else self._turn(node, scope)

    def _turn(self, node: ast.For | ast.AsyncFor | ast.While, scope: Scope) -> _End | None:
        before, self.loops = self.loops, (*self.loops, node)
        end = self.block(node.body, scope)
        self.loops = before
        return end if end is not None and end.kind == "return" else None

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> _End | None:
        for item in node.items:
            value = self.evaluate(item.context_expr, scope)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope)
        return self.block(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> _End | None:
        end = self.block([*node.body, *node.orelse], scope)
        if end is not None and end.kind == "exit" and node.handlers:
            end = self.block(node.handlers[0].body, scope)
        elif end is None:
            self._not_followed(node.handlers, ", as it runs after an error only", node)
        return self.block(node.finalbody, scope) or end

    def _return(self, node: ast.Return, scope: Scope) -> _End:
        return _End("return", self.evaluate(node.value, scope) if node.value is not None else None)

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        function = Function(node, scope, self._defaults(node.args, scope), node.name)
        scope.assign(node.name, function)
        for each in reversed(node.decorator_list):
            name = _dotted(each.func if isinstance(each, ast.Call) else each).rpartition(".")[2]
            call = Call(self, each, name, None, scope=scope)
            if isinstance(each, ast.Call):
                self._take_arguments(call, each, scope)
            if decorate(function, call) is UNKNOWN:
                scope.assign(node.name, UNKNOWN)

    def _classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = tuple(self.evaluate(base, scope) for base in node.bases)
        inner = Scope(scope)
        self.block(node.body, inner)
        fields = {name: each for base in bases if isinstance(base, Class) for name, each in base.fields.items()}
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                fields[each.target.id] = each
        scope.assign(node.name, Class(node.name, node, bases, inner.names, fields))

    def _import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for each in node.names:
            module, level = (each.name, 0) if isinstance(node, ast.Import) else (node.module or "", node.level)
            path = each.name if isinstance(node, ast.Import) else f"{module}.{each.name}".strip(".")
            root = path.partition(".")[0]
            is_root = isinstance(node, ast.Import) and not each.asname
            found = self._load(module, level, scope)
            if found is None and (level or self._find(root, 0, scope) is not None):
                sentence = f"{path} is not read, as it is missing, too large or no Python."
                self.notes.doubt(f"{self.location(node)}: {sentence}")
            elif found is None:
                imported(path, self.location(node), self.notes)
            if each.name == "*":
                names = found.scope.names.items() if found is not None else ()
                scope.names |= {name: value for name, value in names if not name.startswith("_")}
                continue
            value: Any = Name(root if is_root else path)
            if found is not None and isinstance(node, ast.ImportFrom):
                value = found.attribute(each.name)
            elif found is not None:
                value = (self._load(root, 0, scope) or self._namespace(root, scope)) if is_root else found
            scope.assign(root if is_root else each.asname or each.name, value)

    def _load(self, module: str, level: int, scope: Scope) -> Module | None:
        """Return a module beside the script, which is followed at its first import; None: it is none, or too much."""
        path = self._find(module, level, scope)
        if path is None:
            return None
        if path == Path(self.argv[0]):  # the script itself, which another module imports
            own = Module(lambda _: None)
            own.scope = self.module
            return own
        if path not in self._modules:
            tree = self._open_file(path) if self._steps > _MAX_STEPS // 2 else None
            self._modules[path] = None
            if tree is None:
                return None
            self._files.update(dict.fromkeys(map(id, ast.walk(tree)), path.name))
            made = Module(lambda name: self._load(name, 1, made.scope) if path.name == "__init__.py" else None)
            self._modules[path] = (made, tree)
            made.scope.names.update(__name__=module, __file__=str(path))
            before, self.loops = self.loops, ()
            self._may_return.append(False)
            self.block(tree.body, made.scope)
            self._may_return.pop()
            self.loops = before
        found = self._modules[path]
        return found[0] if found is not None else None

    _importfrom = _import

    def _namespace(self, root: str, scope: Scope) -> Module:
        """Return a package without a file of its own, whose modules are followed when the script names them."""
        return Module(lambda name: self._load(f"{root}.{name}", 0, scope))

    def _find(self, module: str, level: int, scope: Scope) -> Path | None:
        importer = scope.find("__file__")
        return self._find_module(module, level, importer.names["__file__"] if importer is not None else "")

    def _global(self, node: ast.Global | ast.Nonlocal, scope: Scope) -> None:
        scope.elsewhere.update(node.names)

    _nonlocal = _global

    # Expressions

    def evaluate(self, node: ast.expr | None, scope: Scope) -> Any:
        """Return an expression's value."""
        handler = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is None or node is None or self._nesting > _MAX_NESTING:
            if node is not None:
                self._not_followed([node], "", node)
            return UNKNOWN
        self._step()
        self._nesting += 1
        try:
            return handler(node, scope)
        finally:
            self._nesting -= 1

    def _constant(self, node: ast.Constant, scope: Scope) -> Any:
        return node.value if isinstance(node.value, PLAIN) else UNKNOWN

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        found = scope.find(node.id)
        return found.names[node.id] if found is not None else Name(node.id)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        return self.attribute(self.evaluate(node.value, scope), node.attr)

    def attribute(self, value: Any, name: str) -> Any:
        """Return an attribute of a value."""
        if isinstance(value, Name):
            if (value.path, name) == ("sys", "argv"):
                return list(self.argv)
            if (value.path, name) == ("sys", "platform"):
                return sys.platform
            return version(value.path, self.notes) if name == "__version__" else Name(f"{value.path}.{name}")
        if isinstance(value, dict) and name in value:  # OmegaConf's tables have their items as attributes
            return value[name]
        if isinstance(value, str) and name == "type" and value.startswith(("cuda", "cpu")):  # of torch.device
            return value.partition(":")[0]
        return value.attribute(name) if isinstance(value, Thing) else Attribute(value, name)

    def _list(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
        if any(isinstance(element, ast.Starred) for element in node.elts):
            return UNKNOWN
        items = [self.evaluate(element, scope) for element in node.elts]
        return tuple(items) if isinstance(node, ast.Tuple) else items

    _tuple = _list
    _set = _list

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        table: dict[Any, Any] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.evaluate(value_node, scope)
            key = self.evaluate(key_node, scope) if key_node is not None else None
            if key_node is None and not isinstance(value, dict):
                return UNKNOWN
            table |= value if key_node is None else {key: value} if isinstance(key, PLAIN) else {}
        return table

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        value, key = self.evaluate(node.value, scope), self.evaluate(node.slice, scope)
        if isinstance(value, Name):
            is_environ = value.path.endswith("environ") and isinstance(key, str)
            return self.environ.get(key, UNKNOWN) if is_environ else UNKNOWN
        if isinstance(value, Thing):
            return value.item(key)
        if isinstance(value, dict):
            return value.get(key, UNKNOWN) if isinstance(key, PLAIN) else UNKNOWN
        is_known = isinstance(value, list | tuple | str) and isinstance(key, int) and -len(value) <= key < len(value)
        return value[key] if is_known else UNKNOWN

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.evaluate(node.operand, scope)
        if isinstance(node.op, ast.Not):
            known = truth(value)
            return UNKNOWN if known is None else not known
        value = as_number(value)
        is_number = isinstance(value, int | float) and not isinstance(node.op, ast.Invert)
        return UNKNOWN if not is_number else -value if isinstance(node.op, ast.USub) else value

    def _boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        """Evaluate ``a or b`` to the first true value, ``a and b`` to the first false one, else to the last."""
        wanted, unknown = isinstance(node.op, ast.Or), False
        value: Any = UNKNOWN
        for part in node.values:
            value = self.evaluate(part, scope)
            known = truth(value)
            if known is wanted:
                return UNKNOWN if unknown and not isinstance(value, bool) else value
            unknown = unknown or known is None
        return UNKNOWN if unknown else value

    def _binop(self, node: ast.BinOp, scope: Scope) -> Any:
        return binary(type(node.op), self.evaluate(node.left, scope), self.evaluate(node.right, scope))

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self.evaluate(node.left, scope)
        result: Any = True
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(right_node, scope)
            right = dict(self.environ) if isinstance(right, Name) and right.path.endswith("environ") else right
            part = compare(type(kind), left, right)
            if part is False:
                return False
            result = UNKNOWN if part is UNKNOWN or result is UNKNOWN else True
            left = right
        return result

    def _ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        known = truth(self.evaluate(node.test, scope))
        if known is not None:
            return self.evaluate(node.body if known else node.orelse, scope)
        why = f", as whether it runs is known only at run time (if {short_text(node.test)})"
        self._not_followed([node.body, node.orelse], why, node)
        return UNKNOWN

    def _joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        parts = [self.evaluate(part, scope) for part in node.values]
        text = "".join(map(str, parts))
        return (
            text if all(isinstance(part, str | int | float) for part in parts) and len(text) < MAX_LENGTH else UNKNOWN
        )

    def _formattedvalue(self, node: ast.FormattedValue, scope: Scope) -> Any:
        value = self.evaluate(node.value, scope)
        return value if node.format_spec is None else UNKNOWN

    def _listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope) -> Any:
        (loop, *more), inner = node.generators, Scope(scope)
        items = self.iterate(self.evaluate(loop.iter, scope))
        self.assign(loop.target, items[0] if items is not None and len(items) == 1 else UNKNOWN, inner)
        for test in loop.ifs:
            self.evaluate(test, inner)
        value = self.evaluate(node.elt, inner) if not more else UNKNOWN
        return [value if isinstance(value, Thing) else UNKNOWN]  # of parameters it stays known whose they are

    _setcomp = _listcomp
    _generatorexp = _listcomp

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Any:
        return Function(node, scope, self._defaults(node.args, scope), "lambda")

    def _defaults(self, arguments: ast.arguments, scope: Scope) -> dict[str, Any]:
        named = [*arguments.posonlyargs, *arguments.args]
        pairs = [
            *zip(named[len(named) - len(arguments.defaults) :], arguments.defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        return {each.arg: self.evaluate(default, scope) for each, default in pairs if default is not None}

    def iterate(self, value: Any) -> list[Any] | None:
        """Return what iterating over a value yields; None: unknown."""
        if isinstance(value, list | tuple | set | frozenset | str | dict):
            return list(value) if len(value) <= MAX_LENGTH else None
        return value.elements() if isinstance(value, Thing) else None

    # Calls

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        call = Call(self, node, _dotted(node.func), None, scope=scope)
        function = self.evaluate(node.func, scope)
        self._take_arguments(call, node, scope)
        return self.call(function, call)

    def _take_arguments(self, call: Call, node: ast.Call, scope: Scope) -> None:
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                more = self.iterate(self.evaluate(argument.value, scope))
                call.args += more if more is not None else [UNKNOWN]
            else:
                call.nodes[len(call.args)] = argument
                call.args.append(self.evaluate(argument, scope))
        for keyword in node.keywords:
            value = self.evaluate(keyword.value, scope)
            table = value.as_table() if isinstance(value, Parsed) else value
            if keyword.arg is not None:
                table = {keyword.arg: value}
            elif not isinstance(table, dict) or UNKNOWN in table:
                call.unknown_table, table = keyword.value, {}
            call.kwargs.update({str(key): item for key, item in table.items()})
            call.nodes.update({str(key): keyword.value for key in table})

    def call(self, function: Any, call: Call) -> Any:
        """Return the result of calling a value."""
        self._step()
        if isinstance(function, Function):
            return self._call_function(function, call)
        if isinstance(function, Class):
            return self._make(function, call)
        if isinstance(function, Name):
            call.path = function.path
            builtin = BUILTINS.get(function.path.removeprefix("omegaconf."))
            return builtin(call) if builtin is not None else self.library(call)
        if isinstance(function, Attribute):
            call.receiver, call.path = function.receiver, function.name
            if isinstance(function.receiver, Thing) and call.name != "backward":  # an accelerator's, an engine's
                return function.receiver.method(call)
            is_data = isinstance(function.receiver, (*PLAIN, list, tuple, dict))
            return self._method(function.receiver, call) if is_data else self.library(call)
        if isinstance(function, Thing):
            return function.called(call)
        call.receiver = UNKNOWN
        return self.library(call)

    def _method(self, value: Any, call: Call) -> Any:
        """Return what stands in a table under a key; what other methods do to a list or table is not followed."""
        key = call.value(0)
        if isinstance(value, dict) and call.name == "get" and isinstance(key, PLAIN):
            return value.get(key, UNKNOWN if UNKNOWN in value else call.value(1))
        if isinstance(value, str) and call.name in _OF_PATHS:
            return value
        if isinstance(value, str) and call.name in _TEXT_METHODS and all(isinstance(each, str) for each in call.args):
            try:
                return getattr(value, call.name)(*call.args)
            except (TypeError, ValueError):
                return UNKNOWN
        tables = [each for each in call.args if isinstance(each, dict)]
        is_known = tables == call.args and call.unknown_table is None and not self.loops
        if isinstance(value, dict) and call.name == "update" and is_known:
            value.update(*tables, **call.kwargs)
        elif isinstance(value, list) and call.name == "append" and not self.loops:
            value.extend(call.args)
        elif call.name in _FILLING:
            _spoil(value)
        return UNKNOWN

    def _call_function(self, function: Function, call: Call) -> Any:
        node = function.node
        if id(node) in self._active or len(self._active) >= _MAX_DEPTH:
            return UNKNOWN
        self.followed.add(id(node))
        scope = Scope(function.scope)
        self._bind(function, call, scope)
        self._active.append(id(node))
        self._may_return.append(False)
        try:
            if isinstance(node, ast.Lambda):
                return self.evaluate(node.body, scope)
            end = self.block(node.body, scope)
            value = end.value if end is not None and end.kind == "return" else None
            value = UNKNOWN if self._may_return[-1] and not isinstance(value, Thing | tuple) else value
            source = ast.unparse(node) if value is UNKNOWN and _OF_LAYERS.search(node.name) else ""
            return "all-linear" if "vision" not in source and all(each in source for each in _NAMES_LAYERS) else value
        finally:
            self._active.pop()
            self._may_return.pop()

    def _bind(self, function: Function, call: Call, scope: Scope) -> None:
        """Give a function's parameters their values: the call's, options', defaults, or unknown."""
        arguments = function.node.args
        named = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        for at, name in enumerate([*named, *(each.arg for each in arguments.kwonlyargs)]):
            default = (function.options or function.defaults).get(name, UNKNOWN)
            is_positional = at < len(named) and at < len(call.args)
            scope.names[name] = call.kwargs.get(name, call.args[at] if is_positional else default)
        if arguments.vararg is not None:
            scope.names[arguments.vararg.arg] = tuple(call.args[len(named) :])
        if arguments.kwarg is not None:
            more = {name: value for name, value in call.kwargs.items() if name not in scope.names}
            scope.names[arguments.kwarg.arg] = more if call.unknown_table is None else UNKNOWN

    def _make(self, kind: Class, call: Call) -> Any:
        found = make_instance(kind, call)
        if found is not UNKNOWN:
            return found
        made = Instance(kind)
        made.values.update({str(at): value for at, value in enumerate(call.args)} | call.kwargs)
        for at, name in enumerate(kind.fields):
            made.values[name] = call.value(at, name, default=kind.find(name))
        for name, given in (("__init__", call), ("__post_init__", Call(self, call.node, "__post_init__"))):
            start = kind.find(name)
            if isinstance(start, Function):
                self.call(start, given.after(made))
        return made


def _walk_without(tree: ast.AST, left_out: set[int]) -> Iterator[ast.AST]:
    """Yield all nodes but some and those below them."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending += [each for each in ast.iter_child_nodes(node) if id(each) not in left_out]


def names_in(node: ast.AST) -> Iterator[str]:
    """Yield the name that a node mentions: a function whose name is mentioned nowhere is never called."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def _spoil(value: Any) -> None:
    """Forget what a list or table holds, for everyone who holds it."""
    if isinstance(value, list):
        value.append(UNKNOWN)
    elif isinstance(value, dict):
        value.update(dict.fromkeys((*value, UNKNOWN), UNKNOWN))


def _dotted(node: ast.expr) -> str:
    """Return a dotted name, such as ``torch.optim.AdamW``, as the script writes it."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _functions(body: Sequence[ast.stmt], path: str) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Yield the functions of a module, and the methods of its classes."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, f"{path}{node.name}"
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _functions([*node.body, *node.orelse], path)
