"""Functions, classes, imports and patterns of a script: the statements that define names."""

import ast
from typing import Any

from .call import Call
from .expressions import Expressions
from .imports import Imports
from .values import UNKNOWN, External, Function, Scope, ScriptClass


class Definitions(Expressions):
    """Follows the statements that define names."""

    imports: Imports
    functions: list[Function]

    def block(self, body: list[ast.stmt], scope: Scope) -> Any:
        """Follow statements."""
        raise NotImplementedError

    def bind(self, function: Function, args: list[Any], kwargs: dict[str, Any], scope: Scope) -> None:
        """Give a function's parameters their values: the call's, options', defaults, or unknown."""
        arguments = function.node.args
        named = [parameter.arg for parameter in (*arguments.posonlyargs, *arguments.args)]
        args = [*function.given, *args]
        values = dict(zip(named, args, strict=False))
        for name in (*named, *(parameter.arg for parameter in arguments.kwonlyargs)):
            if name in values:
                scope.names[name] = values[name]
            elif name in kwargs:
                scope.names[name] = kwargs[name]
            elif function.options is not None and name in function.options:
                scope.names[name] = function.options[name].value
                scope.origins[name] = function.options[name]
            else:
                scope.names[name] = function.defaults.get(name, UNKNOWN)
        if arguments.vararg is not None:
            scope.names[arguments.vararg.arg] = tuple(args[len(named) :])
        if arguments.kwarg is not None:
            known = {*named, *(parameter.arg for parameter in arguments.kwonlyargs)}
            scope.names[arguments.kwarg.arg] = {key: value for key, value in kwargs.items() if key not in known}

    def define_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        """Define a function, and apply its decorators."""
        function = Function(node, scope, self.module, self.defaults(node.args, scope), node.name)
        if scope is self.module.scope:
            self.functions.append(function)
        scope.assign(node.name, function)
        for decorator in reversed(node.decorator_list):
            self._decorate(function, decorator, scope)

    def _decorate(self, function: Function, decorator: ast.expr, scope: Scope) -> None:
        """Apply a decorator: those of libraries leave the function a function of the script."""
        value = self.evaluate(decorator.func if isinstance(decorator, ast.Call) else decorator, scope)
        name = value.name if isinstance(value, External) else getattr(value, "name", "")
        function.is_property = function.is_property or name in ("property", "cached_property")
        function.is_static = function.is_static or name == "staticmethod"
        function.is_class_method = function.is_class_method or name == "classmethod"
        call = Call(self, decorator, name, None, [function], scope=scope)
        if isinstance(decorator, ast.Call):
            call.args += [self.evaluate(each, scope) for each in decorator.args]
            call.kwargs = {each.arg: self.evaluate(each.value, scope) for each in decorator.keywords if each.arg}
        call.path = f"@{name}"
        self.library.call(call)

    def define_class(self, node: ast.ClassDef, scope: Scope) -> None:
        """Define a class."""
        bases = tuple(self.evaluate(base, scope) for base in node.bases)
        kind = ScriptClass(node.name, node, bases, self.module)
        for base in bases:
            if isinstance(base, ScriptClass):
                kind.fields.update(base.fields)
                kind.is_dataclass = kind.is_dataclass or base.is_dataclass
        inner = Scope(scope)
        self.block(node.body, inner)
        kind.members = inner.names
        kind.fields.update(
            {
                each.target.id: each
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
        )
        for member in kind.members.values():
            if isinstance(member, Function):
                member.owner = kind
                member.scope = scope
        kind.is_dataclass = kind.is_dataclass or any("dataclass" in ast.dump(each) for each in node.decorator_list)
        scope.assign(node.name, kind)
        self.library.call(Call(self, node, "@class", None, [kind], scope=scope))

    def import_modules(self, node: ast.Import, scope: Scope) -> None:
        """Import modules: those beside the script, or names of libraries."""
        for alias in node.names:
            first = alias.name.partition(".")[0]
            module = self.imports.load(self, alias.name if alias.asname else first)
            if module is None:
                self.library.imported(alias.name, self.location(node))
            scope.assign(alias.asname or first, module or External(alias.name if alias.asname else first))

    def import_names(self, node: ast.ImportFrom, scope: Scope) -> None:
        """Import names of a module."""
        name = node.module or ""
        module = self.imports.load(self, name, level=node.level)
        if module is None:
            self.library.imported(name, self.location(node))
        for alias in node.names:
            if alias.name == "*":
                for key, value in module.public_names() if module is not None else ():
                    scope.assign(key, value)
                continue
            value = module.scope.names.get(alias.name) if module is not None else None
            if value is None:
                value = self.imports.load(self, f"{name}.{alias.name}".strip("."), level=node.level)
            scope.assign(alias.asname or alias.name, value or External(f"{name}.{alias.name}".strip(".")))

    def fits(self, pattern: ast.pattern, subject: Any, scope: Scope) -> bool | None:
        """Return whether a value fits the pattern of a case; None: unknown."""
        if isinstance(pattern, ast.MatchValue):
            value = self.evaluate(pattern.value, scope)
            return None if UNKNOWN in (value, subject) else value == subject
        if isinstance(pattern, ast.MatchSingleton):
            return None if subject is UNKNOWN else pattern.value is subject
        if isinstance(pattern, ast.MatchOr):
            fits = [self.fits(each, subject, scope) for each in pattern.patterns]
            return True if True in fits else None if None in fits else False
        if isinstance(pattern, ast.MatchAs):
            if pattern.name:
                scope.assign(pattern.name, subject)
            return True if pattern.pattern is None else self.fits(pattern.pattern, subject, scope)
        return None
